"""The run-time check that the import hook applies to every annotation of the four packages."""

from beartype import BeartypeConf, beartype

# An int where a float is asked for is fine, as it is for the type checkers.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

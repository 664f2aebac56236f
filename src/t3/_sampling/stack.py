"""Where the caller of this package is on the stack."""

import sys


def callers_level() -> int:
    """The ``stacklevel`` for a warning by the caller of this function that is meant for the user.

    Methods come here through more frames than functions do, of Equinox too.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("t3", "equinox"):
        level, frame = level + 1, frame.f_back
    return level

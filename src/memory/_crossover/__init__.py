"""Two ways of doing one thing, chosen by a measured size: the choice, its measurement, its file."""

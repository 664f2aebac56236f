"""One run: the function, its coordinates, its start, its state and its steps."""

"""What is measured of a tensor, and the transposes of that."""

"""Ways of summing over all pairs of particles, and the choice between them."""

"""Sums over pairs of leaves of a tree, particle by particle or node by node."""

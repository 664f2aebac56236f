"""Sums over the cells of lattices, by proxies."""

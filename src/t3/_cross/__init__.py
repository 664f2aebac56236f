"""Tensors of functions, from chosen entries."""

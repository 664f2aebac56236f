"""Tensors fitted to measurements."""

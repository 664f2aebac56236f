"""Judging an answer, and repairing it: moves that keep a posterior, identities, searches for modes."""

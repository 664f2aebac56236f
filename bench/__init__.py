"""Benchmarks: `python -m bench run`, `table`, `compare`, `crossovers`, `plots`, `posteriors`."""

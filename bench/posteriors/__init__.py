"""Posteriors whose answer is known: `python -m bench posteriors`, and `evaluate` for experiments.

from bench import posteriors

posterior = posteriors.POSTERIORS["banana"]
state = svgd.SVGD().run(posterior.log_density, posterior.start(1000))
print(posteriors.evaluate("banana", state.particles))
print(posteriors.independent("banana", 1000))
"""

from bench.posteriors import models, shapes
from bench.posteriors.command import main
from bench.posteriors.posterior import POSTERIORS, Posterior
from bench.posteriors.reference import Errors, draws, evaluate, independent, reference, signed

__all__ = [
    "POSTERIORS",
    "Errors",
    "Posterior",
    "draws",
    "evaluate",
    "independent",
    "main",
    "models",
    "reference",
    "shapes",
    "signed",
]

"""How far particles are from the reference, and how far as many independent draws are."""

import dataclasses
import functools

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr, ndtri

from bench.posteriors.posterior import DATA, POSTERIORS, Posterior

# Even in normal scores, so that tails are as fine as the middle.
SCORES = np.linspace(-3.7, 3.7, 149)
LEVELS = ndtr(SCORES)
# The levels whose errors count.
ASKED = np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
_SETS = 20


@dataclasses.dataclass(frozen=True)
class Reference:
    """What is known of a posterior, each parameter's.

    Attributes:
        mean, deviation: (d,).
        quantiles: at LEVELS, (levels, d).
        correlation: of the normal scores, (d, d).
    """

    mean: np.ndarray
    deviation: np.ndarray
    quantiles: np.ndarray
    correlation: np.ndarray

    def draws(self, rng: Generator, n: int) -> np.ndarray:
        """Independent draws with these marginals, joined by the correlation of normal scores."""
        factor = np.linalg.cholesky(self.correlation + 1e-6 * np.eye(len(self.mean)))
        scores = rng.standard_normal((n, len(self.mean))) @ factor.T
        columns = zip(scores.T, self.quantiles.T, strict=True)
        return np.stack([np.interp(z, SCORES, knots) for z, knots in columns], axis=1)

    def levels(self, draws: np.ndarray) -> np.ndarray:
        """The distribution function of each parameter at its draws, (n, d)."""
        columns = zip(draws.T, self.quantiles.T, strict=True)
        return np.stack([ndtr(np.interp(x, knots, SCORES)) for x, knots in columns], axis=1)


@dataclasses.dataclass(frozen=True)
class Errors:
    """The errors of a set of particles, worst over the parameters.

    Attributes:
        mean: in reference standard deviations.
        deviation: relative.
        quantile: in reference standard deviations, over 1, 5, 25, 50, 75, 95 and 99 %.
        distance: Kolmogorov and Smirnov's, of the marginals.
        worst: the parameter of the largest error of a deviation.
    """

    mean: float
    deviation: float
    quantile: float
    distance: float
    worst: str = ""

    @property
    def wrong(self) -> bool:
        """A mean off by a tenth of a standard deviation, or a standard deviation by a tenth."""
        return not (self.mean <= 0.1 and self.deviation <= 0.1)

    def __str__(self) -> str:
        return (
            f"mean {self.mean:.3f}, sd {self.deviation:.1%}, quantiles {self.quantile:.2f}, "
            f"KS {self.distance:.3f}" + (f" (sd of {self.worst})" if self.worst else "")
        )


@functools.lru_cache(maxsize=64)
def reference(name: str) -> Reference:
    """The reference of a posterior, from the file that is kept."""
    with np.load(DATA / f"reference-{name.replace(' ', '-')}.npz") as file:
        mean, deviation = file["mean"], file["deviation"]
        quantiles = mean + deviation * file["standard_quantiles"].astype(np.float64)
        return Reference(mean, deviation, quantiles, file["correlation"].astype(np.float64))


def evaluate(name: str, particles) -> Errors:
    """The errors of particles (n, d), in the posterior's coordinates."""
    return _errors(reference(name), POSTERIORS[name].parameters, particles)


def signed(name: str, particles) -> tuple[np.ndarray, np.ndarray]:
    """Each parameter's error of the mean, in standard deviations, and relative one of the deviation."""
    known, x = reference(name), np.asarray(particles, np.float64)
    return (x.mean(0) - known.mean) / known.deviation, x.std(0) / known.deviation - 1


@functools.lru_cache(maxsize=256)
def independent(name: str, num_particles: int) -> Errors:
    """The median errors of 20 sets of as many independent draws."""
    found = [
        evaluate(name, draws(POSTERIORS[name], np.random.default_rng(seed), num_particles))
        for seed in range(_SETS)
    ]
    keys = ("mean", "deviation", "quantile", "distance")
    return Errors(*(float(np.median([getattr(one, key) for one in found])) for key in keys))


def draws(posterior: Posterior, rng: Generator, n: int) -> np.ndarray:
    """Independent draws, (n, d): exact ones where there are."""
    if posterior.draws is not None:
        return posterior.draws(rng, n)
    return reference(posterior.name).draws(rng, n)


def _errors(known: Reference, names: tuple[str, ...], particles) -> Errors:
    x = np.asarray(particles, np.float64)
    n, d = x.shape
    if d != len(names):
        raise ValueError(f"particles have {d} parameters; expected {len(names)}: {names}")
    if not np.isfinite(x).all():
        return Errors(np.inf, np.inf, np.inf, 1.0)
    mean = np.abs(x.mean(0) - known.mean) / known.deviation
    deviation = np.abs(x.std(0) / known.deviation - 1)
    columns = zip(known.quantiles.T, strict=True)
    wanted = np.stack([np.interp(ndtri(ASKED), SCORES, knots) for (knots,) in columns], axis=1)
    quantile = np.abs(np.quantile(x, ASKED, axis=0) - wanted) / known.deviation
    levels = np.sort(known.levels(x), axis=0)
    steps = np.arange(n + 1)[:, None] / n
    distance = np.maximum(levels - steps[:-1], steps[1:] - levels).max()
    return Errors(
        float(mean.max()),
        float(deviation.max()),
        float(quantile.max()),
        float(distance),
        names[int(deviation.argmax())],
    )

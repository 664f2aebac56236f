"""What a posterior of the table is: a log-density, a start, exact draws, a stored reference."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from numpy.random import Generator

DATA = Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True)
class Posterior:
    """One posterior of the table, in coordinates without bounds.

    Attributes:
        name: as it is asked for.
        about: one line for the table.
        parameters: the names of its d coordinates.
        log_density: of one point (d,), up to a constant, in the point's dtype.
        draws: `draws(rng, n)` gives n independent draws, (n, d) float64; None where there is no way
            to make them, and the reference is a long run of NUTS.
        deviations: the parameters', where heavy tails make draws say little of them and means are
            0; or None.
        shape: "one" mode, "many" modes, or a "neck" that no fixed step reaches the end of.
    """

    name: str
    about: str
    parameters: tuple[str, ...]
    log_density: Callable
    draws: Callable[[Generator, int], np.ndarray] | None
    shape: str = "one"
    deviations: tuple[float, ...] | None = None

    @property
    def dimension(self) -> int:
        return len(self.parameters)

    def start(self, num_particles: int, seed: int = 0, dtype="float32") -> jax.Array:
        """N(0, I) in the model's own coordinates, wherever the posterior is."""
        return jax.random.normal(jax.random.key(seed), (num_particles, self.dimension), dtype)


POSTERIORS: dict[str, Posterior] = {}


def register(posterior: Posterior) -> Posterior:
    """Adds it to the table."""
    if posterior.name in POSTERIORS:
        raise ValueError(f"there are two posteriors called {posterior.name}")
    POSTERIORS[posterior.name] = posterior
    return posterior


def observations(name: str) -> dict[str, np.ndarray]:
    """The arrays of a data set that is kept beside the code, in float64."""
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key].astype(np.float64) for key in file.files}


def indexed(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}[{k + 1}]" for k in range(count))

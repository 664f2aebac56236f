"""What is judged: a deterministic log-density or score, and points of the user's coordinates."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, PyTree

from svgd._run.layout import ParticleLayout, lay_out
from svgd._run.state import SVGDState
from svgd._run.target import Target, as_target


class Subject(NamedTuple):
    """A target with its particles, (n, d), and their layout."""

    target: Target
    points: Float[Array, "n d"]
    layout: ParticleLayout


def subject(
    log_density: Callable, particles: PyTree | SVGDState, batched: bool, kind: str, purpose: str
) -> Subject:
    """Reads the arguments that `diagnose` and `refine` share.

    Raises:
        ValueError: on a state of a stochastic run: a Metropolis test needs one density.
    """
    if isinstance(particles, SVGDState):
        if particles.key_data is not None:
            raise ValueError(
                f"{purpose} needs a deterministic log-density, but the state is of a stochastic run: "
                "pass state.particles and the log-density of all data"
            )
        particles = particles.particles
    layout, points = lay_out(particles)
    return Subject(as_target(log_density, layout, points, None, batched, kind), points, layout)

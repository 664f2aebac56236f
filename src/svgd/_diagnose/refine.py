"""Last moves: Metropolis-adjusted Hamiltonian moves of every particle, which repair tails."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from memory import checked_key
from svgd._diagnose import moves
from svgd._diagnose.subject import subject
from svgd._run.layout import ParticleLayout
from svgd._run.state import SVGDState


class Refinement(eqx.Module):
    """What `refine` returns.

    Attributes:
        points: the particles, one row each, (n, d).
        acceptance: mean acceptance of full-size moves; near 0.8 where all went well.
        unmoved: how many particles never moved.
        step_size: of the leapfrog steps at the end, in standard deviations of the particles.
        state: the state that was given, with the particles moved; None where particles were given.
        layout: how a point is the user's pytree.
    """

    points: Float[Array, "n d"]
    acceptance: float
    unmoved: int
    step_size: float
    state: SVGDState | None
    layout: ParticleLayout = eqx.field(static=True)

    @property
    def particles(self) -> PyTree:
        """The particles in the user's own structure."""
        return self.layout.unravel(self.points)

    def __repr__(self) -> str:
        n = self.points.shape[0]
        return (
            f"Refinement of {n:,} particles: acceptance {self.acceptance:.2f}, step size "
            f"{self.step_size:.2g} standard deviations, {self.unmoved:,} particles never moved"
        )


def refine(
    log_density: Callable,
    particles: PyTree | SVGDState,
    key: Array,
    num_steps: int = 20,
    *,
    batched: bool = False,
    kind: str = "auto",
) -> Refinement:
    """Moves every particle by Hamiltonian Monte Carlo, which leaves the posterior unchanged.

    A step is one trajectory of eight leapfrog steps and a Metropolis test, in coordinates whitened by
    the covariance of the particles; the step size adapts to an acceptance of 0.8, and two moves in
    five are made with a quarter or a sixteenth of it. Particles that were the posterior's stay so;
    others drift towards it: tails fill, and particles that were lost come home. From then on they are
    independent draws, with the fluctuations of such: the even spacing of a Stein update is lost.

    Args:
        log_density: as in `SVGD.run`, deterministic, and not a score.
        particles: a state, or particles in the form of `SVGD.run`.
        key: of the moves.
        num_steps: moves of each particle.
        batched, kind: as in `SVGD.run`.

    Raises:
        ValueError: on a score, a state of a stochastic run, or no steps.

    Cost:
        8 gradients of every particle a step.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    target, points, layout = subject(log_density, particles, batched, kind, "refine")
    if not target.is_log_density:
        raise ValueError("refine needs a log-density, for the Metropolis test; got a score")
    whitening = moves.robust_whitening(target, points)
    d = points.shape[1]
    zeros, ones = jnp.zeros(d, points.dtype), jnp.ones(d, points.dtype)
    chains = moves.begin(target, whitening, points)
    count = jax.device_put(np.int32(num_steps))
    chains, window = moves.advance(target, whitening, chains, checked_key(key), count, zeros, ones)
    moved = whitening.unwhiten(chains.points)
    # Coordinates that were whitened and back would change a particle that never moved by rounding.
    moved = jnp.where(chains.moved[:, None], moved, points)
    state = None
    if isinstance(particles, SVGDState):
        z = particles.whitening.whiten(moved)
        state = eqx.tree_at(lambda s: s.points, particles, z)
    return Refinement(
        moved,
        float(window.rate),
        int(jnp.sum(~chains.moved)),
        float(jnp.exp(chains.log_step)),
        state,
        layout,
    )

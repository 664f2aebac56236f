"""Hamiltonian moves with a Metropolis test, of all particles at once, in whitened coordinates."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from svgd._run.target import Target
from svgd._run.whitening import Whitening, from_particles

# Leapfrog steps of a move: about a quarter of a period of a standard normal at the step that follows.
LEAPS = 8
# Full-size moves are accepted this often. All particles share one step, so a move's rate is known
# well enough to correct the step by it at once.
_ACCEPTED = 0.8
_GAIN = 0.7
_FIRST_STEP = 0.3
# Factors of a particle's step, drawn anew for each move: small ones reach into necks where the common
# step is always rejected.
_FACTORS = (1.0, 1.0, 1.0, 0.25, 0.0625)
FULL_SIZE = 3 / 5
# The share of particles of lowest density that a covariance leaves out: a few that are lost far out
# would stretch it.
_LEFT_OUT = 0.05


class Chains(eqx.Module):
    """Where each particle's chain stands.

    Attributes:
        points: in whitened coordinates, (n, d).
        values: log-densities, (n,).
        scores: in whitened coordinates, (n, d).
        log_step: of the leapfrog steps.
        accepted: full-size moves accepted since the count began, (n,).
        moved: whether a particle ever moved, (n,).
    """

    points: Float[Array, "n d"]
    values: Float[Array, " n"]
    scores: Float[Array, "n d"]
    log_step: Float[Array, ""]
    accepted: Int[Array, " n"]
    moved: Array


class Window(eqx.Module):
    """Means over the moves of a window, particle by particle, of standardised parameters.

    Attributes:
        first: mean of y, (n, d).
        second: mean of y^2, (n, d).
        rate: mean acceptance of full-size moves.
    """

    first: Float[Array, "n d"]
    second: Float[Array, "n d"]
    rate: Float[Array, ""]


@eqx.filter_jit
def robust_whitening(target: Target, points: Float[Array, "n d"]) -> Whitening:
    """The covariance of the particles but for those of lowest density."""
    n = points.shape[0]
    values = target.log_densities(points, None)
    values = jnp.where(jnp.isnan(values), -jnp.inf, values)
    kept = jnp.argsort(-values)[: max(1, n - int(_LEFT_OUT * n))]
    return from_particles(points[kept])


@eqx.filter_jit
def begin(target: Target, whitening: Whitening, points: Float[Array, "n d"]) -> Chains:
    """Chains that start at points of the user's coordinates."""
    z = whitening.whiten(points)
    values, scores = _evaluate(target, whitening, z)
    n = z.shape[0]
    return Chains(
        z,
        values,
        scores,
        jnp.log(jnp.asarray(_FIRST_STEP, z.dtype)),
        jnp.zeros(n, jnp.int32),
        jnp.zeros(n, bool),
    )


@eqx.filter_jit
def advance(
    target: Target,
    whitening: Whitening,
    chains: Chains,
    key: Array,
    num_moves: Array,
    center: Float[Array, " d"],
    scale: Float[Array, " d"],
) -> tuple[Chains, Window]:
    """Makes moves, and takes means of y = (x - center) / scale over them.

    Args:
        target: a log-density, of the user's coordinates.
        whitening: whose coordinates momenta are standard normal in.
        chains: where they stand; acceptance is counted anew.
        key: of momenta, steps and tests.
        num_moves: an int32, so that every number shares one program.
        center, scale: (d,), of the means.

    Cost:
        LEAPS scores of every particle a move.
    """
    chains = eqx.tree_at(lambda c: c.accepted, chains, jnp.zeros_like(chains.accepted))
    zeros = jnp.zeros_like(chains.points)

    def body(index, carry):
        chains, first, second, rates = carry
        chains, rate = _move(target, whitening, chains, jax.random.fold_in(key, index))
        y = (whitening.unwhiten(chains.points) - center[None, :]) / scale[None, :]
        return chains, first + y, second + y**2, rates + rate

    carry = (chains, zeros, zeros, jnp.zeros((), zeros.dtype))
    chains, first, second, rates = jax.lax.fori_loop(0, num_moves, body, carry)
    count = jnp.maximum(num_moves, 1).astype(zeros.dtype)
    return chains, Window(first / count, second / count, rates / count)


def _evaluate(target, whitening, z):
    values, pullback = jax.vjp(lambda z: target.log_densities(whitening.unwhiten(z), None), z)
    (scores,) = pullback(jnp.ones_like(values))
    return values, scores


def _move(target, whitening, chains, key):
    z, dtype = chains.points, chains.points.dtype
    n = z.shape[0]
    of_momentum, of_factor, of_jitter, of_test = jax.random.split(key, 4)
    momentum = jax.random.normal(of_momentum, z.shape, dtype)
    factor = jax.random.choice(of_factor, jnp.asarray(_FACTORS, dtype), (n, 1))
    # A random length keeps trajectories from closing on themselves.
    jitter = jax.random.uniform(of_jitter, (n, 1), dtype, 0.5, 1.2)
    step = jnp.exp(chains.log_step) * factor * jitter

    def leap(_, carry):
        z, momentum, _, scores = carry
        momentum = momentum + 0.5 * step * scores
        z = z + step * momentum
        values, scores = _evaluate(target, whitening, z)
        return z, momentum + 0.5 * step * scores, values, scores

    start = (z, momentum, chains.values, chains.scores)
    there, final, values, scores = jax.lax.fori_loop(0, LEAPS, leap, start)
    gain = values - chains.values + 0.5 * jnp.sum(momentum**2 - final**2, axis=1)
    gain = jnp.where(jnp.isnan(gain), -jnp.inf, gain)
    accept = jnp.log(jax.random.uniform(of_test, (n,), dtype)) < gain
    full = factor[:, 0] == 1
    chance = jnp.minimum(1, jnp.exp(jnp.minimum(gain, 0)))
    rate = jnp.sum(jnp.where(full, chance, 0)) / jnp.maximum(jnp.sum(full.astype(dtype)), 1)
    moved = Chains(
        jnp.where(accept[:, None], there, z),
        jnp.where(accept, values, chains.values),
        jnp.where(accept[:, None], scores, chains.scores),
        chains.log_step + _GAIN * (rate - _ACCEPTED),
        chains.accepted + (accept & full).astype(jnp.int32),
        chains.moved | accept,
    )
    return moved, rate

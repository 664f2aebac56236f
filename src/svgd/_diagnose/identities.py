"""Stein's identities, and the kernel Stein discrepancy beside its value for independent draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import kernels
from svgd._diagnostics import ksd
from svgd._run.target import Target
from svgd._run.whitening import Whitening

_MOST_PARTICLES = 1000


class Identities(eqx.Module):
    """Means that are 0 under the posterior, in coordinates where the particles are standard.

    Attributes:
        score: the largest entry of the mean of s.
        matrix: the largest entry of the mean of z s^T + I, its sign kept.
        matrix_uncertainty: its standard error were the particles independent.
        where: its row and column.
        tail: the largest entry of the mean of z^3 s + 3 z^2, which weighs tails, over its standard
            deviation.
        discrepancy: the kernel Stein discrepancy, inverse multiquadric of width sqrt(d).
        independent: its root mean square for as many independent draws.
    """

    score: float
    matrix: float
    matrix_uncertainty: float
    where: tuple[int, int]
    tail: float
    discrepancy: float
    independent: float


def identities(
    target: Target, whitening: Whitening, points: Float[Array, "n d"], key: Array
) -> Identities:
    """Evaluates them over all particles, the discrepancy over at most 1,000.

    Cost:
        One score of each particle, O(n d^2), and 1,000^2 d.
    """
    n = points.shape[0]
    chosen = jnp.arange(min(n, _MOST_PARTICLES))
    if n > _MOST_PARTICLES:
        chosen = jax.random.choice(key, n, (_MOST_PARTICLES,), replace=False)
    score, matrix, error, place, tail, value, other = _evaluate(target, whitening, points, chosen)
    row, column = np.unravel_index(int(place), (points.shape[1],) * 2)
    return Identities(
        float(score),
        float(matrix),
        float(error),
        (int(row), int(column)),
        float(tail),
        float(value),
        float(other),
    )


@eqx.filter_jit
def _evaluate(target, whitening, points, chosen):
    n, d = points.shape
    z = whitening.whiten(points)
    s = whitening.whiten_score(target.score(points, None))
    matrix = jnp.matmul(z.T, s, precision=jax.lax.Precision.HIGHEST) / n + jnp.eye(d, dtype=z.dtype)
    place = jnp.argmax(jnp.abs(matrix))
    row, column = place // d, place % d
    error = jnp.std(z[:, row] * s[:, column]) / n**0.5
    tails = z**3 * s + 3 * z**2
    spread = jnp.std(tails, axis=0)
    tail = jnp.max(jnp.abs(jnp.mean(tails, axis=0)) / jnp.where(spread > 0, spread, 1))
    kernel = kernels.InverseMultiquadric(jnp.asarray(d**0.5, z.dtype))
    few, theirs = z[chosen], s[chosen]
    value = ksd(few, theirs, kernel)
    _, slope, _ = kernel.derivatives(jnp.zeros((), z.dtype))
    # The V-statistic of n independent draws is E u(x, x) / n in the mean. u(x, x) = |s|^2 - 2 f'(0)
    # trace(M), and the trace of the metric I / d is 1.
    own = jnp.mean(jnp.sum(theirs**2, axis=1)) - 2 * slope
    return (
        jnp.max(jnp.abs(jnp.mean(s, axis=0))),
        matrix.ravel()[place],
        error,
        place,
        tail,
        value,
        jnp.sqrt(own / few.shape[0]),
    )

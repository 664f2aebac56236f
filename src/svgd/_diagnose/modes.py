"""Modes that dispersed searches find, with Laplace's estimate of their mass, and who is near them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from svgd._run.target import Target
from svgd._run.whitening import Whitening

_SEARCHES = 24
# How far out they start, in standard deviations of the particles.
_WIDTHS = (1.0, 3.0, 8.0)
_STEPS = 400
_RATE = 0.5
_NEWTON_STEPS = 12
# Newton decrement that counts as arrived.
_ARRIVED = 1e-2
_MOST_MODES = 6
# Hessians of d gradients each: beyond this dimension modes are not searched for.
LARGEST_DIMENSION = 128


class Modes(eqx.Module):
    """Maxima of the log-density, the one of most mass first.

    Attributes:
        points: in the user's coordinates, (k, d).
        log_masses: log of each one's mass by Laplace's approximation, relative to the largest, (k,).
        near: the share of particles within the reach of its normal approximation, (k,).
        num_searches: how many were made.
        lost: the mass, as a share of that of all modes found, of those that no particle is near.
        clear: whether lost modes have e^10 times the mass of the others.
    """

    points: np.ndarray
    log_masses: np.ndarray
    near: np.ndarray
    num_searches: int
    lost: float
    clear: bool


def search(
    target: Target, whitening: Whitening, points: Float[Array, "n d"], key: Array
) -> Modes | None:
    """Ascends from 24 points around the particles, one to eight standard deviations out.

    Returns:
        What was found; None without a log-density, or in more than 128 dimensions.

    Cost:
        400 scores of 24 points, a dozen Hessians for each of up to six ends.
    """
    n, d = points.shape
    if not target.is_log_density or d > LARGEST_DIMENSION:
        return None
    of_choice, of_start = jax.random.split(key)
    chosen = jax.random.choice(of_choice, n, (_SEARCHES,))
    widths = jnp.asarray(np.resize(_WIDTHS, _SEARCHES), points.dtype)
    noise = jax.random.normal(of_start, (_SEARCHES, d), points.dtype)
    starts = jnp.where(widths[:, None] == 1, whitening.whiten(points[chosen]), noise)
    ends, values = _ascend(target, whitening, widths[:, None] * starts)
    ends, values = np.asarray(ends, np.float64), np.asarray(values, np.float64)
    found: list[tuple[np.ndarray, np.ndarray, float]] = []
    tried: list[np.ndarray] = []
    for place in np.argsort(-np.where(np.isfinite(values), values, -np.inf)):
        known = [np.sum((ends[place] - other) ** 2) < 0.1 for other in tried]
        if not np.isfinite(values[place]) or any(known):
            continue
        if len(tried) == _MOST_MODES:
            break
        tried.append(ends[place])
        mode = _polish(target, whitening, jnp.asarray(ends[place], points.dtype))
        if mode is not None and not any(_same(mode, other) for other in found):
            found.append(mode)
    if not found:
        return Modes(np.zeros((0, d)), np.zeros(0), np.zeros(0), _SEARCHES, 0.0, False)
    found.sort(key=lambda mode: -mode[2])
    z = np.asarray(whitening.whiten(points), np.float64)
    reach = d + 6 * np.sqrt(2 * d) + 6
    distances = [np.sum(((z - mode) @ factor) ** 2, axis=1) for mode, factor, _ in found]
    near = np.array([np.mean(distance < reach) for distance in distances])
    logs = np.array([mass for _, _, mass in found])
    share = np.exp(logs - logs.max())
    share /= share.sum()
    empty = near == 0
    gap = logs[empty].max() - logs[~empty].max() if empty.any() and not empty.all() else 0.0
    centers = jnp.asarray(np.stack([mode for mode, _, _ in found]), points.dtype)
    return Modes(
        np.asarray(whitening.unwhiten(centers)),
        logs - logs.max(),
        near,
        _SEARCHES,
        float(share[empty].sum()) if not empty.all() else 0.0,
        bool(gap > 10),
    )


@eqx.filter_jit
def _ascend(target, whitening, z):
    """Adam from many points at once, its rate falling to nothing; points that are not finite stay."""
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, _STEPS), b2=0.9)

    def step(_, carry):
        z, state = carry
        scores = whitening.whiten_score(target.score(whitening.unwhiten(z), None))
        scores = jnp.where(jnp.isfinite(scores), scores, 0)
        change, state = optimizer.update(-scores, state)
        return optax.apply_updates(z, change), state

    with jax.numpy_dtype_promotion("standard"):
        z, _ = jax.lax.fori_loop(0, _STEPS, step, (z, optimizer.init(z)))
    return z, target.log_densities(whitening.unwhiten(z), None)


def _polish(target, whitening, z):
    """Newton's method: the mode, the factor of its precision, log of its mass; None where none is."""
    value, decrement, factor = jnp.nan, jnp.inf, None
    for _ in range(_NEWTON_STEPS):
        step, decrement, factor, value = _newton(target, whitening, z)
        if not np.isfinite(float(decrement)):
            return None
        if float(decrement) <= _ARRIVED:
            break
        z = z + step
    if not float(decrement) <= _ARRIVED or factor is None:
        return None
    factor = np.asarray(factor, np.float64)
    mass = float(value) - float(np.sum(np.log(np.diagonal(factor))))
    return np.asarray(z, np.float64), factor, mass


@eqx.filter_jit
def _newton(target, whitening, z):
    def value(z):
        return target.log_density(whitening.unwhiten(z[None, :])[0], None)

    gradient = jax.grad(value)(z)
    precision = -jax.hessian(value)(z)
    lower = jnp.linalg.cholesky((precision + precision.T) / 2)
    half = solve_triangular(lower, gradient, lower=True)
    step = solve_triangular(lower, half, lower=True, trans=1)
    return step, half @ half, lower, value(z)


def _same(one, other) -> bool:
    """Whether two modes lie within a tenth of a standard deviation of each other."""
    return bool(np.sum(((one[0] - other[0]) @ other[1]) ** 2) < 0.1)

"""Where moves that keep the posterior take the particles: how far off their moments were."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from svgd._diagnose import moves
from svgd._run.target import Target

# Moves before and in the window of each look: the latter half of all moves so far counts.
_LOOKS = ((20, 20), (0, 40), (0, 80))
_MOST_PARTICLES = 1000
# What a particle's mean over a window may remember of its start before nothing can be said.
_REMEMBERED = 0.95
# A particle that accepts fewer of its moves than this is held in a place that they cannot leave.
_HELD = 0.05


class Drift(eqx.Module):
    """How far the particles' moments are from where moves took them, each parameter's.

    Attributes:
        mean_error, deviation_error: (d,), in standard deviations of the moved particles; relative.
        mean_uncertainty, deviation_uncertainty: standard errors, (d,).
        memory: the largest regression of a particle's mean over the window on its start.
        deviation_error_held: the deviations' error where held particles count among the moved.
        held: the share of particles that the moves cannot move. They count in the particles' moments,
            not in those of the moved.
        num_moves: of each particle.
        acceptance: of full-size moves in the window.
        moved: the chains' last points, in the user's coordinates.
    """

    mean_error: np.ndarray
    deviation_error: np.ndarray
    mean_uncertainty: np.ndarray
    deviation_uncertainty: np.ndarray
    memory: float
    deviation_error_held: np.ndarray
    held: float
    num_moves: int
    acceptance: float
    moved: Array


def drift(target: Target, points: Array, key: Array, decided) -> Drift:
    """Moves up to 1,000 of the particles until `decided(drift)` is true, or 160 times.

    Chains that start in the posterior stay in it, so particles that are right are found right after
    any number of moves. Others are on their way: what the mean of f over a window still remembers of
    its start, the slope b of a regression over particles, extends E f(window) to its limit by
    (E f(window) - b E f(start)) / (1 - b), whose standard error grows by the same factor.
    """
    n = points.shape[0]
    of_choice, of_moves = jax.random.split(key)
    chosen = points
    if n > _MOST_PARTICLES:
        chosen = points[jax.random.choice(of_choice, n, (_MOST_PARTICLES,), replace=False)]
    whitening = moves.robust_whitening(target, points)
    center = whitening.center
    factor = whitening.factor
    scale = factor if factor.ndim == 1 else jnp.sqrt(jnp.sum(factor**2, axis=1))
    chains = moves.begin(target, whitening, chosen)
    everyone = np.asarray((points - center[None, :]) / scale[None, :], np.float64)
    start = np.asarray((chosen - center[None, :]) / scale[None, :], np.float64)
    total = 0
    found = None
    for before, length in _LOOKS:
        for count in (before, length):
            of_moves, of_block = jax.random.split(of_moves)
            steps = jax.device_put(np.int32(count))
            block = moves.advance(target, whitening, chains, of_block, steps, center, scale)
            chains, total = block[0], total + count
        window = block[1]
        held = np.asarray(chains.accepted) < _HELD * length
        some = np.ones_like(held)
        kept = _moments(everyone, start, window, some)
        values = kept if held.all() else _moments(everyone, start, window, ~held)
        found = Drift(
            *values,
            kept[1],
            float(held.mean()),
            total,
            float(window.rate),
            whitening.unwhiten(chains.points),
        )
        if decided(found):
            break
    assert found is not None
    return found


def _moments(everyone, start, window, free):
    """The first five fields of a `Drift`, from the free chains' standardised parameters."""
    first = np.asarray(window.first, np.float64)[free]
    second = np.asarray(window.second, np.float64)[free]
    start = start[free]
    center = first.mean(0)
    mean, mean_error, remembered = _limit(start, first)
    squares = second - 2 * center * first + center**2
    square, square_error, again = _limit((start - center) ** 2, squares)
    deviation = np.sqrt(np.maximum(square - (mean - center) ** 2, 1e-12))
    ratio = everyone.std(0) / deviation
    return (
        (everyone.mean(0) - mean) / deviation,
        ratio - 1,
        mean_error / deviation,
        ratio * square_error / (2 * deviation**2),
        float(max(remembered.max(), again.max())),
    )


def _limit(start, after):
    """The limit of E after, its standard error, and what `after` remembers of `start`."""
    spread = start.var(0)
    slope = np.mean((start - start.mean(0)) * (after - after.mean(0)), axis=0)
    slope = np.clip(slope / np.where(spread > 0, spread, 1), 0, _REMEMBERED)
    limit = (after.mean(0) - slope * start.mean(0)) / (1 - slope)
    error = after.std(0) / np.sqrt(len(after)) / (1 - slope)
    return limit, error, slope

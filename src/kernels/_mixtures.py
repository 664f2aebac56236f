"""Powers as positive mixtures of Gaussians, which sums over cells can use.

A profile that is completely monotone in r^2 is a mixture of Gaussians over their rates a. The
trapezoidal rule in log a makes it a short sum, exponentially accurate in its step. Of a power,

    (1 + r^2 / (2 c))^-b = 1 / Gamma(b) int (c a)^b exp(-c a) exp(-a r^2 / 2) d log a.
"""

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The check grid has no point at the very maximum: with this many points it misses less than 2 %.
_CHECK_MARGIN = 1.05
_CHECK_POINTS = 600


@lru_cache(maxsize=64)
def power_rates(
    exponent: float, offset: float, tolerance: float, radius: float
) -> tuple[float, ...] | None:
    """Rates of Gaussians whose sum is (1 + r^2 / (2 c))^-b up to `tolerance`, for r up to `radius`.

    Rates so small that their Gaussian is flat over the whole radius are lumped into the first.

    Args:
        exponent: b.
        offset: c.
        tolerance: largest error over [0, radius].
        radius: the largest scaled distance.

    Returns:
        Rates, ascending, whose weights `power_weights` knows; None where no sum is that accurate
        (below about 1e-9). From 4 to 25 for b = 1/2, tolerances from 1e-1 to 1e-6, radii up to 1e4.

    Source: Beylkin and Monzon, "Approximation by exponential sums revisited", 2010, section 2.
    """
    if tolerance <= 0:
        return None
    largest = max(radius, 1e-1) ** 2
    squares = np.concatenate([[0.0], np.geomspace(min(1e-4, largest), largest, _CHECK_POINTS)])
    exact = (1 + squares / (2 * offset)) ** -exponent
    for step in np.geomspace(3.0, 0.02, 74):
        for shift in (0.0, 0.25, 0.5, 0.75):
            rates = _nodes(step, shift, exponent, offset, tolerance, largest)
            if rates.shape[0] in (0, 2):
                # The ratio of two is not the step, from which weights are found.
                continue
            weights = _weights(np, rates, exponent, offset, math.lgamma(exponent))
            error = np.abs(np.exp(-0.5 * np.outer(squares, rates)) @ weights - exact).max()
            if weights[0] > 0 and _CHECK_MARGIN * error <= tolerance:
                return tuple(map(float, rates))
    return None


def power_weights(
    rates: tuple[float, ...] | Float[Array, " g"],
    exponent: Float[Array, ""],
    offset: Float[Array, ""],
) -> Float[Array, " g"]:
    """The weights of Gaussians of these rates; positive, they add up to 1, so the sum is exact at 0.

    Differentiable in the exponent and the offset.
    """
    nodes = jnp.asarray(rates, exponent.dtype)
    return _weights(jnp, nodes, exponent, offset, jax.scipy.special.gammaln(exponent))


def _weights(xp, rates, exponent, offset, log_gamma):
    # The first is of all that are flat, so it has what the others leave.
    scaled = offset * rates[1:]
    step = xp.log(rates[-1] / rates[-2]) if rates.shape[0] > 1 else 0.0
    rest = step * xp.exp(exponent * xp.log(scaled) - scaled - log_gamma)
    return xp.concatenate([1 - xp.sum(rest, keepdims=True), rest])


def _nodes(step, shift, exponent, offset, tolerance, largest):
    log_scaled = (np.arange(-400, 400) + shift) * step
    end = math.log(exponent + 30 * math.sqrt(exponent) + 400)
    scaled = np.exp(log_scaled[(log_scaled > -80) & (log_scaled < end)])
    rates = scaled / offset
    weights = step * np.exp(exponent * np.log(scaled) - scaled - math.lgamma(exponent))
    flat = rates * largest < 0.2 * np.sqrt(tolerance)
    head = weights[flat].sum()
    tail = rates[(weights > 1e-3 * tolerance) & ~flat]
    if head == 0:
        return tail
    # One Gaussian for the flat end, with their mean rate.
    return np.concatenate([[(weights[flat] * rates[flat]).sum() / head], tail])

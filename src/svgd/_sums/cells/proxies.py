"""Low-rank forms of a radial profile between boxes: weighted Chebyshev proxies, Gaussian mixtures.

A Gaussian is entire and separable. Over a box of half-width kappa (in bandwidths) it is carried by a
few polynomials an axis, whatever lies on its other side, and what two boxes do to each other is one
small matrix an axis. Along one axis, with u and v the offsets of a target and a source from the
middles of their boxes, which are `shift` apart,

    exp(-a (u - v + shift)^2 / 2)  is about  w(u) w(v) sum_jk T_j(u / kappa) C_jk T_k(v / kappa)

with Chebyshev polynomials T and w(u) = exp(-b a u^2). The matrix C is the least-squares fit on
Chebyshev points. The weight b = 1/4 makes the error nearly that of the best approximation of the
same rank (two polynomials an axis fewer than b = 0 at 1e-3 over wide boxes), because what is left
after it, exp(u v - (u^2 + v^2) / 4), is as flat as a symmetric factor can make it. It is a product
over axes, so it costs a single exponential for each particle.
"""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Points of the least-squares fit, and of the grid on which its error is measured, along one axis.
_FIT_POINTS = 64
_CHECK_POINTS = 129
# The check grid has no point at the very maximum: with this many points it misses less than 2 %.
_CHECK_MARGIN = 1.05

FLAT_WEIGHT = 0.25
NO_WEIGHT = 0.0


def chebyshev(t: Float[Array, "*shape"], count: int, *, axis: int = -1) -> Float[Array, "*out"]:
    """The Chebyshev polynomials T_0 .. T_{count-1} at `t`, stacked along a new `axis`.

    Cost: one multiply and add a value, by T_{a+b} = 2 T_a T_b - T_{|a-b|}.
    """
    values = [jnp.ones_like(t), t]
    for k in range(2, count):
        low = k // 2
        values.append(2 * values[low] * values[k - low] - values[k - 2 * low])
    return jnp.stack(values[:count], axis=axis)


def chebyshev_slopes(
    t: Float[Array, "*shape"], count: int, *, axis: int = -1
) -> Float[Array, "*out"]:
    """The derivatives of `chebyshev(t, count)` in t, by T'_k = 2 T_{k-1} + 2 t T'_{k-1} - T'_{k-2}."""
    values = [jnp.ones_like(t), t]
    slopes = [jnp.zeros_like(t), jnp.ones_like(t)]
    for k in range(2, count):
        values.append(2 * t * values[-1] - values[-2])
        slopes.append(2 * (values[k - 1] + t * slopes[k - 1]) - slopes[k - 2])
    return jnp.stack(slopes[:count], axis=axis)


@lru_cache(maxsize=512)
def translations(
    rate: float, half_width: float, reach: int, count: int, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """Matrices that turn the moments of one box into the field in a box beside it, along one axis.

    Args:
        rate: a of the profile exp(-a u^2 / 2).
        half_width: kappa, half the edge of every box.
        reach: boxes lie 2 kappa apart; steps from -reach to reach are covered.
        count: Chebyshev polynomials for each axis.
        weight: b of the weight exp(-b a u^2).

    Returns:
        (values, slopes), each (2 reach + 1, count, count) in float64, read-only. Entry [s, k, j]
        takes moment k of the source box to coefficient j of the target box, where the source box is
        s - reach boxes further along the axis. `values` is for the profile, `slopes` for
        a (u - v) times the profile, (u - v) from source to target.
    """
    nodes = np.cos((np.arange(_FIT_POINTS) + 0.5) * np.pi / _FIT_POINTS)
    fit = np.linalg.pinv(_basis(nodes, rate, half_width, count, weight))
    steps = np.arange(-reach, reach + 1)[:, None, None]
    # Target minus source: the source box is `steps` boxes further along.
    gap = half_width * (nodes[:, None] - nodes[None, :]) - 2 * half_width * steps
    profile = np.exp(-0.5 * rate * gap**2)
    # [s, target j, source k] -> [s, k, j], the order in which moments are contracted.
    values = np.swapaxes(fit @ profile @ fit.T, 1, 2)
    slopes = np.swapaxes(fit @ (rate * gap * profile) @ fit.T, 1, 2)
    for table in (values, slopes):
        table.setflags(write=False)
    return values, slopes


def _basis(nodes, rate, half_width, count, weight):
    polynomials = np.polynomial.chebyshev.chebvander(nodes, count - 1)
    return polynomials * np.exp(-weight * rate * (half_width * nodes) ** 2)[:, None]


@lru_cache(maxsize=4096)
def axis_error(rate: float, half_width: float, reach: int, count: int, weight: float) -> float:
    """The largest error of `translations` along one axis, over all pairs within `reach` boxes.

    Measured on a Chebyshev grid that contains the ends of the box, where the error peaks.
    """
    grid = np.cos(np.linspace(0, np.pi, _CHECK_POINTS))
    basis = _basis(grid, rate, half_width, count, weight)
    values, _ = translations(rate, half_width, reach, count, weight)
    worst = 0.0
    # The steps s and -s mirror each other.
    for step in range(reach + 1):
        gap = half_width * (grid[:, None] - grid[None, :]) - 2 * half_width * step
        approximate = basis @ values[reach + step].T @ basis.T
        worst = max(worst, float(np.abs(approximate - np.exp(-0.5 * rate * gap**2)).max()))
    return _CHECK_MARGIN * worst


def product_error(error: float, dimension: int) -> float:
    """A bound on the error of a product of `dimension` factors of size at most 1, each off by `error`.

    |prod (f_a + e_a) - prod f_a| <= (1 + e)^d - 1.
    """
    return float(np.expm1(dimension * np.log1p(error)))


def support_radius(tolerance: float) -> float:
    """The distance, in bandwidths, beyond which exp(-r^2 / 2) is below `tolerance`."""
    return float(np.sqrt(2 * np.log(1 / tolerance)))


@lru_cache(maxsize=64)
def inverse_multiquadric_mixture(
    tolerance: float, radius: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Gaussians whose sum is (1 + r^2 / 2)^(-1/2) up to `tolerance`, for r up to `radius`.

    The trapezoidal rule in log t for

        (1 + r^2 / 2)^(-1/2) = pi^(-1/2) int_0^inf t^(-1/2) exp(-t) exp(-t r^2 / 2) dt,

    which converges exponentially. Rates so small that their Gaussian is flat over the whole radius
    are lumped into one; the weights are positive and add up to 1, so that the sum is exact at 0.

    Args:
        tolerance: largest error over [0, radius].
        radius: the largest distance in bandwidths.

    Returns:
        (weights, rates): the sum is sum_c weights[c] exp(-rates[c] r^2 / 2), rates ascending. From
        4 to 25 terms for tolerances from 1e-1 to 1e-6 and radii up to 1e4.

    Source: Beylkin and Monzon, "Approximation by exponential sums revisited", 2010, section 2.
    """
    squares = np.concatenate([[0.0], np.geomspace(1e-4, max(radius, 1e-1) ** 2, 600)])
    squares = squares[squares <= max(radius, 1e-1) ** 2]
    exact = (1 + squares / 2) ** -0.5
    for step in np.geomspace(3.0, 0.2, 40):
        for shift in (0.0, 0.25, 0.5, 0.75):
            weights, rates = _trapezoid(step, shift, tolerance, squares[-1])
            error = np.abs(np.exp(-0.5 * np.outer(squares, rates)) @ weights - exact).max()
            if _CHECK_MARGIN * error <= tolerance:
                return tuple(map(float, weights)), tuple(map(float, rates))
    raise ValueError(f"no mixture of Gaussians reaches tolerance {tolerance}: ask for 1e-9 or more")


def _trapezoid(step, shift, tolerance, largest):
    log_rates = (np.arange(-400, 60) + shift) * step
    log_rates = log_rates[(log_rates > -80) & (log_rates < 6)]
    rates = np.exp(log_rates)
    weights = step / np.sqrt(np.pi) * np.exp(0.5 * log_rates - rates)
    keep = weights > tolerance * 1e-3
    # One Gaussian for the flat end: same total weight, same mean rate.
    flat = rates * largest < 0.2 * np.sqrt(tolerance)
    merged = flat & (np.cumsum(weights) > 0)
    head_weight = weights[merged].sum()
    if head_weight > 0:
        head_rate = (weights[merged] * rates[merged]).sum() / head_weight
        tail = keep & ~merged
        weights = np.concatenate([[head_weight], weights[tail]])
        rates = np.concatenate([[head_rate], rates[tail]])
    else:
        weights, rates = weights[keep], rates[keep]
    return weights / weights.sum(), rates

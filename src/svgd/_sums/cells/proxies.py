"""Low-rank forms of a Gaussian between boxes: weighted Chebyshev proxies.

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

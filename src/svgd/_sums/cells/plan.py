"""Parameters of sums over cells that meet a tolerance, the cheapest first."""

import dataclasses
from functools import lru_cache

import numpy as np

from svgd._sums.cells import proxies
from svgd._sums.costs import cells_seconds

# The part of the tolerance at which a Gaussian is dropped. Dropped tails all have the same sign and
# add up, while interpolation errors alternate: at equal size they disturb the update ten times as
# much (n = 1e5, d = 3: 1e-3 dropped 1.1e-3, 3e-3 interpolated 5e-4), so they get a tenth.
_DROPPED_SHARE = 0.1
_MAX_COUNT = 16
_MAX_REACH = 3
# Proxies are limited to so many bytes of moments and fields in all.
_MAX_PROXY_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class CellPlan:
    """Parameters of a sum over cells, and what it is predicted to cost.

    Attributes:
        count: p, Chebyshev polynomials an axis.
        half_width: kappa of the finest cells.
        cutoff: distance in bandwidths of a Gaussian beyond which it is dropped.
        weight: b of the proxies' weight exp(-b |u|^2).
        widest: kappa times the square root of a Gaussian's rate is at most this.
        weights, rates: the mixture of Gaussians.
        error: bound on the kernel's error from interpolation and mixture.
        reach: steps of the lattice within the cutoff.
        cells: occupied cells, estimated from a sample.
        seconds: predicted time.
    """

    count: int
    half_width: float
    cutoff: float
    weight: float
    widest: float
    weights: tuple[float, ...]
    rates: tuple[float, ...]
    error: float
    reach: int
    cells: int
    seconds: float


def mixture(kernel, tolerance: float, radius: float):
    """(weights, rates, bound on the error) of Gaussians that are the kernel; None if it is not any."""
    bound = 0.0
    rates = kernel.mixture(bound, radius)
    if rates is None:
        bound = tolerance / 2
        rates = kernel.mixture(bound, radius)
    if rates is None:
        return None
    return tuple(np.asarray(kernel.mixture_weights(rates), np.float64).tolist()), rates, bound


def cell_plans(kernel, tolerance: float, sample, sides, n: int, dtype) -> list[CellPlan]:
    """Parameters that meet the tolerance, the cheapest first.

    The rule: a Gaussian of rate a is dropped where it is below a tenth of the tolerance, and
    interpolated elsewhere with p polynomials an axis in cells of half-width kappa, such that the
    error of the product over axes, (1 + e(p, kappa sqrt(a)))^d - 1, is at most the tolerance; e is
    the measured error along one axis. Mixtures by quadrature get half the tolerance for it and half
    for the rest. Every pair is either dropped or interpolated, so the kernel's error is at most the
    tolerance.

    Args:
        kernel: the kernel.
        tolerance: bound on the kernel's error.
        sample: scaled coordinates of some particles, (m, d), from which cells are counted.
        sides: extents of all particles along each axis, in scaled coordinates, (d,).
        n: particles in all.
        dtype: of the particles.
    """
    dimension = sample.shape[1]
    extent = float(np.max(sides)) * (1 + 1e-4)
    found = mixture(kernel, tolerance, float(np.linalg.norm(sides)))
    if found is None:
        return []
    weights, rates, bound = found
    single = len(rates) == 1
    budget = tolerance - bound
    weight = proxies.FLAT_WEIGHT if single else proxies.NO_WEIGHT
    cutoff = proxies.support_radius(min(_DROPPED_SHARE * tolerance, 0.5))
    fastest = max(rates)
    columns = np.ascontiguousarray(sample.T)
    counted = {}
    plans = []
    for reach in range(_MAX_REACH + 1):
        for count in range(1, _MAX_COUNT + 1):
            if count**dimension * (2 * dimension + 1) * np.dtype(dtype).itemsize > 2**22:
                break
            widest = widest_cell(budget, dimension, reach, count, weight)
            if widest is None:
                continue
            if reach == 0:
                # One cell holds all particles, with what room the tolerance leaves for moves.
                if not single or extent > 2 * widest:
                    continue
            elif 2 * reach * widest < cutoff:
                continue
            half_width = widest / np.sqrt(fastest)
            if half_width not in counted:
                counted[half_width] = _count_cells(columns, 2 * half_width) if reach else 1
            cells = counted[half_width]
            seconds = cells_seconds(count, reach, len(rates), cells, n, dimension, dtype)
            error = proxies.product_error(
                proxies.axis_error(1.0, widest, reach, count, weight), dimension
            )
            plans.append(
                CellPlan(
                    count=count,
                    half_width=float(half_width),
                    cutoff=cutoff,
                    weight=weight,
                    widest=float(widest),
                    weights=weights,
                    rates=rates,
                    error=tolerance - budget + error,
                    reach=reach,
                    cells=cells,
                    seconds=seconds,
                )
            )
            if cells <= 2**dimension:
                # More polynomials would not make fewer cells.
                break
    return sorted(plans, key=lambda plan: plan.seconds)


def _count_cells(columns, edge):
    key = np.zeros(columns.shape[1], np.int64)
    for row in columns:
        cells = np.floor(row / edge)
        cells -= cells.min()
        # Wraps around where cells are far apart: two may then share a key, in an estimate.
        key = key * np.int64(min(cells.max() + 1, 2.0**62)) + cells.astype(np.int64)
    key.sort()
    counts = np.diff(np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1], [True]])))
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    # Cells that the sample missed, by how many it met once and twice (Chao, 1984).
    return int(counts.shape[0] + once * max(once - 1, 0) / (2 * (twice + 1)))


# Half-widths that are tried, in bandwidths.
_WIDTHS = tuple(np.geomspace(0.1, 8.0, 56))


@lru_cache(maxsize=4096)
def widest_cell(
    tolerance: float, dimension: int, reach: int, count: int, weight: float
) -> float | None:
    """The widest half-width whose proxies meet the tolerance; None where not even 0.1 does."""
    low, high = -1, len(_WIDTHS)
    while high - low > 1:
        middle = (low + high) // 2
        error = proxies.axis_error(1.0, float(_WIDTHS[middle]), reach, count, weight)
        if proxies.product_error(error, dimension) <= tolerance:
            low = middle
        else:
            high = middle
    return None if low < 0 else float(_WIDTHS[low])

"""The lattices of a sum over cells, from the finest to the coarsest: built on the host."""

import numpy as np
from jaxtyping import Int

from svgd._sums.blocks import pad_rows, size_class
from svgd._sums.cells import proxies
from svgd._sums.cells.lattice import coarsen, sweep_tables
from svgd._sums.cells.plan import CellPlan
from svgd._sums.cells.sweeps import Level


def build_levels(
    positions: Int[np.ndarray, "cells d"], plan: CellPlan, dtype, least: int = 0
) -> tuple[tuple[Level, ...], int, int] | None:
    """The lattices that a plan's Gaussians are summed on.

    Args:
        positions: occupied cells of the finest.
        plan: from `cell_plans`.
        dtype: of the particles.
        least: rows of the finest level's arrays, padding included, where as many serve.

    Returns:
        The levels, and the counts of sweep entries and of directed pairs of cells. None where the
        cells cannot be numbered.
    """
    rates = np.array(plan.rates)
    # The coarsest level at which a Gaussian's cells are still narrow enough for the proxies.
    level_of = np.floor(np.log2(plan.widest / (plan.half_width * np.sqrt(rates))) + 1e-6)
    single = len(rates) == 1
    levels, entries, far_pairs = [], 0, 0
    # Counted from a corner, so that halving ends in a single cell.
    positions = positions - positions.min(0)
    depth = 0
    while True:
        extents = positions.max(0) - positions.min(0)
        top = single or not extents.any() or depth >= level_of.max()
        mine = level_of >= depth if top else level_of == depth
        half_width = plan.half_width * 2**depth
        reach = 0
        if mine.any():
            reach = int(np.ceil(plan.cutoff / (2 * half_width * np.sqrt(rates[mine].min())) - 1e-6))
        reach = min(max(reach, plan.reach if single else 0), max(int(extents.max()), 0))
        tables = sweep_tables(positions, reach)
        if tables is None:
            return None
        largest = max(into.shape[0] for into in tables)
        size = size_class(largest + 1)
        if depth == 0 and largest < least <= 2 * size:
            size = least
        translations = [
            proxies.translations(float(rate), float(half_width), reach, plan.count, plan.weight)
            for rate in rates[mine]
        ]
        parents = parent = side = None
        if not top:
            parents, parent, side = coarsen(positions)
        levels.append(
            {
                "into": tuple(_padded(into, size) for into in tables),
                "values": _stack([values for values, _ in translations], reach, plan.count, dtype),
                "slopes": _stack([slopes for _, slopes in translations], reach, plan.count, dtype),
                "gaussians": np.flatnonzero(mine).astype(np.int32),
                "parent": parent,
                "side": side,
            }
        )
        if mine.any():
            entries += int(sum(np.sum(into >= 0) for into in tables))
            far_pairs += _count_pairs(positions, reach)
        if top:
            break
        positions = parents
        depth += 1
    # A missing parent is the coarser level's spare cell, whose moments nobody reads.
    for fine, coarse in zip(levels, levels[1:], strict=False):
        size = fine["into"][0].shape[0]
        fine["parent"] = pad_rows(fine["parent"], size, coarse["into"][0].shape[0] - 1)
        fine["side"] = pad_rows(fine["side"], size, 0)
    return tuple(Level(**level) for level in levels), entries, far_pairs


def _padded(table, size):
    return pad_rows(np.where(table < 0, size - 1, table).astype(np.int32), size, size - 1)


def _stack(tables, reach, count, dtype):
    if not tables:
        return np.zeros((0, 2 * reach + 1, count, count), dtype)
    return np.stack(tables).astype(dtype)


def _count_pairs(positions, reach):
    """Directed pairs of occupied cells within reach of each other, a cell with itself included."""
    shape = positions - positions.min(0) + reach
    extents = shape.max(0) + reach + 1
    if np.prod(extents.astype(np.float64)) > 2**26 or reach == 0:
        # Counting would cost more than summing: every cell with all neighbours is the upper bound.
        return positions.shape[0] * min(positions.shape[0], (2 * reach + 1) ** positions.shape[1])
    occupied = np.zeros(extents, np.int32)
    occupied[tuple(shape.T)] = 1
    total = occupied
    for axis in range(positions.shape[1]):
        summed = np.cumsum(total, axis=axis, dtype=np.int32)
        width = 2 * reach + 1
        shifted = np.zeros_like(summed)
        index = [slice(None)] * positions.shape[1]
        later, earlier = list(index), list(index)
        later[axis], earlier[axis] = slice(width, None), slice(None, -width)
        shifted[tuple(later)] = summed[tuple(earlier)]
        total = np.roll(summed - shifted, -reach, axis=axis)
    return int(total[tuple(shape.T)].sum())

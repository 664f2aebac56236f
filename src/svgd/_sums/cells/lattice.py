"""A lattice of cells over the particles, and the neighbours that sweeps read: built on the host."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from svgd._sums.blocks import stable_order

# Linear cell indices below this are sorted packed with the particle's number.
_PACKED_LIMIT = 2.0**32
_INDEX_LIMIT = 2.0**62


@dataclasses.dataclass(frozen=True)
class Lattice:
    """Occupied cells of a cubic lattice, in lexicographic order.

    Attributes:
        edge: the edge of every cell.
        positions: cell p covers [p, p + 1) edges from the corner along each axis, (cells, d).
        order: the particles, cell after cell, (n,).
        starts, counts: the range of each cell in `order`, (cells,).
    """

    edge: float
    positions: Int[np.ndarray, "cells d"]
    order: Int[np.ndarray, " n"]
    starts: Int[np.ndarray, " cells"]
    counts: Int[np.ndarray, " cells"]


def build_lattice(
    z: Float[np.ndarray, "d n"], edge: float, corner: Float[np.ndarray, " d"] | None = None
) -> Lattice | None:
    """Sorts particles into cells.

    Args:
        z: scaled coordinates, one contiguous row for each axis.
        edge: the edge of a cell.
        corner: a corner of the lattice; the origin when None, where coordinates are most exact.

    Returns:
        The lattice; None when its cells cannot be numbered in 62 bits.

    Cost: a few passes over the particles and one sort of 64-bit integers.
    """
    n = z.shape[1]
    places, extents = [], []
    for axis, row in enumerate(z):
        if corner is not None:
            row = row - corner[axis]
        cells = np.floor(row * row.dtype.type(1 / edge))
        low, high = cells.min(), cells.max()
        if max(abs(low), abs(high)) >= 2.0**31 - 1:
            return None
        places.append((cells.astype(np.int32), int(low)))
        extents.append(int(high) - int(low) + 1)
    codes, tables = [], []
    sparse = np.prod(np.array(extents, float)) >= _PACKED_LIMIT
    for cells, low in places:
        if sparse:
            # Outliers make a lattice wide but not its occupied part: number the distinct places.
            table, code = np.unique(cells, return_inverse=True)
            codes.append(code)
            tables.append(table.astype(np.int64))
        else:
            codes.append(cells - np.int32(low))
            tables.append(None)
    if sparse:
        extents = [table.shape[0] for table in tables]
        if np.prod(np.array(extents, float)) >= _INDEX_LIMIT:
            return None
    packed = np.prod(np.array(extents, float)) < _PACKED_LIMIT
    key = np.zeros(n, np.uint32 if packed else np.int64)
    for code, stride in zip(codes, _strides(extents), strict=True):
        key += code.astype(key.dtype) * key.dtype.type(stride)
    order, key = stable_order(key)
    starts = np.concatenate([[0], np.flatnonzero(key[1:] != key[:-1]) + 1])
    first = order[starts]
    positions = [
        table[code[first]] if sparse else cells[first].astype(np.int64)
        for (cells, _), code, table in zip(places, codes, tables, strict=True)
    ]
    counts = np.diff(np.append(starts, n))
    return Lattice(edge, np.stack(positions, 1), order, starts, counts)


def _strides(extents):
    strides = [1]
    for extent in reversed(extents[1:]):
        strides.append(strides[-1] * int(extent))
    return strides[::-1]


def coarsen(positions: Int[np.ndarray, "cells d"]):
    """Cells of twice the edge: (their positions, each cell's parent, its half of it per axis)."""
    parents, parent = np.unique(positions >> 1, axis=0, return_inverse=True)
    return parents, parent.reshape(-1).astype(np.int32), (positions & 1).astype(np.int32)


def sweep_tables(positions: Int[np.ndarray, "cells d"], reach: int):
    """Which cells each sweep reads, for the cells that lie on a way between two occupied ones.

    A sweep along axis a turns moments on its input cells into partial fields on its output cells.
    The outputs of the last are the occupied cells; before that, also empty cells from which a later
    sweep leads to an occupied one.

    Args:
        positions: occupied cells in lexicographic order.
        reach: neighbours from -reach to reach along each axis.

    Returns:
        For each axis the cells that it reads, see `svgd._sums.cells.sweeps.Level`; missing cells are -1. None
        when the cells cannot be numbered in 62 bits.
    """
    dimension = positions.shape[1]
    # A margin as wide as the reach, so that steps never wrap into the next row.
    places = positions - positions.min(0) + reach
    extents = places.max(0) + reach + 1
    if np.prod(extents.astype(np.float64)) >= _INDEX_LIMIT:
        places = np.stack([_close_gaps(column, reach) for column in positions.T], 1) + reach
        extents = places.max(0) + reach + 1
        if np.prod(extents.astype(np.float64)) >= _INDEX_LIMIT:
            return None
    strides = np.array(_strides(extents), np.int64)
    occupied = places @ strides
    steps = np.arange(-reach, reach + 1)

    # wanted[a]: cells from which steps along axes a.. lead to an occupied cell.
    wanted = [occupied] * (dimension + 1)
    for axis in reversed(range(1, dimension)):
        wanted[axis] = _spread(wanted[axis + 1], steps * strides[axis])
    tables = []
    inputs = occupied
    for axis in range(dimension):
        shifts = steps * strides[axis]
        outputs = occupied
        if axis < dimension - 1:
            outputs = _spread(inputs, shifts)
            outputs = outputs[_find(wanted[axis + 1], outputs) >= 0]
        tables.append(_find(inputs, outputs[:, None] + shifts[None, :]))
        inputs = outputs
    return tables


def _close_gaps(column, reach):
    """Positions along one axis with gaps wider than the reach cut to reach + 1."""
    distinct, code = np.unique(column, return_inverse=True)
    steps = np.minimum(np.diff(distinct), reach + 1)
    return np.concatenate([[0], np.cumsum(steps)])[code]


def _spread(keys, shifts):
    return np.unique(keys[:, None] + shifts[None, :])


def _find(keys, wanted):
    """Positions in the sorted `keys`, -1 where missing."""
    place = np.searchsorted(keys, wanted)
    place[place == keys.shape[0]] = 0
    return np.where(keys[place] == wanted, place, -1).astype(np.int32)

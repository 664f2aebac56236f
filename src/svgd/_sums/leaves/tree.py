"""A binary Morton tree: keys, one sort, and nodes level by level. On the host or on the device.

A node is a prefix of the keys, so its particles are one range of the sorted order and its halves meet
where a binary search says. Prefixes that do not split the particles are skipped, so every inner node
has two children. `build` runs in NumPy and `build_on_device` in JAX; they give equal arrays.
"""

import dataclasses
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from svgd._sums.blocks import stable_order

_KEY_BITS = 32


@dataclasses.dataclass(frozen=True)
class Tree:
    """Nodes in breadth-first order, the root first. Arrays are NumPy or JAX, by the builder.

    Attributes:
        order: the particles in the order of their keys, (n,).
        start, stop: the range of each node's particles in `order`, (nodes,).
        left, right: children, -1 at a leaf.
        lower, upper: tight boxes, (nodes, d).
        first_of_level: where each level starts, and the number of nodes; a tuple of ints.
    """

    order: Any
    start: Any
    stop: Any
    left: Any
    right: Any
    lower: Any
    upper: Any
    first_of_level: tuple[int, ...]


def key_axes(extents: Float[np.ndarray, " d"]) -> tuple[tuple[int, ...], int]:
    """The axes that are interleaved, widest last 32, and the bits of each."""
    dimension = extents.shape[0]
    if dimension <= _KEY_BITS:
        return tuple(range(dimension)), _KEY_BITS // dimension
    widest = np.argsort(-extents, kind="stable")[:_KEY_BITS]
    return tuple(int(axis) for axis in np.sort(widest)), 1


@lru_cache(maxsize=64)
def _spread_table(bits: int, stride: int) -> np.ndarray:
    """Each number of up to 16 bits with its bits `stride` apart."""
    numbers = np.arange(1 << bits, dtype=np.uint64)
    table = np.zeros_like(numbers)
    for bit in range(bits):
        table |= ((numbers >> np.uint64(bit)) & np.uint64(1)) << np.uint64(bit * stride)
    table = table.astype(np.uint32)
    table.setflags(write=False)
    return table


def _interleave(xp, cells, bits: int):
    """Morton keys (uint32) from one array of cells (uint32) for each axis; the first is highest."""
    stride = len(cells)
    if stride == 1:
        return cells[0]
    table = xp.asarray(_spread_table(bits, stride))
    key = xp.zeros(cells[0].shape, xp.uint32)
    for axis, cell in enumerate(cells):
        key = key | (table[cell] << xp.uint32(stride - 1 - axis))
    return key


def _keys(xp, z, lower, scale, axes, bits):
    limit = z.dtype.type(2.0**bits)
    cells = []
    for axis in axes:
        cell = (z[:, axis] - lower[axis]) * scale
        # The largest float below 2^bits, so that the conversion cannot leave the range.
        cells.append(xp.minimum(cell, xp.nextafter(limit, z.dtype.type(0))).astype(xp.uint32))
    return _interleave(xp, cells, bits)


def _scale(extent, bits, dtype):
    # One scale for all axes: cells are cubes, and thin directions are not cut.
    return dtype.type(2.0**bits / extent) if extent > 0 else dtype.type(0)


# ------------------------------------------------------------------------------------- host


def build(z: Float[np.ndarray, "n d"], leaf_size: int) -> Tree:
    """The tree of scaled coordinates, in NumPy.

    Args:
        z: scaled coordinates.
        leaf_size: nodes with at most so many particles are not split, nor are nodes whose particles
            share a key.
    """
    lower, upper = z.min(0), z.max(0)
    axes, bits = key_axes(np.asarray(upper - lower))
    scale = _scale(float((upper - lower).max()), bits, z.dtype)
    order, keys = stable_order(_keys(np, z, lower, scale, axes, bits))
    sorted_z = z[order]

    start, stop = [np.zeros(1, np.int32)], [np.full(1, z.shape[0], np.int32)]
    left, first = [], [0, 1]
    while start[-1].size:
        a, b = start[-1], stop[-1]
        low, high = keys[a], keys[b - 1]
        split = np.flatnonzero((b - a > leaf_size) & (low != high))
        children = np.full(a.shape[0], -1, np.int32)
        children[split] = first[-1] + 2 * np.arange(split.shape[0], dtype=np.int32)
        left.append(children)
        low, high = low[split], high[split]
        bit = (np.frexp((low ^ high).astype(np.float64))[1] - 1).astype(np.uint32)
        middle = np.searchsorted(keys, (high >> bit) << bit).astype(np.int32)
        start.append(np.stack([a[split], middle], 1).reshape(-1))
        stop.append(np.stack([middle, b[split]], 1).reshape(-1))
        first.append(first[-1] + 2 * split.shape[0])
    start, stop, left = (np.concatenate(rows) for rows in (start, stop, left))
    right = np.where(left < 0, -1, left + 1).astype(np.int32)

    leaves = np.flatnonzero(left < 0)
    leaves = leaves[np.argsort(start[leaves], kind="stable")]
    boxes = []
    for reduce in (np.minimum, np.maximum):
        box = np.empty((start.shape[0], z.shape[1]), z.dtype)
        box[leaves] = reduce.reduceat(sorted_z, start[leaves], axis=0)
        for level in range(len(first) - 2, -1, -1):
            nodes = np.arange(first[level], first[level + 1])
            inner = nodes[left[nodes] >= 0]
            box[inner] = reduce(box[left[inner]], box[right[inner]])
        boxes.append(box)
    return Tree(order, start, stop, left, right, boxes[0], boxes[1], tuple(first[:-1]))


# ----------------------------------------------------------------------------------- device


def _power_of_two(count: int) -> int:
    return 1 << max(3, int(count - 1).bit_length())


@partial(jax.jit, static_argnames=("axes", "bits"))
def _sorted_keys(z, lower, scale, axes, bits):
    keys = _keys(jnp, z, lower, scale, axes, bits)
    keys, order = jax.lax.sort(
        (keys, jnp.arange(z.shape[0], dtype=jnp.int32)), num_keys=1, is_stable=True
    )
    return order, keys, z[order]


@partial(jax.jit, static_argnames=("leaf_size",))
def _level_on_device(keys, a, b, count, next_node, leaf_size):
    """One level, padded: children of each node and the ranges of the next level."""
    present = jnp.arange(a.shape[0], dtype=jnp.int32) < count
    low, high = keys[a], keys[b - 1]
    splits = present & (b - a > leaf_size) & (low != high)
    rank = jnp.cumsum(splits.astype(jnp.int32)) - 1
    left = jnp.where(splits, next_node + 2 * rank, -1).astype(jnp.int32)
    split = jnp.nonzero(splits, size=a.shape[0], fill_value=0)[0]
    low, high = low[split], high[split]
    bit = (31 - jax.lax.clz(jnp.maximum(low ^ high, jnp.uint32(1)))).astype(jnp.uint32)
    middle = jnp.searchsorted(keys, (high >> bit) << bit).astype(jnp.int32)
    start = jnp.stack([a[split], middle], 1).reshape(-1)
    stop = jnp.stack([middle, b[split]], 1).reshape(-1)
    return left, start, stop, 2 * jnp.sum(splits)


@partial(jax.jit, static_argnames=("leaves",))
def _boxes_on_device(z, start, left, first, leaves):
    """Tight boxes: leaves by segments of the sorted particles, inner nodes level by level."""
    is_leaf = left < 0
    leaf = jnp.nonzero(is_leaf, size=leaves)[0]
    leaf = leaf[jnp.argsort(start[leaf], stable=True)]
    marks = jnp.zeros(z.shape[0], jnp.int32).at[start[leaf]].add(1)
    segment = jnp.cumsum(marks) - 1
    boxes = []
    for reduce, pair in ((jax.ops.segment_min, jnp.minimum), (jax.ops.segment_max, jnp.maximum)):
        box = jnp.zeros((start.shape[0], z.shape[1]), z.dtype)
        box = box.at[leaf].set(reduce(z, segment, leaves, indices_are_sorted=True))
        depth = first.shape[0] - 1

        def lift(i, box, pair=pair, depth=depth):
            level = depth - 1 - i
            node = jnp.arange(box.shape[0], dtype=jnp.int32)
            inner = (node >= first[level]) & (node < first[level + 1]) & ~is_leaf
            joined = pair(box[jnp.maximum(left, 0)], box[jnp.maximum(left, 0) + 1])
            return jnp.where(inner[:, None], joined, box)

        boxes.append(jax.lax.fori_loop(0, depth, lift, box))
    return boxes


def build_on_device(z, leaf_size: int) -> Tree:
    """As `build`, in JAX; of each level only its number of nodes comes to the host."""
    z = jnp.asarray(z)
    lower, upper = jnp.min(z, axis=0), jnp.max(z, axis=0)
    # The extents choose static axes and the scale; d numbers.
    extents = np.asarray(upper - lower)
    axes, bits = key_axes(extents)
    scale = _scale(float(extents.max()), bits, z.dtype)
    order, keys, sorted_z = _sorted_keys(z, lower, scale, axes, bits)

    a, b = jnp.zeros(8, jnp.int32), jnp.full(8, z.shape[0], jnp.int32)
    count, first = 1, [0, 1]
    starts, stops, lefts = [], [], []
    while count:
        left, start, stop, following = _level_on_device(
            keys, a, b, count, jnp.int32(first[-1]), leaf_size
        )
        starts.append(a[:count])
        stops.append(b[:count])
        lefts.append(left[:count])
        count = int(following)
        width = _power_of_two(count)
        fill = width - min(width, start.shape[0])
        a = jnp.pad(start[:width], (0, fill))
        b = jnp.pad(stop[:width], (0, fill), constant_values=1)
        first.append(first[-1] + count)
    start, stop, left = (jnp.concatenate(rows) for rows in (starts, stops, lefts))
    right = jnp.where(left < 0, -1, left + 1).astype(jnp.int32)
    leaves = (start.shape[0] + 1) // 2
    lower, upper = _boxes_on_device(
        sorted_z, start, left, jnp.asarray(first[:-1], jnp.int32), leaves
    )
    return Tree(order, start, stop, left, right, lower, upper, tuple(first[:-1]))

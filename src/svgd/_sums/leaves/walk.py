"""The dual walk: which pairs of leaves are near, which pairs of nodes are far. On host or device.

A whole frontier of unordered node pairs at a time, from (root, root). A pair beyond the radius is
dropped; with an opening angle, a pair whose larger box is smaller than theta times the gap is far and
nothing is dropped; two leaves are near; otherwise the larger box that is not a leaf is split. Every
unordered pair of particles ends up in exactly one dropped, far or near pair.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svgd._sums.leaves.tree import Tree, _power_of_two


class Walk(NamedTuple):
    """Unordered pairs of nodes, in the order in which the walk met them. NumPy or JAX arrays."""

    near_first: Any
    near_second: Any
    far_first: Any
    far_second: Any


def _classify(xp, barrier, box, a, b, leaf, radius2, theta2):
    """near, far and split masks of a frontier, and whether the first of each pair is split."""
    lower, upper, size2 = box
    gap2 = xp.zeros(a.shape, lower.dtype)
    for k in range(lower.shape[1]):
        gap = xp.maximum(lower[b, k] - upper[a, k], lower[a, k] - upper[b, k])
        gap = xp.maximum(gap, xp.zeros_like(gap))
        # Rounded before it is added, so that host and device decide alike.
        gap2 = gap2 + barrier(gap * gap)
    same = a == b
    dropped = ~same & (gap2 > radius2)
    larger = xp.maximum(size2[a], size2[b])
    far = ~same & ~dropped & (larger < barrier(theta2 * gap2))
    open_ = ~dropped & ~far
    near = open_ & leaf[a] & leaf[b]
    split = open_ & ~near
    first = split & ~leaf[a] & (leaf[b] | (size2[a] >= size2[b]))
    return near, far, split & same, split & ~same & first, split & ~same & ~first


def _sizes(xp, barrier, tree):
    size2 = xp.zeros(tree.left.shape, tree.lower.dtype)
    for k in range(tree.lower.shape[1]):
        side = tree.upper[:, k] - tree.lower[:, k]
        size2 = size2 + barrier(side * side)
    return size2


def walk(tree: Tree, *, radius: float = np.inf, theta: float = 0.0) -> Walk:
    """The walk in NumPy.

    Args:
        tree: from `svgd._sums.leaves.tree.build`.
        radius: pairs of boxes further apart are dropped.
        theta: opening angle; 0 makes nothing far.
    """

    def keep(x):
        return x

    dtype = tree.lower.dtype.type
    leaf = tree.left < 0
    box = (tree.lower, tree.upper, _sizes(np, keep, tree))
    a = b = np.zeros(1, np.int32)
    out = [[], [], [], []]
    while a.size:
        near, far, same, first, second = _classify(
            np, keep, box, a, b, leaf, dtype(radius**2), dtype(theta**2)
        )
        for rows, part in zip(out, (a[near], b[near], a[far], b[far]), strict=True):
            rows.append(part)
        s, (fa, fb), (sa, sb) = a[same], (a[first], b[first]), (a[second], b[second])
        left, right = tree.left, tree.right
        a, b = (
            np.concatenate([left[s], left[s], right[s], left[fa], right[fa], sa, sa]),
            np.concatenate([left[s], right[s], right[s], fb, fb, left[sb], right[sb]]),
        )
    return Walk(*(np.concatenate(rows) for rows in out))


@jax.jit
def _step_on_device(box, children, a, b, count, radius2, theta2):
    """One frontier, padded: near and far pairs, the next frontier, and how many of each."""
    left, right = children
    width = a.shape[0]
    place = jnp.arange(width, dtype=jnp.int32)
    masks = _classify(jnp, jax.lax.optimization_barrier, box, a, b, left < 0, radius2, theta2)
    masks = [mask & (place < count) for mask in masks]
    counts = [jnp.sum(mask, dtype=jnp.int32) for mask in masks]
    rows = [jnp.nonzero(mask, size=width, fill_value=0)[0] for mask in masks]
    (near_a, near_b), (far_a, far_b), (s, _), (fa, fb), (sa, sb) = ((a[r], b[r]) for r in rows)
    same, first, second = counts[2:]
    parts = [
        (left[s], left[s], same),
        (left[s], right[s], same),
        (right[s], right[s], same),
        (left[fa], fb, first),
        (right[fa], fb, first),
        (sa, left[sb], second),
        (sa, right[sb], second),
    ]
    next_a = next_b = jnp.zeros(3 * width, a.dtype)
    total = jnp.zeros((), counts[0].dtype)
    for part_a, part_b, number in parts:
        target = jnp.where(place < number, total + place, 3 * width)
        next_a = next_a.at[target].set(part_a, mode="drop")
        next_b = next_b.at[target].set(part_b, mode="drop")
        total = total + number
    return (near_a, near_b), (far_a, far_b), (next_a, next_b), (counts[0], counts[1], total)


@partial(jax.jit, static_argnames=("length",))
def _joined_on_device(parts, counts, length):
    """The first counts[i] entries of each part, one after the other, padded to `length`."""
    present = [
        jnp.arange(part.shape[0], dtype=jnp.int32) < n
        for part, n in zip(parts, counts, strict=True)
    ]
    rows = jnp.nonzero(jnp.concatenate(present), size=length, fill_value=0)[0]
    return jnp.concatenate(parts)[rows]


def walk_on_device(tree: Tree, *, radius: float = np.inf, theta: float = 0.0) -> Walk:
    """As `walk`, in JAX; of each frontier only three counts come to the host."""
    lower, upper = jnp.asarray(tree.lower), jnp.asarray(tree.upper)
    children = jnp.asarray(tree.left), jnp.asarray(tree.right)
    tree = dataclasses.replace(tree, lower=lower, upper=upper, left=children[0])
    dtype = np.dtype(lower.dtype).type
    box = (lower, upper, _sizes(jnp, jax.lax.optimization_barrier, tree))
    a = b = jnp.zeros(8, jnp.int32)
    count = 1
    parts, counts = [[], [], [], []], [[], [], [], []]
    while count:
        near, far, following, numbers = _step_on_device(
            box, children, a, b, count, dtype(radius**2), dtype(theta**2)
        )
        near_count, far_count, count = (int(number) for number in numbers)
        for i, (part, number) in enumerate(
            zip((*near, *far), (near_count, near_count, far_count, far_count), strict=True)
        ):
            if number:
                parts[i].append(part)
                counts[i].append(number)
        width = _power_of_two(count)
        a, b = (jnp.pad(rows, (0, max(0, width - rows.shape[0])))[:width] for rows in following)
    out = []
    for part, number in zip(parts, counts, strict=True):
        total = sum(number)
        if total:
            out.append(_joined_on_device(part, number, _power_of_two(total))[:total])
        else:
            out.append(jnp.zeros(0, jnp.int32))
    return Walk(*out)


def expand(owner, start, count):
    """All (owner, member) entries of ranges, in order, without a loop over ranges; in NumPy.

    Args:
        owner: (ranges,), repeated for each member of its range.
        start, count: (ranges,), the members start .. start + count - 1.

    Returns:
        (owners, members), both (sum of counts,).
    """
    end = np.cumsum(count, dtype=np.int64)
    total = int(end[-1]) if end.size else 0
    owners = np.repeat(owner, count)
    members = np.arange(total, dtype=np.int64) + np.repeat(start - (end - count), count)
    return owners, members.astype(np.int32)


@partial(jax.jit, static_argnames=("total",))
def _expand_on_device(owner, start, count, total):
    end = jnp.cumsum(count)
    place = jnp.repeat(
        jnp.arange(count.shape[0], dtype=jnp.int32), count, total_repeat_length=total
    )
    members = jnp.arange(total, dtype=jnp.int32) - (end - count)[place] + start[place]
    return owner[place], members.astype(jnp.int32)


def expand_on_device(owner, start, count):
    """As `expand`, in JAX; only the number of entries comes to the host.

    The entries are computed in a power-of-two length and cut, so that lengths recompile rarely.
    """
    owner, start, count = (jnp.asarray(rows, jnp.int32) for rows in (owner, start, count))
    total = int(jnp.sum(count))
    if total == 0:
        return owner[:0], start[:0]
    owners, members = _expand_on_device(owner, start, count, _power_of_two(total))
    return owners[:total], members[:total]

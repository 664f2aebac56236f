"""The dual walk: which pairs of leaves are near, which pairs of nodes are far. On host or device.

A whole frontier of unordered node pairs at a time, from (root, root). A pair beyond the radius is
dropped; with an opening angle, a pair whose larger box is smaller than theta times the gap is far and
nothing is dropped; two leaves are near; otherwise the larger box that is not a leaf is split. Every
unordered pair of particles ends up in exactly one dropped, far or near pair.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svgd._tree import Tree, _power_of_two


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
        tree: from `svgd._tree.build`.
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
def _step_on_device(box, left, a, b, count, radius2, theta2):
    present = jnp.arange(a.shape[0]) < count
    masks = _classify(jnp, jax.lax.optimization_barrier, box, a, b, left < 0, radius2, theta2)
    masks = [mask & present for mask in masks]
    places = [jnp.nonzero(mask, size=a.shape[0], fill_value=0)[0] for mask in masks]
    return places, [jnp.sum(mask) for mask in masks]


def walk_on_device(tree: Tree, *, radius: float = np.inf, theta: float = 0.0) -> Walk:
    """As `walk`, in JAX; of each frontier only the five counts come to the host."""
    tree = jax.tree.map(jnp.asarray, vars(tree) | {"first_of_level": None})
    tree = Tree(**tree)
    dtype = tree.lower.dtype.type
    box = (tree.lower, tree.upper, _sizes(jnp, jax.lax.optimization_barrier, tree))
    left, right = tree.left, tree.right
    a = b = jnp.zeros(8, jnp.int32)
    count = 1
    out = [[], [], [], []]
    while count:
        places, counts = _step_on_device(
            box, left, a, b, count, dtype(radius**2), dtype(theta**2)
        )
        near, far, same, first, second = (
            place[: int(n)] for place, n in zip(places, counts, strict=True)
        )
        for rows, part in zip(out, (a[near], b[near], a[far], b[far]), strict=True):
            rows.append(part)
        s, (fa, fb), (sa, sb) = a[same], (a[first], b[first]), (a[second], b[second])
        a = jnp.concatenate([left[s], left[s], right[s], left[fa], right[fa], sa, sa])
        b = jnp.concatenate([left[s], right[s], right[s], fb, fb, left[sb], right[sb]])
        count = a.shape[0]
        padding = _power_of_two(count) - count
        a, b = jnp.pad(a, (0, padding)), jnp.pad(b, (0, padding))
    return Walk(*(jnp.concatenate(rows) for rows in out))


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
    place = jnp.repeat(jnp.arange(count.shape[0]), count, total_repeat_length=total)
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

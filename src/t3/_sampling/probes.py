"""Where a network is sampled: checks of the inputs, and the loop over chunks of probes."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import memory
from t3._tensor.packing import check_real, is_packed, stack_padded

Modes = Any  # d arrays, one a mode; or one array with a leading mode axis (stacked)


class Probes(eqx.Module):
    """W points and directions, the probe axes merged into one.

    Attributes:
        points: d arrays ``(W, N_i)``, or integer indices ``(W,)``; or stacked ``(d, W, N)``.
        directions: like float points, or None at order 0.
        shape: mode sizes.
        batch: the probe axes as the user gave them.
        n_shards: devices that the probes are split over, where that is known.
    """

    points: Modes
    directions: Modes | None
    shape: tuple[int, ...] = eqx.field(static=True)
    batch: tuple[int, ...] = eqx.field(static=True)
    n_shards: int = eqx.field(static=True, default=1)

    @property
    def count(self) -> int:
        return math.prod(self.batch)

    @property
    def stacked(self) -> bool:
        return is_packed(self.points)

    @property
    def indexed(self) -> bool:
        """Whether points are entries' indices."""
        return bool(jnp.issubdtype(self.points[0].dtype, jnp.integer))


def checked_order(order: Any) -> int:
    """The order as an int.

    Raises:
        ValueError: when it is negative, or no static integer.
    """
    try:
        if isinstance(order, bool):
            raise TypeError
        value = operator.index(order)
    except (TypeError, jax.errors.JAXTypeError):
        raise ValueError(f"order must be a static int from 0 on, got {order!r}.") from None
    if value < 0:
        raise ValueError(f"order must be a static int from 0 on, got {value}.")
    return value


def common_dtype(*trees: Any) -> np.dtype:
    """Widest floating point type among all arrays; integers do not count.

    Raises:
        ValueError: complex arrays.
    """
    dtypes = [
        leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        for leaf in jax.tree.leaves(trees)
    ]
    inexact = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)]
    dtype = np.result_type(*inexact)
    check_real("tensors, points, directions and residuals", dtype)
    return jax.dtypes.canonicalize_dtype(dtype)


def probe_shards(points: Modes) -> int:
    """Devices that probes are split over, read from the sharding of arrays that are not traced.

    The number of shares for `estimate_chunk_size`: ``n_shards=t3.probe_shards(ww)``.

    Args:
        points: d arrays ``(*W, N_i)``, or stacked ``(d, *W, N)``; or integer indices of entries, d
            arrays ``(*W,)`` or ``(d, *W)``.

    Returns:
        1 where nothing is split along a probe axis, or nothing is known: NumPy, traced arrays.
    """
    lead = 1 if is_packed(points) else 0
    shards = 1
    for point in [points] if lead else points:
        if isinstance(point, jax.Array) and not isinstance(point, jax.core.Tracer):
            trailing = 0 if jnp.issubdtype(point.dtype, jnp.integer) else 1
            axes = slice(lead, point.ndim - trailing)
            local = math.prod(point.sharding.shard_shape(point.shape)[axes])
            if local:
                shards = max(shards, -(-math.prod(point.shape[axes]) // local))
    return shards


def vector_probes(
    shape: Sequence[int], ww: Modes, pp: Modes | None, order: int, degree: int, dtype: np.dtype
) -> Probes:
    """Probes at vectors.

    Args:
        shape: mode sizes of the network.
        ww: d arrays ``(*W, N_i)``, or stacked ``(d, *W, N)``.
        pp: directions of the same shapes; may be None at order 0.
        order: highest derivative asked for.
        degree: 1 when directions make a difference.
        dtype: to compute in.

    Raises:
        ValueError: wrong number of modes, wrong mode sizes, unequal probe axes.
    """
    points = _vectors("ww", ww, shape, dtype)
    batch = _probe_axes("ww", points, 1)
    directions = None
    if pp is None:
        if order:
            raise ValueError(f"order {order} needs directions pp, got None.")
    else:
        directions = _vectors("pp", pp, shape, dtype)
        _same_shapes("ww", points, "pp", directions)
    merge = lambda family: _merge_axes(family, batch, 1)  # noqa: E731
    return Probes(
        merge(points),
        merge(directions) if degree else None,
        tuple(shape),
        batch,
        probe_shards(ww),
    )


def index_probes(
    shape: Sequence[int], index: Any, pp: Modes | None, order: int, dtype: np.dtype
) -> Probes:
    """Probes at entries: `index` is ``(d, *W)`` integers, or d integer arrays ``(*W)``.

    Raises:
        ValueError: as `vector_probes`, and for indices that are no integers, or out of range where
            their values are known.
    """
    d = len(shape)
    rows = list(index) if not hasattr(index, "shape") else [index[i] for i in range(len(index))]
    if len(rows) != d:
        raise ValueError(f"index needs {d} rows, one a mode, got {len(rows)}.")
    for i, (row, size) in enumerate(zip(rows, shape, strict=True)):
        # Values that lie on devices of other processes are as little known as traced ones.
        concrete = not isinstance(row, jax.core.Tracer)
        concrete = concrete and getattr(row, "is_fully_addressable", True)
        known = np.asarray(row) if concrete else row
        if not jnp.issubdtype(known.dtype, jnp.integer):
            raise ValueError(f"index must hold integers, got {known.dtype} for mode {i}.")
        if concrete and known.size and not (known.min() >= 0 and known.max() < size):
            raise ValueError(
                f"index of mode {i} must lie in 0 .. {size - 1} (mode size {size}), got values "
                f"from {known.min()} to {known.max()}."
            )
    points = tuple(jnp.asarray(row, jnp.int32) for row in rows)
    batch = _probe_axes("index", points, 0)
    directions = None
    if pp is None:
        if order:
            raise ValueError(f"order {order} needs directions pp, got None.")
    else:
        directions = _vectors("pp", pp, shape, dtype)
        if _probe_axes("pp", directions, 1) != batch:
            raise ValueError(
                f"pp must have the probe axes of index: index of mode 0 has shape {batch}, pp of "
                f"mode 0 has shape {jnp.shape(directions[0])}."
            )
    points = jnp.stack(points) if directions is not None and is_packed(directions) else points
    return Probes(
        _merge_axes(points, batch, 0),
        _merge_axes(directions, batch, 1) if order else None,
        tuple(shape),
        batch,
        probe_shards(index),
    )


def residual_jets(
    residual: Modes, probes: Probes, order: int, keep: int, dtype: Any, name: str = "residual"
) -> Modes:
    """Residual of a probe: d arrays ``(keep, W, N_i)``, orders above `keep` cut off.

    Errors call it by its `name`.

    Raises:
        ValueError: shapes other than ``(order + 1, *W, N_i)``.
    """
    arrays = _vectors(name, residual, probes.shape, dtype)
    expected = (order + 1, *probes.batch)
    for i in range(len(probes.shape)):
        if arrays[i].shape[:-1] != expected:
            raise ValueError(
                f"{name} of mode {i} has shape {arrays[i].shape}, expected (order + 1, *W, N) = "
                f"{(*expected, probes.shape[i])}."
            )
    if is_packed(arrays) != probes.stacked:
        raise ValueError(f"{name} and ww must both be d arrays, or both be stacked.")
    shape = lambda a: (*a.shape[: -len(expected) - 1], order + 1, probes.count, a.shape[-1])  # noqa: E731
    return jax.tree.map(lambda a: a.reshape(shape(a))[..., :keep, :, :], arrays)


def scalar_residual(
    residual: Any, probes: Probes, order: int, keep: int, dtype: Any, name: str = "residual"
) -> Any:
    """Residual of an apply or of entries: ``(keep, W)``. Errors call it by its `name`.

    Raises:
        ValueError: a shape other than ``(order + 1, *W)``.
    """
    check_real(name, jnp.result_type(residual))
    residual = jnp.asarray(residual, dtype)
    expected = (order + 1, *probes.batch)
    if residual.shape != expected:
        raise ValueError(
            f"{name} has shape {residual.shape}, expected (order + 1, *W) = {expected}."
        )
    return residual.reshape(order + 1, probes.count)[:keep]


def map_probes(
    fn: Callable[..., Any],
    probes: Probes,
    *extras: Any,
    packed: bool,
    chunk_size: int | None,
    keep_axis: int | None = None,
) -> Any:
    """Run a chunk function over all probes.

    Args:
        fn: of points, directions and extras of some probes, each in the storage of the network.
        probes: all of them.
        *extras: d arrays ``(T, W, anything)`` or stacked; or one ``(T, W)``.
        packed: the storage of the network.
        chunk_size: probes in a chunk.
        keep_axis: where results have their probes; None adds the results of all chunks.
    """
    empty = probes.count == 0
    families = (probes.points, probes.directions, *extras)
    axes = [-1 if _is_scalar(family) else -2 for family in families]
    if empty:
        # One row of zeros stands in: its sums are zero, and kept rows are cut off again.
        one = lambda axis: lambda a: jnp.zeros(_with_axis(a.shape, axis, 1), a.dtype)  # noqa: E731
        families = [jax.tree.map(one(axis), f) for f, axis in zip(families, axes, strict=True)]

    def stored(family):
        if family is None or is_packed(family) == packed:
            return family
        if packed:
            sizes = [max(a.shape[-1] for a in family)] if family[0].ndim > 1 else []
            return stack_padded(family, sizes)
        if family.ndim == 2:
            return tuple(family)
        return tuple(family[i][..., :size] for i, size in enumerate(probes.shape))

    def chunk(rows):
        # Slices are cut here, inside the loop, each at the axis where it has its probes. Handing
        # the arrays over as rows would need the probes in front: a copy of all residuals.
        first, size = rows[0], rows.shape[0]

        def cut(family, axis):
            def one(a):
                if a.shape[axis] == size:
                    return a
                return lax.dynamic_slice_in_dim(a, first, size, a.ndim + axis)

            return jax.tree.map(one, family)

        points, directions, *rest = (cut(f, axis) for f, axis in zip(families, axes, strict=True))
        rest = [f if _is_scalar(f) else stored(f) for f in rest]
        return fn(stored(points), stored(directions), *rest)

    rows = jnp.arange(max(probes.count, 1), dtype=jnp.int32)
    if keep_axis is None:
        return memory.map_sum(chunk, rows, chunk_size=chunk_size, checkpoint=True)
    kept = memory.map_concat(chunk, rows, chunk_size=chunk_size, checkpoint=True, axis=keep_axis)
    if empty:
        kept = jax.tree.map(lambda a: lax.slice_in_dim(a, 0, 0, axis=keep_axis % a.ndim), kept)
    return kept


def _is_scalar(family: Any) -> bool:
    """Whether each probe has one number (an index, or a residual of no mode) and no vector."""
    if hasattr(family, "ndim"):
        return family.ndim == 2
    leaves = jax.tree.leaves(family)
    return bool(leaves) and leaves[0].ndim == 1


def _with_axis(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    shape = list(shape)
    shape[axis] = size
    return tuple(shape)


def _vectors(name: str, family: Modes, shape: Sequence[int], dtype: np.dtype) -> Modes:
    """The family as arrays of `dtype`, its mode sizes checked."""
    d = len(shape)
    for leaf in jax.tree.leaves(family):
        check_real(name, jnp.result_type(leaf))
    if hasattr(family, "shape"):
        if family.ndim < 2 or family.shape[0] != d or family.shape[-1] != max(shape):
            raise ValueError(
                f"{name} as one array must have shape (d, ..., N) with d = {d} and the largest mode "
                f"size N = {max(shape)}, got {family.shape}; or give {d} arrays, one a mode."
            )
        if min(shape) != max(shape):
            mask = np.arange(max(shape)) < np.asarray(shape)[:, None]
            mask = mask.reshape(d, *[1] * (family.ndim - 2), max(shape))
            return jnp.where(mask, jnp.asarray(family, dtype), np.zeros((), dtype))
        return jnp.asarray(family, dtype)
    if not isinstance(family, Sequence):
        raise ValueError(f"{name} needs {d} arrays, one a mode, got {family!r}.")
    if len(family) != d:
        raise ValueError(f"{name} needs {d} arrays, one a mode, got {len(family)}.")
    arrays = tuple(jnp.asarray(array, dtype) for array in family)
    for i, (array, size) in enumerate(zip(arrays, shape, strict=True)):
        if array.ndim < 1 or array.shape[-1] != size:
            raise ValueError(
                f"{name} of mode {i} has shape {array.shape}, expected (..., {size}): the last axis "
                f"must be the mode size {size}."
            )
    return arrays


def _probe_axes(name: str, family: Modes, trailing: int) -> tuple[int, ...]:
    axes = [a.shape[: a.ndim - trailing] for a in family]
    for i, other in enumerate(axes):
        if other != axes[0]:
            raise ValueError(
                f"all modes of {name} must share their probe axes: mode 0 has shape "
                f"{family[0].shape}, mode {i} has shape {family[i].shape}."
            )
    return tuple(axes[0])


def _same_shapes(name: str, family: Modes, other_name: str, other: Modes) -> None:
    for i, (a, b) in enumerate(zip(family, other, strict=True)):
        if a.shape != b.shape:
            raise ValueError(
                f"{other_name} must have the shapes of {name}: mode {i} of {name} has shape "
                f"{a.shape}, of {other_name} {b.shape}."
            )
    if is_packed(family) != is_packed(other):
        raise ValueError(f"{name} and {other_name} must both be d arrays, or both be stacked.")


def _merge_axes(family: Modes, batch: tuple[int, ...], trailing: int) -> Modes:
    lead = 1 if is_packed(family) else 0

    def merge(a):
        return a.reshape(*a.shape[:lead], math.prod(batch), *a.shape[a.ndim - trailing :])

    return jax.tree.map(merge, family)

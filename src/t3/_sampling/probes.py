"""Where a network is sampled: checks of the inputs, and the loop over chunks of probes."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

import memory
from t3._sampling.jets import parameter_unit
from t3._tensor.packing import check_real, is_packed

Modes = Any  # d arrays, one a mode; or one array with a leading mode axis (stacked)


# An index that no mode has: it reads NaN, and is dropped where it would be written.
_INVALID = np.int32(np.iinfo(np.int32).max)


class AmbiguousIndexWarning(UserWarning):
    """As many entries as modes: an array of indices that fits both ways round."""


class Along(NamedTuple):
    """Arrays that are cut along their probes.

    Attributes:
        family: any tree of them, or None.
        axis: where all of them have their probes, counted from the end.
        by_mode: whether they are d arrays or one stacked: they are brought into the storage of the
            network.
    """

    family: Any
    axis: int
    by_mode: bool = True

    def map(self, fn: Callable[[Any, int], Any]) -> "Along":
        """``fn(array, axis)`` in place of every array."""
        return self._replace(family=jax.tree.map(lambda a: fn(a, self.axis), self.family))


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
        if isinstance(point, jax.Array) and not isinstance(point, Tracer):
            trailing = 0 if jnp.issubdtype(point.dtype, jnp.integer) else 1
            axes = slice(lead, point.ndim - trailing)
            local = math.prod(point.sharding.shard_shape(point.shape)[axes])
            if local:
                shards = max(shards, -(-math.prod(point.shape[axes]) // local))
    return shards


def vector_probes(
    shape: Sequence[int], ww: Modes, pp: Modes | None, order: int, count: int, dtype: np.dtype
) -> Probes:
    """Probes at vectors.

    Args:
        shape: mode sizes of the network.
        ww: d arrays ``(*W, N_i)``, or stacked ``(d, *W, N)``.
        pp: directions of the same shapes; may be None at order 0.
        order: highest derivative asked for.
        count: orders computed; where it is 1, directions make no difference.
        dtype: to compute in.

    Raises:
        ValueError: wrong number of modes, wrong mode sizes, unequal probe axes.
    """
    points = _vectors("ww", ww, shape, dtype)
    batch = _probe_axes("ww", points, 1)
    directions = _directions(pp, shape, order, dtype)
    if directions is not None:
        _same_shapes("ww", points, "pp", directions)
    return Probes(
        _merge_axes(points, batch, 1),
        _in_units(_merge_axes(directions, batch, 1), count),
        tuple(shape),
        batch,
        probe_shards(ww),
    )


def index_probes(
    shape: Sequence[int], index: Any, pp: Modes | None, order: int, count: int, dtype: np.dtype
) -> Probes:
    """Probes at entries: `index` is ``(d, *W)`` integers, or d integer arrays ``(*W)``.

    Raises:
        ValueError: as `vector_probes`, and for indices that are no integers, or out of range where
            their values are known.
    """
    d = len(shape)
    rows = list(index) if not hasattr(index, "shape") else [index[i] for i in range(len(index))]
    if len(rows) != d:
        across = (
            np.ndim(index) == 2 and np.shape(index)[1] == d if hasattr(index, "shape") else False
        )
        hint = " Its transpose has them: index.T." if across else ""
        raise ValueError(f"index needs {d} rows, one a mode, got {len(rows)}.{hint}")
    points = tuple(
        _checked_index(row, mode, size)
        for mode, (row, size) in enumerate(zip(rows, shape, strict=True))
    )
    _warn_of_square(index, shape)
    batch = _probe_axes("index", points, 0)
    directions = _directions(pp, shape, order, dtype)
    if directions is not None and _probe_axes("pp", directions, 1) != batch:
        raise ValueError(
            f"pp must have the probe axes of index: index of mode 0 has shape {batch}, pp of "
            f"mode 0 has shape {jnp.shape(directions[0])}."
        )
    points = jnp.stack(points) if directions is not None and is_packed(directions) else points
    return Probes(
        _merge_axes(points, batch, 0),
        _in_units(_merge_axes(directions, batch, 1), count),
        tuple(shape),
        batch,
        probe_shards(index),
    )


def _checked_index(row: Any, mode: int, size: int) -> jax.Array:
    """Indices of a mode: those out of range raise where they are known, and else become invalid."""
    # Values that lie on devices of other processes are as little known as traced ones.
    known = not isinstance(row, Tracer) and getattr(row, "is_fully_addressable", True)
    values = np.asarray(row) if known else row
    if not jnp.issubdtype(values.dtype, jnp.integer):
        raise ValueError(f"index must hold integers, got {values.dtype} for mode {mode}.")
    if not known:
        # Neither negative ones nor those in the padding of a packed core may read anything.
        row = row if row.dtype.itemsize >= 4 else row.astype(jnp.int32)
        return jnp.where((row >= 0) & (row < size), row.astype(jnp.int32), _INVALID)
    if values.size and not (values.min() >= 0 and values.max() < size):
        raise ValueError(
            f"index of mode {mode} must lie in 0 .. {size - 1} (mode size {size}), got values "
            f"from {values.min()} to {values.max()}."
        )
    return jnp.asarray(row, jnp.int32)


def _warn_of_square(index: Any, shape: Sequence[int]) -> None:
    """Warn of an array of d probes that could as well be meant the other way round."""
    d = len(shape)
    if d == 1 or isinstance(index, Tracer) or not hasattr(index, "shape"):
        return
    if tuple(index.shape) != (d, d) or not getattr(index, "is_fully_addressable", True):
        return
    values = np.asarray(index)
    if (values != values.T).any() and (values.T < np.asarray(shape)[:, None]).all():
        memory.warn_caller(
            f"index of shape {(d, d)} is read as one row a mode, one column a probe. Give the rows as "
            "a tuple, tuple(index), to say that it is meant so; or its transpose.",
            AmbiguousIndexWarning,
        )


def _directions(pp: Modes | None, shape: Sequence[int], order: int, dtype: Any) -> Modes | None:
    if pp is not None:
        return _vectors("pp", pp, shape, dtype)
    if order:
        raise ValueError(f"order {order} needs directions pp, got None.")
    return None


def _in_units(directions: Modes | None, count: int) -> Modes | None:
    """Directions in the unit of the jets' parameter, where they make a difference."""
    unit = parameter_unit(count)
    if directions is None or count == 1:
        return None
    return directions if unit == 1 else jax.tree.map(lambda a: a * unit, directions)


def checked_values(
    name: str,
    values: Any,
    probes: Probes,
    orders: tuple[int, ...],
    last: tuple[int, ...] | None,
    dtype: Any,
) -> Any:
    """Values of probes, or residuals of them, as arrays of `dtype`.

    Args:
        name: what errors call them.
        values: what was given.
        probes: where.
        orders: their leading axes: ``(K + 1,)`` or none.
        last: their trailing axes; None for d arrays ``(.., N_i)``, or stacked.
        dtype: to compute in.

    Raises:
        ValueError: other shapes; complex numbers.
    """
    expected = (*orders, *probes.batch)
    text = "(order + 1, *W" if orders else "(*W"
    if last is not None:
        values = real_array(name, values, dtype)
        if values.shape != (*expected, *last):
            raise ValueError(
                f"{name} has shape {values.shape}, expected {text}{', ...' if last else ''}) = "
                f"{(*expected, *last)}."
            )
        return values
    arrays = _vectors(name, values, probes.shape, dtype)
    for i, size in enumerate(probes.shape):
        if arrays[i].shape[:-1] != expected:
            raise ValueError(
                f"{name} of mode {i} has shape {arrays[i].shape}, expected {text}, N) = "
                f"{(*expected, size)}."
            )
    if is_packed(arrays) != probes.stacked:
        raise ValueError(f"{name} and the points must both be d arrays, or both be stacked.")
    return arrays


def real_array(name: str, array: Any, dtype: Any) -> jax.Array:
    """An array of real numbers in a floating point type; integers are promoted.

    Raises:
        ValueError: as `memory.checked_floats`.
    """
    return memory.checked_floats(name, array).astype(dtype)


def _vectors(name: str, family: Modes, shape: Sequence[int], dtype: np.dtype) -> Modes:
    """The family as arrays of `dtype`, its mode sizes checked."""
    d = len(shape)
    if hasattr(family, "shape"):
        if family.ndim < 2 or family.shape[0] != d or family.shape[-1] != max(shape):
            raise ValueError(
                f"{name} as one array must have shape (d, ..., N) with d = {d} and the largest mode "
                f"size N = {max(shape)}, got {family.shape}; or give {d} arrays, one a mode."
            )
        if min(shape) != max(shape):
            mask = np.arange(max(shape)) < np.asarray(shape)[:, None]
            mask = mask.reshape(d, *[1] * (family.ndim - 2), max(shape))
            return jnp.where(mask, real_array(name, family, dtype), np.zeros((), dtype))
        return real_array(name, family, dtype)
    if not isinstance(family, Sequence):
        raise ValueError(f"{name} needs {d} arrays, one a mode, got {family!r}.")
    if len(family) != d:
        raise ValueError(f"{name} needs {d} arrays, one a mode, got {len(family)}.")
    arrays = tuple(real_array(name, array, dtype) for array in family)
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

"""Loops over chunks of rows: one chunk is live at a time, and the answer does not depend on its size."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PyTree

from memory._checks import checked_integer, working_dtype


def map_sum(
    fn: Callable[[Any], Any],
    rows: PyTree,
    *,
    chunk_size: int | np.integer | None,
    checkpoint: bool = False,
) -> PyTree:
    """Computes `fn(rows)`, a sum over rows, from slices of `chunk_size` rows.

    The loop is a `lax.scan` over full chunks followed by one static tail, so the peak memory is the
    inputs, the result and the intermediates of one chunk. No row is padded, repeated or skipped:
    the result is the dense one up to the order of the additions.

    Args:
        fn: maps a slice of rows to a pytree of arrays that are sums over those rows, so that
            `fn(a) + fn(b)` equals `fn` of `a` and `b` together. It is called with slices of
            `chunk_size` rows and with the remainder, and may close over traced values.
        rows: pytree of arrays that share the length of their leading axis.
        chunk_size: rows in a chunk, a static int. `None`, or at least the number of rows, calls
            `fn` once on everything.
        checkpoint: recompute a chunk's intermediates in the backward pass. Without it,
            reverse-mode differentiation keeps what `fn` saves for every row.

    Returns:
        The pytree that `fn` returns, summed over chunks, in the dtypes of `fn`. Chunks of float16
        and bfloat16 are added in float32. Without rows, zeros of its shapes.

    Raises:
        ValueError: on a chunk size below 1, rows without arrays, unequal leading axes, results in
            float8, and 2^31 rows or more unless JAX has 64-bit types enabled.

    Cost:
        The work of `fn` on all rows, and one read and write of the result for each chunk.
    """
    rows, count = _prepare(rows)
    size = _checked_chunk_size(chunk_size)
    fn = _array_valued(jax.checkpoint(fn) if checkpoint else fn)
    if count == 0:
        # The shapes of a sum do not depend on how many rows there are, so ask about one.
        return jax.tree.map(_zeros, jax.eval_shape(fn, _of_length(rows, 1)))
    if size is None or size >= count:
        return fn(rows)

    whole = count // size

    def step(carry, _):
        index, total = carry
        part = fn(_slice(rows, index * size, size))
        return (index + 1, jax.tree.map(_add, total, part)), None

    shapes = jax.eval_shape(lambda r: fn(_slice(r, 0, size)), rows)
    start = jax.tree.map(lambda s: _zeros(s, dtype=_accumulator(s.dtype)), shapes)
    (_, total), _ = lax.scan(step, (_first_index(count), start), length=whole)
    if whole * size < count:
        total = jax.tree.map(_add, total, fn(_from(rows, whole * size)))
    return jax.tree.map(lambda sums, s: sums.astype(s.dtype), total, shapes)


def map_concat(
    fn: Callable[[Any], Any],
    rows: PyTree,
    *,
    chunk_size: int | np.integer | None,
    checkpoint: bool = False,
    axis: int = 0,
) -> PyTree:
    """Computes `fn(rows)`, which works row by row, from slices of `chunk_size` rows.

    As `map_sum`, but each chunk's result is written to its place in the output. The peak memory is
    the inputs, the output and the intermediates of one chunk.

    Args:
        fn: maps a slice of m rows to a pytree of arrays of which `axis` has length m, row i of
            which depends on row i of the slice. May close over traced values.
        rows: pytree of arrays that share the length of their leading axis.
        chunk_size: rows in a chunk, a static int. `None`, or at least the number of rows, calls
            `fn` once on everything.
        checkpoint: recompute a chunk's intermediates in the backward pass.
        axis: where the results of `fn` have their rows. Negative numbers count from the end.

    Returns:
        The pytree that `fn` returns, with all rows. Without rows, arrays of zero rows.

    Raises:
        ValueError: on a chunk size below 1, rows without arrays, unequal leading axes, or a result
            whose `axis` does not have the length of its slice.
    """
    rows, count = _prepare(rows)
    size = _checked_chunk_size(chunk_size)
    fn = _array_valued(jax.checkpoint(fn) if checkpoint else fn)
    if count == 0:
        one = jax.eval_shape(fn, _of_length(rows, 1))
        _check_result_rows(one, 1, axis)
        return jax.tree.map(lambda s: _zeros(s, _resized(s.shape, 0, axis)), one)
    if size is None or size >= count:
        result = fn(rows)
        _check_result_rows(result, count, axis)
        return result

    whole = count // size
    shapes = jax.eval_shape(lambda r: fn(_slice(r, 0, size)), rows)
    _check_result_rows(shapes, size, axis)

    # The output is the loop's carry and is updated in place. Stacking the chunks and joining the
    # tail to them afterwards would hold the output twice.
    def step(carry, _):
        index, output = carry
        part = fn(_slice(rows, index * size, size))
        output = jax.tree.map(lambda o, p: _place(o, p, index * size, axis), output, part)
        return (index + 1, output), None

    start = jax.tree.map(lambda s: _zeros(s, _resized(s.shape, count, axis)), shapes)
    (_, output), _ = lax.scan(step, (_first_index(count), start), length=whole)
    if whole * size < count:
        tail = fn(_from(rows, whole * size))
        _check_result_rows(tail, count - whole * size, axis)
        first = _full((), whole * size, _first_index(count).dtype)
        output = jax.tree.map(lambda o, p: _place(o, p, first, axis), output, tail)
    return output


def _accumulator(dtype) -> Any:
    """The dtype in which chunks are added: half precision has no digits to spare for it."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return dtype
    if jnp.finfo(dtype).bits < 16:
        raise ValueError(
            f"fn returns sums in {dtype}, in which hardly any number can be added: cast them to "
            "float32 or bfloat16"
        )
    return working_dtype(dtype)


def _add(total, part):
    return total + part.astype(total.dtype)


def _first_index(count: int):
    """0 in a type that holds the place of every row."""
    if count < 2**31:
        return _full((), 0, jnp.int32)
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"rows has {count} rows, which 32-bit places do not reach: set "
            'jax.config.update("jax_enable_x64", True), or call this for parts of the rows'
        )
    return _full((), 0, jnp.int64)


def _prepare(rows):
    """The rows as JAX arrays, and how many there are."""
    leaves, structure = jax.tree.flatten(rows)
    if not leaves:
        raise ValueError("rows holds no array: give a pytree with at least one")
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(rows)]
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.ndim == 0:
            raise ValueError(
                f"rows{name} is a scalar, but every array in rows needs a leading axis of rows; "
                "close over what all rows share instead of passing it"
            )
    counts = [leaf.shape[0] for leaf in leaves]
    if len(set(counts)) != 1:
        listing = ", ".join(
            f"rows{name}: {leaf.shape}" for name, leaf in zip(names, leaves, strict=True)
        )
        raise ValueError(
            f"the arrays in rows must share the length of their leading axis, got {listing}"
        )
    return jax.tree.unflatten(structure, leaves), counts[0]


def _checked_chunk_size(chunk_size) -> int | None:
    if chunk_size is None:
        return None
    return checked_integer("chunk_size", chunk_size, 1, "None means one chunk with all rows")


def _check_result_rows(result, expected: int, axis: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        inside = -leaf.ndim <= axis < leaf.ndim
        if not inside or leaf.shape[axis] != expected:
            raise ValueError(
                f"map_concat got {expected} rows and so expects results with {expected} rows on "
                f"axis {axis}, but fn(rows){jax.tree_util.keystr(path)} has shape {leaf.shape}; "
                "use map_sum for a sum over rows"
            )


def _array_valued(fn):
    return lambda rows: jax.tree.map(jnp.asarray, fn(rows))


def _slice(rows, first, size: int):
    # A slice inside the loop reads the rows in place; a reshape to (chunks, size, ...) would copy
    # all of them whenever a remainder is left over.
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, first, size, axis=0), rows)


def _from(rows, first: int):
    return jax.tree.map(lambda leaf: lax.slice_in_dim(leaf, first, leaf.shape[0]), rows)


def _of_length(rows, count: int):
    """Abstract rows, `count` of them."""
    return jax.tree.map(lambda r: jax.ShapeDtypeStruct((count, *r.shape[1:]), r.dtype), rows)


def _resized(shape, count: int, axis: int):
    shape = list(shape)
    shape[axis] = count
    return tuple(shape)


# Both compiled also where nothing else is: their constants are made on the device, not moved to it, which
# jax.transfer_guard may refuse.
@partial(jax.jit, static_argnums=3, inline=True)
def _place(buffer, part, first, axis: int):
    return lax.dynamic_update_slice_in_dim(buffer, part, first, axis=axis)


@partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _full(shape, value: int, dtype):
    return jnp.full(shape, value, dtype)


def _zeros(struct, shape=None, dtype=None):
    shape = struct.shape if shape is None else shape
    zeros = _full(shape, 0, struct.dtype if dtype is None else dtype)
    # Inside shard_map a value has a type that says over which mesh axes it differs; a loop's carry
    # must start with the type that it ends with.
    kind = getattr(struct, "manual_axis_type", None)
    varying = getattr(kind, "varying", None)
    return lax.pcast(zeros, tuple(varying), to="varying") if varying else zeros

"""How much memory a computation takes, read from XLA, and the chunk that fits a budget."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree


class MemoryEstimateWarning(UserWarning):
    """XLA reports no scratch, or none at all, so an estimate is an upper bound."""


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """What a compiled program takes, in bytes on one device; `None` where XLA reports nothing.

    Attributes:
        argument_bytes: the inputs.
        output_bytes: the results.
        temp_bytes: scratch, the peak of everything between inputs and results. Libraries that XLA
            calls for a whole chain of products may hold memory of their own that it does not count.
    """

    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None

    def __str__(self) -> str:
        parts = [
            f"{name} {'unknown' if value is None else format_bytes(value)}"
            for name, value in (
                ("arguments", self.argument_bytes),
                ("output", self.output_bytes),
                ("scratch", self.temp_bytes),
            )
        ]
        return ", ".join(parts)


def compiled_memory(fn: Callable, *args: Any) -> MemoryReport:
    """Compiles `fn(*args)` and reports what XLA says that it takes.

    Nothing runs. Arguments may be arrays or `jax.ShapeDtypeStruct`s, and pytrees of them; anything
    else in them (functions, flags, strings) is static.

    Args:
        fn: a function, or one already wrapped in `jax.jit` or `equinox.filter_jit`.
        *args: concrete or abstract arguments.

    Returns:
        A `MemoryReport`. A backend without statistics gives `None`s.
    """
    return _report(_compile(fn, args))


def row_bytes(
    fn: Callable,
    example_rows: PyTree,
    *resident: Any,
    counts: tuple[int, int] = (256, 512),
    key: Hashable | None = None,
) -> float:
    """Bytes of XLA scratch that `fn` needs for each further row.

    `fn(rows, *resident)` is compiled for two numbers of rows on abstract shapes, and the answer is
    the slope between the two peaks. Nothing runs and nothing is allocated. The answer is cached by
    `fn` (or `key`), shapes, dtypes, counts and backend, so only the first call compiles.

    Where the slope cannot be read:
        * The backend reports None, 0 or a negative number for either: the answer is the bytes of
          every array that `fn`'s jaxpr computes, results included, divided by the number of rows,
          with loop bodies counted once. That is an upper bound (XLA fuses and reuses most of
          them), and a `MemoryEstimateWarning` says so. 0 is what a function has whose arrays all
          fuse into its results, as elementwise ones do; such a function gains nothing from chunks,
          but the same rows in a larger program, whose results XLA must keep, take up to the bound.
        * The peak does not grow between the two (small sizes can be scheduled differently): the
          answer is the larger peak divided by its number of rows, also an upper bound.

    Args:
        fn: a function of rows, jitted or not. It must not close over traced values: pass those as
            `resident`. Define it once, at module level, or give `key`, or the cache never hits.
        example_rows: pytree of arrays or `jax.ShapeDtypeStruct`s with a shared leading axis, whose
            length does not matter.
        *resident: further arguments of `fn`, arrays or abstract, whose size does not depend on the
            number of rows.
        counts: the two numbers of rows, ascending.
        key: stands for `fn` in the cache, for functions that are created at each call.

    Returns:
        Bytes per row; 0 only where `fn` computes no array of its rows, as the identity.

    Raises:
        ValueError: on counts that do not ascend from at least 1.
    """
    low, high = counts
    if not 1 <= low < high:
        raise ValueError(f"counts must be two ascending numbers from 1 on, got {counts}")
    rows = jax.tree.map(_abstract, example_rows)
    shared = jax.tree.map(_abstract, resident)
    leaves, structure = jax.tree.flatten((rows, shared))
    signature = tuple(
        (leaf.shape, str(leaf.dtype)) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        for leaf in leaves
    )
    call = _Call(fn, rows, shared, key if key is not None else fn)
    return _row_bytes(call, structure, signature, (low, high), jax.default_backend())


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """What to compile; equal to another when its key is, whatever the function object."""

    fn: Callable
    rows: Any
    shared: Any
    key: Hashable

    def __eq__(self, other):
        return isinstance(other, _Call) and self.key == other.key

    def __hash__(self):
        return hash(self.key)


@lru_cache(maxsize=512)
def _row_bytes(call: _Call, structure, signature, counts, backend: str) -> float:
    del structure, signature
    low, high = counts
    peaks = []
    for count in counts:
        args = (_with_rows(call.rows, count), *call.shared)
        peaks.append(_report(_compile(call.fn, args)).temp_bytes)
    if any(peak is None or peak <= 0 for peak in peaks):
        bound = _intermediate_bytes(call.fn, (_with_rows(call.rows, high), *call.shared)) / high
        if bound:
            name = getattr(call.key, "__qualname__", call.key)
            if any(peak is None for peak in peaks):
                why = f"The {backend} backend reports no memory statistics for {name}."
            else:
                why = (
                    f"XLA fuses {name} into its results and needs no scratch of its own for {low} or "
                    f"{high} rows: run it whole, if nothing else happens to its rows."
                )
            warnings.warn(
                f"{why} row_bytes returns the upper bound of {format_bytes(bound)} for a row: all the "
                "arrays that the function computes, as if each were kept.",
                MemoryEstimateWarning,
                stacklevel=3,
            )
        return float(bound)
    slope = (peaks[1] - peaks[0]) / (high - low)
    return float(slope if slope > 0 else peaks[1] / high)


def balanced_chunk_size(
    row_bytes: float, resident_bytes: float, n_rows: int, n_shards: int = 1
) -> int:
    """The largest chunk whose scratch stays within what is resident on the device anyway.

    A chunk of this size at most doubles the memory that the inputs and outputs take.

    Args:
        row_bytes: scratch of one row, as `memory.row_bytes` gives.
        resident_bytes: bytes of inputs and outputs on one device.
        n_rows: rows over all devices.
        n_shards: devices that the rows are split over. The answer is for one device's share.

    Returns:
        An int in [1, rows of one shard].

    Raises:
        ValueError: on negative or non-finite sizes, or n_shards below 1.
    """
    return max(1, _rows_within(row_bytes, resident_bytes, n_rows, n_shards))


def chunk_size_within(row_bytes: float, budget_bytes: float, n_rows: int, n_shards: int = 1) -> int:
    """The largest chunk whose scratch stays within a byte budget.

    Args:
        row_bytes: scratch of one row, as `memory.row_bytes` gives.
        budget_bytes: what a chunk may take on one device.
        n_rows: rows over all devices.
        n_shards: devices that the rows are split over. The answer is for one device's share.

    Returns:
        An int in [1, rows of one shard].

    Raises:
        ValueError: when not even one row fits, or on negative or non-finite sizes.
    """
    size = _rows_within(row_bytes, budget_bytes, n_rows, n_shards)
    if size < 1:
        raise ValueError(
            f"a budget of {_exact_bytes(budget_bytes)} is below the {_exact_bytes(row_bytes)} that "
            "one row needs; raise the budget or make a row smaller"
        )
    return size


def _rows_within(row_bytes: float, budget: float, n_rows: int, n_shards: int) -> int:
    for name, value in (("row_bytes", row_bytes), ("the byte budget", budget)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number of bytes from 0 on, got {value!r}")
    if n_rows < 0:
        raise ValueError(f"n_rows must not be negative, got {n_rows}")
    if n_shards < 1:
        raise ValueError(f"n_shards must be at least 1, got {n_shards}")
    local_rows = max(1, -(-n_rows // n_shards))
    if row_bytes == 0:
        return local_rows
    return min(local_rows, int(budget // row_bytes))


def format_bytes(count: float) -> str:
    """A byte count for reading: `1536` becomes `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _exact_bytes(count: float) -> str:
    return f"{count:.15g} bytes"


def _abstract(leaf):
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic):
        # Through JAX's own abstraction, so that a NumPy float64 array becomes what it would be in a
        # computation.
        aval = jax.eval_shape(lambda x: x, leaf)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return leaf


def _with_rows(rows, count: int):
    return jax.tree.map(
        lambda r: (
            jax.ShapeDtypeStruct((count, *r.shape[1:]), r.dtype)
            if isinstance(r, jax.ShapeDtypeStruct)
            else r
        ),
        rows,
    )


def _is_dynamic(leaf) -> bool:
    return eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _compile(fn, args):
    if isinstance(fn, jax.stages.Wrapped):
        return fn.lower(*args).compile()
    # equinox.filter_jit takes no abstract arrays: what it wraps is compiled inside of this function.
    dynamic, static = eqx.partition(args, _is_dynamic)
    return jax.jit(lambda d: _arrays_of(fn(*eqx.combine(d, static)))).lower(dynamic).compile()


def _arrays_of(result):
    return eqx.filter(result, eqx.is_array_like)


def _intermediate_bytes(fn, args) -> int:
    """Bytes of every array that the jaxpr of `fn` computes, nested jaxprs included once."""
    dynamic, static = eqx.partition(args, _is_dynamic)
    closed = jax.make_jaxpr(lambda d: _arrays_of(fn(*eqx.combine(d, static))))(dynamic)
    return _jaxpr_bytes(closed.jaxpr)


def _jaxpr_bytes(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            aval = variable.aval
            if hasattr(aval, "shape") and hasattr(aval.dtype, "itemsize"):
                total += math.prod(aval.shape) * aval.dtype.itemsize
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda p: hasattr(p, "jaxpr") or _is_jaxpr(p)
        ):
            if hasattr(parameter, "jaxpr"):
                total += _jaxpr_bytes(parameter.jaxpr)
            elif _is_jaxpr(parameter):
                total += _jaxpr_bytes(parameter)
    return total


def _is_jaxpr(parameter) -> bool:
    return hasattr(parameter, "eqns")


def _statistics(compiled):
    """XLA's own accounting, or None: backends differ in whether and how they refuse."""
    try:
        return compiled.memory_analysis()
    except (NotImplementedError, RuntimeError, AttributeError):
        return None


def _report(compiled) -> MemoryReport:
    statistics = _statistics(compiled)

    def read(name):
        value = getattr(statistics, name, None)
        return int(value) if value is not None and value >= 0 else None

    return MemoryReport(
        argument_bytes=read("argument_size_in_bytes"),
        output_bytes=read("output_size_in_bytes"),
        temp_bytes=read("temp_size_in_bytes"),
    )

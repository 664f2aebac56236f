"""The loop over chunks of probes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import memory
from t3._sampling.probes import Along
from t3._tensor.packing import is_packed, stack_padded


def map_probes(
    fn: Callable[..., Any],
    shape: tuple[int, ...],
    *families: Along,
    packed: bool,
    chunk_size: int | None,
    keep_axis: int | None = None,
) -> Any:
    """Run a chunk function over all probes.

    Args:
        fn: of the families' parts of some probes, by modes in the storage of the network.
        shape: mode sizes.
        *families: arrays and where they have their probes; the first is the points.
        packed: the storage of the network.
        chunk_size: probes in a chunk.
        keep_axis: where results have their probes; None adds the results of all chunks.
    """
    count = jax.tree.leaves(families[0].family)[0].shape[families[0].axis]
    if count == 0:
        # One row of zeros stands in: its sums are zero, and kept rows are cut off again.
        families = tuple(f.map(lambda a, axis: _zeros(a, axis)) for f in families)

    def stored(family):
        if family is None or is_packed(family) == packed:
            return family
        if packed:
            sizes = [max(a.shape[-1] for a in family)] if family[0].ndim > 1 else []
            return stack_padded(family, sizes)
        if family.ndim == 2:
            return tuple(family)
        return tuple(family[i][..., :size] for i, size in enumerate(shape))

    def chunk(rows):
        # Slices are cut here, inside the loop, each at the axis where it has its probes. Handing
        # the arrays over as rows would need the probes in front: a copy of all residuals.
        first, size = rows[0], rows.shape[0]

        def cut(a, axis):
            if a.shape[axis] == size:
                return a
            return lax.dynamic_slice_in_dim(a, first, size, a.ndim + axis)

        parts = [f.map(cut) for f in families]
        return fn(*(stored(f.family) if f.by_mode else f.family for f in parts))

    rows = jnp.arange(max(count, 1), dtype=jnp.int32)
    if keep_axis is None:
        return memory.map_sum(chunk, rows, chunk_size=chunk_size, checkpoint=True)
    kept = memory.map_concat(chunk, rows, chunk_size=chunk_size, checkpoint=True, axis=keep_axis)
    if count == 0:
        kept = jax.tree.map(lambda a: lax.slice_in_dim(a, 0, 0, axis=keep_axis % a.ndim), kept)
    return kept


def _zeros(a, axis: int):
    shape = list(a.shape)
    shape[axis] = 1
    return jnp.zeros(shape, a.dtype)

"""Transposes of sampling: ``J^T r``, residual jets back-projected onto a frame or onto cores.

With J the map from a tangent's variations to its sampled jets (`t3.T3Tangent.probe_derivatives`),
``<r, J v> = <J^T r, v>`` for every v. What the functions return is the bare transpose: variations in
all coordinates. ``T3Tangent(frame, variations).project()`` makes the Riemannian gradient of it.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp

from t3._sampling import transpose_chunks as chunks
from t3._sampling.chunk_size import ChunkSize, frame_sizes, resolve_chunk_size
from t3._sampling.probes import (
    Modes,
    Probes,
    checked_order,
    common_dtype,
    index_probes,
    map_probes,
    residual_jets,
    scalar_residual,
    vector_probes,
)
from t3._sampling.sharding import IN_SHARD_MAP, warn_of_sharded_probes
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.packing import is_packed

if TYPE_CHECKING:
    from t3._tensor.format import TuckerTensorTrain


def probe_derivatives_transpose(
    residual: Modes,
    ww: Modes,
    pp: Modes | None,
    frame: "T3Frame | TuckerTensorTrain",
    order: int,
    *,
    sum_over_probes: bool = False,
    chunk_size: ChunkSize = "auto",
) -> T3Variations:
    """Transpose of `t3.T3Tangent.probe_derivatives`.

    Args:
        residual: d arrays ``(K + 1, *W, N_i)``, or stacked ``(d, K + 1, *W, N)`` like `ww`.
        ww: points, d arrays ``(*W, N_i)`` with any number of probe axes; or stacked.
        pp: directions of the same shapes. None at order 0.
        frame: the frame, orthogonal or not. A Tucker tensor train stands for the frame of its own
            cores: the result is then the gradient in the cores.
        order: K.
        sum_over_probes: add over probes (the Gauss-Newton gradient), or keep their axes.
        chunk_size: probes worked on at a time; None for all, ``"auto"`` for what fits the cache and
            stays comparable to inputs and outputs. The result does not depend on it beyond rounding.

    Returns:
        Variations in the storage of the frame. Kept, every leaf has the probe axes ``*W`` in front.

    Raises:
        ValueError: shapes that do not fit, a negative order, a chunk size below 1.

    Cost: ``8 (K + 3) n r^2`` operations for each probe and mode, and the memory of one chunk beyond
        inputs and outputs. Orders above d - 1 cost nothing: they do not depend on the tensor.
    """
    warn_of_sharded_probes(ww)
    order = checked_order(order)
    dtype = common_dtype(frame, residual, ww, pp)
    count = min(order, len(frame.shape) - 1) + 1
    probes = vector_probes(frame.shape, ww, pp, order, min(count - 1, 1), dtype)
    jets = residual_jets(residual, probes, order, count, dtype)
    return _transpose(frame, probes, jets, count, dtype, True, sum_over_probes, chunk_size)


def apply_derivatives_transpose(
    residual: Any,
    ww: Modes,
    pp: Modes | None,
    frame: "T3Frame | TuckerTensorTrain",
    order: int,
    *,
    sum_over_probes: bool = False,
    chunk_size: ChunkSize = "auto",
) -> T3Variations:
    """Transpose of `t3.T3Tangent.apply_derivatives`: `residual` is an array ``(K + 1, *W)``.

    All else as in `probe_derivatives_transpose`, at a cost of ``16 n r^2`` for each probe and mode.
    """
    warn_of_sharded_probes(ww, IN_SHARD_MAP)
    order = checked_order(order)
    dtype = common_dtype(frame, residual, ww, pp)
    probes = vector_probes(frame.shape, ww, pp, order, min(order, 1), dtype)
    return _scalar_transpose(residual, probes, frame, order, dtype, sum_over_probes, chunk_size)


def entries_derivatives_transpose(
    residual: Any,
    index: Any,
    pp: Modes | None,
    frame: "T3Frame | TuckerTensorTrain",
    order: int,
    *,
    sum_over_probes: bool = False,
    chunk_size: ChunkSize = "auto",
) -> T3Variations:
    """Transpose of `t3.T3Tangent.entries_derivatives`: `residual` is an array ``(K + 1, *W)``.

    `index` is ``(d, *W)`` integers; all else as in `apply_derivatives_transpose`.
    """
    warn_of_sharded_probes(index, IN_SHARD_MAP)
    order = checked_order(order)
    dtype = common_dtype(frame, residual, pp)
    probes = index_probes(frame.shape, index, pp, order, dtype)
    return _scalar_transpose(residual, probes, frame, order, dtype, sum_over_probes, chunk_size)


def probe_transpose(
    residual: Modes, ww: Modes, frame: "T3Frame | TuckerTensorTrain", **options: Any
) -> T3Variations:
    """Transpose of `t3.T3Tangent.probe`: `probe_derivatives_transpose` without the order axis."""
    if hasattr(residual, "shape"):
        residual = residual[:, None]
    else:
        residual = [array[None] for array in residual]
    return probe_derivatives_transpose(residual, ww, None, frame, 0, **options)


def apply_transpose(
    residual: Any, ww: Modes, frame: "T3Frame | TuckerTensorTrain", **options: Any
) -> T3Variations:
    """Transpose of `t3.T3Tangent.apply`: `apply_derivatives_transpose` without the order axis."""
    return apply_derivatives_transpose(jnp.asarray(residual)[None], ww, None, frame, 0, **options)


def entries_transpose(
    residual: Any, index: Any, frame: "T3Frame | TuckerTensorTrain", **options: Any
) -> T3Variations:
    """Transpose of `t3.T3Tangent.entries`: `entries_derivatives_transpose` without the order axis."""
    return entries_derivatives_transpose(
        jnp.asarray(residual)[None], index, None, frame, 0, **options
    )


def _scalar_transpose(residual, probes, frame, order, dtype, sum_over_probes, chunk_size):
    count = min(order, len(frame.shape)) + 1
    scalars = scalar_residual(residual, probes, order, count, dtype)
    return _transpose(frame, probes, scalars, count, dtype, False, sum_over_probes, chunk_size)


def _transpose(frame, probes, residual, count, dtype, free, sum_over_probes, chunk_size):
    size = resolve_chunk_size(
        chunk_size, frame, probes.count, count, free=free, n_shards=probes.n_shards
    )
    frame = jax.tree.map(lambda core: core.astype(dtype), frame)
    variations = _run(hole_trains(frame), probes, residual, count, free, sum_over_probes, size)
    if sum_over_probes:
        return variations
    return jax.tree.map(lambda a: a.reshape(*probes.batch, *a.shape[1:]), variations)


@eqx.filter_jit
def _run(
    trains: chunks.HoleTrains,
    probes: Probes,
    residual: Any,
    count: int,
    free: bool,
    summed: bool,
    size: int | None,
) -> T3Variations:
    transpose = chunks.probe_transpose_chunk if free else chunks.apply_transpose_chunk
    packed = is_packed(trains.up_tucker)

    def chunk(*inputs):
        variations = transpose(trains, count, *inputs, keep=not summed)
        # A loop over packed modes puts their axis in front of the probes.
        swap = lambda a: a.swapaxes(0, 1)  # noqa: E731
        return jax.tree.map(swap, variations) if packed and not summed else variations

    keep_axis = None if summed else 0
    return T3Variations(
        *map_probes(chunk, probes, residual, packed=packed, chunk_size=size, keep_axis=keep_axis)
    )


def hole_trains(frame: "T3Frame | TuckerTensorTrain") -> chunks.HoleTrains:
    """Cores around the holes; a tensor's own cores stand on every side of its holes."""
    if isinstance(frame, T3Frame):
        families = frame.up_tucker, frame.down_tt, frame.left_tt, frame.right_tt
    else:
        families = frame.tucker_cores, frame.tt_cores, frame.tt_cores, frame.tt_cores
    sizes = frame_sizes(frame)
    ends = frame.left_end[: sizes.left[0]], frame.right_end[: sizes.right[-1]]
    return chunks.HoleTrains(*families, *ends)

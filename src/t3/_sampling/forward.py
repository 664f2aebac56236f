"""Sampling a Tucker tensor train: probes, applies, entries, and their derivatives along a line.

With vectors ``x_i + s p_i``, the sampled values are polynomials in s. The ``_derivatives`` functions
return their derivatives 0 .. K at s = 0 on a leading axis; those above the degree are exactly zero
(d - 1 for probes, d for applies and entries).

Differentiable in cores, vectors and directions by reverse mode, as often as wanted. The backward
pass is the chunked transpose: it needs the memory of one chunk, and of the forward pass only the
probes before their lift to the mode sizes (``n_i`` numbers for each ``N_i`` of the output).
Forward mode is not defined here: ``T3Tangent`` has the same functions and is the derivative along a
variation of the cores.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from t3._sampling import forward_chunks as forward
from t3._sampling import transpose_chunks as backward
from t3._sampling.chunk_size import ChunkSize, resolve_chunk_size
from t3._sampling.probes import (
    Modes,
    Probes,
    checked_order,
    common_dtype,
    index_probes,
    map_probes,
    vector_probes,
)
from t3._sampling.sharding import IN_SHARD_MAP, warn_of_sharded_probes
from t3._tensor.packing import Cores, is_packed, split_padded, stack_padded
from t3._tensor.ranks import T3Ranks

if TYPE_CHECKING:
    from t3._tangent.tangent import T3Tangent
    from t3._tensor.format import TuckerTensorTrain


class Spec(NamedTuple):
    """What is static about a sampling of a tensor.

    Attributes:
        free: whether one mode stays open (a probe) or none (apply and entries).
        count: orders computed.
        chunk_size: probes in a chunk.
        sizes: true sizes of the tensor.
    """

    free: bool
    count: int
    chunk_size: int | None
    sizes: T3Ranks


def probe_derivatives(
    x: "TuckerTensorTrain | T3Tangent",
    ww: Modes,
    pp: Modes | None,
    order: int,
    *,
    chunk_size: ChunkSize = "auto",
) -> Modes:
    """Derivatives 0 .. K of all probes: mode i open, ``x_j + s p_j`` in the others.

    Args:
        x: tensor or tangent (then this is J v).
        ww: points, d arrays ``(*W, N_i)`` with any number of probe axes; or stacked ``(d, *W, N)``.
        pp: directions of the same shapes. None at order 0.
        order: K.
        chunk_size: probes worked on at a time; None for all, ``"auto"`` for what fits the cache.

    Returns:
        d arrays ``(K + 1, *W, N_i)``; stacked ``(d, K + 1, *W, N)`` where `ww` is.

    Raises:
        ValueError: shapes that do not fit, a negative order.

    Cost: for each probe and mode ``2 (K + 5) n r^2`` operations (tensor), and the memory of one
        chunk beyond inputs and outputs.
    """
    order, probes, dtype = _vector_inputs(x, ww, pp, order, free=True)
    return _probe_jets(x, probes, order, dtype, chunk_size)


def apply_derivatives(
    x: "TuckerTensorTrain | T3Tangent",
    ww: Modes,
    pp: Modes | None,
    order: int,
    *,
    chunk_size: ChunkSize = "auto",
) -> jax.Array:
    """Derivatives 0 .. K of the tensor contracted with ``x_i + s p_i`` in all modes.

    Arguments as `probe_derivatives`. Returns an array ``(K + 1, *W)``.
    """
    order, probes, dtype = _vector_inputs(x, ww, pp, order, free=False)
    return _scalar_jets(x, probes, order, dtype, chunk_size)


def entries_derivatives(
    x: "TuckerTensorTrain | T3Tangent",
    index: Any,
    pp: Modes | None,
    order: int,
    *,
    chunk_size: ChunkSize = "auto",
) -> jax.Array:
    """Derivatives 0 .. K of the tensor contracted with ``e_{index_i} + s p_i`` in all modes.

    Args:
        x: tensor or tangent.
        index: integers ``(d, *W)``, from 0 on. Out of range raises where the values are known, and
            gives NaN under transformations.
        pp: directions, d arrays ``(*W, N_i)``. None at order 0.
        order: K.
        chunk_size: as for `probe_derivatives`.

    Returns:
        An array ``(K + 1, *W)``.
    """
    warn_of_sharded_probes(index, IN_SHARD_MAP)
    order = checked_order(order)
    dtype = common_dtype(x, pp)
    probes = index_probes(x.shape, index, pp, order, dtype)
    return _scalar_jets(x, probes, order, dtype, chunk_size)


def _vector_inputs(x, ww, pp, order, *, free: bool):
    warn_of_sharded_probes(ww, IN_SHARD_MAP)
    order = checked_order(order)
    dtype = common_dtype(x, ww, pp)
    degree = min(order, len(x.shape) - free, 1)
    return order, vector_probes(x.shape, ww, pp, order, degree, dtype), dtype


def _probe_jets(x, probes: Probes, order: int, dtype, chunk_size):
    jets = _jets(x, probes, order, dtype, chunk_size, free=True)
    jets = as_given(jets, probes)
    shape = lambda a: (*a.shape[:-3], order + 1, *probes.batch, a.shape[-1])  # noqa: E731
    return jax.tree.map(lambda a: _all_orders(a, order, -3).reshape(shape(a)), jets)


def _scalar_jets(x, probes: Probes, order: int, dtype, chunk_size):
    jets = _jets(x, probes, order, dtype, chunk_size, free=False)
    return _all_orders(jets, order, 0).reshape(order + 1, *probes.batch)


def _jets(x, probes: Probes, order: int, dtype, chunk_size, *, free: bool):
    """Orders that can differ from zero, in the storage of `x`, probe axes merged."""
    from t3._tensor.format import TuckerTensorTrain

    count = min(order, len(x.shape) - free) + 1
    x = jax.tree.map(lambda core: core.astype(dtype), x)
    tensor = isinstance(x, TuckerTensorTrain)
    network = x if tensor else x.frame
    size = resolve_chunk_size(
        chunk_size, network, probes.count, count, free=free, n_shards=probes.n_shards
    )
    if tensor:
        return _sample_tensor((x, probes), Spec(free, count, size, x.sizes))
    return _sample_tangent(x, probes, free, count, size)


@eqx.filter_jit
def _sample_tensor(arrays, spec: Spec):
    return _trainable((arrays[0].tucker_cores, arrays[0].tt_cores, arrays[1]), spec)


@eqx.filter_custom_vjp
def _trainable(arrays, spec: Spec):
    return _run_tensor(arrays, spec)[0]


def _run_tensor(arrays, spec: Spec):
    """Jets; and for a probe also the coefficients that are lifted to them."""
    tucker, train, probes = arrays
    chunk = forward.tensor_probe_chunk if spec.free else forward.tensor_apply_chunk
    ends = _ends(train, spec)

    def run(points, directions):
        result = chunk(tucker, train, ends, spec.count, points, directions)
        if not spec.free:
            return result, None
        jets, centre = result
        if not is_packed(train):
            # Beside a bond of 1, making them again costs no more than keeping them.
            centre = tuple(
                None if 1 in (core.shape[0], core.shape[2]) else coefficients
                for core, coefficients in zip(train, centre, strict=True)
            )
        return jets, centre

    return map_probes(
        run,
        probes,
        packed=is_packed(tucker),
        chunk_size=spec.chunk_size,
        keep_axis=-2 if spec.free else -1,
    )


@_trainable.def_fwd
def _trainable_fwd(perturbed, arrays, spec: Spec):
    del perturbed
    return _run_tensor(arrays, spec)


@_trainable.def_bwd
def _trainable_bwd(centre, cotangent, perturbed, arrays, spec: Spec):
    tucker, train, probes = arrays
    perturbed_cores, perturbed_probes = perturbed[:2], perturbed[2]
    trains = backward.HoleTrains(tucker, train, train, train, *_ends(train, spec))

    def run(chunk, *extras, **options):
        return map_probes(
            lambda *inputs: chunk(trains, spec.count, *inputs),
            probes,
            *extras,
            packed=is_packed(tucker),
            chunk_size=spec.chunk_size,
            **options,
        )

    cotangents = jax.tree.map(lambda _: None, arrays)
    if any(jax.tree.leaves(perturbed_cores)):
        if spec.free:
            chunk = functools.partial(backward.probe_transpose_chunk, keep=False)
            cores = run(chunk, cotangent, centre)
        else:
            chunk = functools.partial(backward.apply_transpose_chunk, keep=False)
            cores = run(chunk, cotangent)
        cotangents = (*cores, cotangents[2])
    if any(jax.tree.leaves(perturbed_probes)):
        chunk = backward.probe_input_chunk if spec.free else backward.apply_input_chunk
        inputs = [as_given(part, probes) for part in run(chunk, cotangent, keep_axis=-2)]
        points = cotangents[2].points if probes.indexed else inputs[0]
        directions = inputs[1] if len(inputs) > 1 else None
        # The fields hold arrays of None here, which a constructor's checks need not see.
        shell = eqx.tree_at(
            lambda p: (p.points, p.directions),
            probes,
            (points, directions),
            is_leaf=lambda leaf: leaf is None,
        )
        cotangents = (*cotangents[:2], shell)
    return cotangents


@eqx.filter_jit
def _sample_tangent(v: "T3Tangent", probes: Probes, free: bool, count: int, size: int | None):
    chunk = forward.tangent_probe_chunk if free else forward.tangent_apply_chunk
    return map_probes(
        lambda points, directions: chunk(v.frame, v.variations, count, points, directions),
        probes,
        packed=v.frame.is_packed,
        chunk_size=size,
        keep_axis=-2 if free else -1,
    )


def _ends(train: Cores, spec: Spec):
    dtype = train[0].dtype
    return (
        jnp.ones(spec.sizes.tt[0], dtype),
        jnp.ones(spec.sizes.tt[-1], dtype),
    )


def as_given(family: Modes, probes: Probes) -> Modes:
    """Outputs of all modes in the form in which the probes were given."""
    if probes.stacked == is_packed(family):
        return family
    if probes.stacked:
        return stack_padded(family, [max(probes.shape)])
    return split_padded(family, [[size] for size in probes.shape])


def _all_orders(jets, order: int, axis: int):
    """Orders above the polynomial degree, which are zero."""
    axis %= jets.ndim
    widths = [(0, order + 1 - jets.shape[axis] if i == axis else 0) for i in range(jets.ndim)]
    return jnp.pad(jets, widths)

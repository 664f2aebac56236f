"""Samples of tensors and tangents, and the transpose: one pair of functions for every sampling.

Samples of tensors are differentiable in cores, vectors and directions by reverse mode, as often as
wanted. The backward pass is the chunked transpose: it needs the memory of one chunk, and of the
forward pass what the sampling keeps (of a probe, ``n_i`` numbers for each ``N_i`` of the output).
Forward mode is not defined for tensors: a tangent has the same functions and is the derivative along
a variation of the cores.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

import memory
from t3._sampling.chunk_size import ChunkSize, resolve_chunk_size
from t3._sampling.loop import map_probes
from t3._sampling.probes import Along, Probes, common_dtype
from t3._sampling.sampling import Sampling, check_sampling, modes_as_given
from t3._sampling.sharding import over_devices, warn_of_sharded_probes
from t3._tensor.cores import TensorCores
from t3._tensor.network import HoleTrains, Network, T3Variations, Train
from t3._tensor.packing import is_packed


class Spec(NamedTuple):
    """What is static about a sampling of a tensor.

    Attributes:
        form: the sampling without its probes.
        orders: how many are computed.
        chunk_size: probes in a chunk.
        left, right: true sizes of the end bonds.
    """

    form: Sampling
    orders: int
    chunk_size: int | None
    left: int
    right: int


def sample(
    x: Any,
    sampling: Sampling,
    *,
    chunk_size: ChunkSize = "auto",
    mesh: Mesh | memory.Devices | None = None,
    axis: str | None = None,
) -> Any:
    """What a sampling measures of a tensor or of a tangent (then this is ``J v``).

    With vectors ``x_i + s p_i``, samples are polynomials in s; with an order K their derivatives 0
    .. K at s = 0 are on a leading axis. Those above the degree are exactly zero.

    Args:
        x: `t3.TuckerTensorTrain` or `t3.T3Tangent`.
        sampling: `t3.Probe`, `t3.Apply`, `t3.Entries`, or one of your own.
        chunk_size: probes worked on at a time; None for all, ``"auto"`` for what fits the cache and
            stays comparable to inputs and outputs. The result does not depend on it beyond rounding.
        mesh: devices over which the first probe axis is split; the results stay split. Every device
            works through its own probes in chunks, on a tensor that all of them hold.
        axis: the name of the mesh axis; may be left out where there is one.

    Returns:
        Values in the shapes that the sampling says.

    Raises:
        ValueError: shapes that do not fit, a negative order, a chunk size below 1; a number of
            probes that does not divide over the devices.

    Cost: the operations that the sampling says, and the memory of one chunk beyond inputs and
        outputs.
    """
    check_sampling(sampling)
    devices = memory.Devices.of(mesh, axis)
    if devices is not None:
        return over_devices(_share, x, sampling, None, devices, chunk_size, summed=False)
    warn_of_sharded_probes(sampling)
    if not isinstance(x, TensorCores) and not hasattr(x, "variations"):
        raise ValueError(
            f"x must be a t3.TuckerTensorTrain or a t3.T3Tangent, got {type(x).__name__}."
        )
    dtype = common_dtype(x, sampling)
    probes = sampling.located(x.shape, dtype)
    x = jax.tree.map(lambda core: core.astype(dtype), x)
    network = x if isinstance(x, TensorCores) else x.frame
    form, count = sampling.form, sampling.count(len(x.shape))
    size = resolve_chunk_size(
        chunk_size, network, probes.count, count, form=form, n_shards=probes.n_shards
    )
    if isinstance(x, TensorCores):
        spec = Spec(form, count, size, x.hole_sizes.left[0], x.hole_sizes.right[-1])
        values = _sample_tensor((x.tucker_cores, x.tt_cores, probes), spec)
    else:
        varied = x.variations.tucker, x.variations.tt
        values = _sample_tangent(network.holes, varied, probes, form, count, size)
    return form.as_given(values, probes)


def sample_transpose(
    residual: Any,
    sampling: Sampling,
    frame: Network,
    *,
    sum_over_probes: bool = False,
    chunk_size: ChunkSize = "auto",
    mesh: Mesh | memory.Devices | None = None,
    axis: str | None = None,
) -> T3Variations:
    """Transpose of `sample` of tangents, ``J^T r``: residuals back-projected onto a frame.

    With J the map from a tangent's variations to its samples, ``<r, J v> = <J^T r, v>`` for every v.
    This is the bare transpose: variations in all coordinates. ``T3Tangent(frame,
    variations).project()`` makes the Riemannian gradient of it.

    Args:
        residual: in the shapes of the samples.
        sampling: as in `sample`.
        frame: the frame, orthogonal or not. A Tucker tensor train stands for the frame of its own
            cores: the result is then the gradient in the cores.
        sum_over_probes: add over probes (the Gauss-Newton gradient), or keep their axes.
        chunk_size: as in `sample`.
        mesh: devices over which the first probe axis is split. A summed result ends in one
            all-reduce and is on every device; a kept one stays split. Where the devices do not divide
            the probes, a sum is filled up with probes whose residual is zero.
        axis: the name of the mesh axis; may be left out where there is one.

    Returns:
        Variations in the storage of the frame. Kept, every leaf has the probe axes ``*W`` in front.

    Raises:
        ValueError: shapes that do not fit, a negative order, a chunk size below 1; kept results of a
            number of probes that does not divide over the devices.

    Cost: the operations that the sampling says, and the memory of one chunk beyond inputs and
        outputs. Orders above the degree cost nothing: they do not depend on the tensor.
    """
    check_sampling(sampling)
    devices = memory.Devices.of(mesh, axis)
    if devices is not None:
        options = {"summed": sum_over_probes}
        return over_devices(_share, frame, sampling, residual, devices, chunk_size, **options)
    warn_of_sharded_probes(sampling)
    dtype = common_dtype(frame, residual, sampling)
    probes = sampling.located(frame.shape, dtype)
    residual = sampling.checked(residual, probes, dtype, "residual")
    form, count = sampling.form, sampling.count(len(frame.shape))
    size = resolve_chunk_size(
        chunk_size, frame, probes.count, count, form=form, n_shards=probes.n_shards
    )
    frame = jax.tree.map(lambda core: core.astype(dtype), frame)
    variations = _transpose(frame.holes, probes, residual, form, count, sum_over_probes, size)
    if sum_over_probes:
        return variations
    return jax.tree.map(lambda a: a.reshape(*probes.batch, *a.shape[1:]), variations)


def _share(network, sampling: Sampling, residual, chunk_size: ChunkSize, summed: bool):
    """What one of many devices does."""
    if residual is None:
        return sample(network, sampling, chunk_size=chunk_size)
    options = {"sum_over_probes": summed, "chunk_size": chunk_size}
    return sample_transpose(residual, sampling, network, **options)


@eqx.filter_jit
def _transpose(
    holes: HoleTrains,
    probes: Probes,
    residual: Any,
    form: Sampling,
    count: int,
    summed: bool,
    size: int | None,
) -> T3Variations:
    return T3Variations(
        *map_probes(
            lambda *inputs: form.transpose_chunk(holes, count, *inputs, keep=not summed),
            probes.shape,
            *form.along(probes.points, probes.directions, residual),
            packed=is_packed(holes.tucker),
            chunk_size=size,
            keep_axis=None if summed else 0,
        )
    )


@eqx.filter_jit
def _sample_tangent(
    holes: HoleTrains, variations: Any, probes: Probes, form: Sampling, count: int, size: int | None
) -> Any:
    return map_probes(
        lambda *inputs: form.tangent_chunk(holes, variations, count, *inputs),
        probes.shape,
        *form.along(probes.points, probes.directions)[:2],
        packed=is_packed(holes.tucker),
        chunk_size=size,
        keep_axis=form.axis,
    )


@eqx.filter_jit
def _sample_tensor(arrays, spec: Spec):
    return _trainable(arrays, spec)


@eqx.filter_custom_vjp
def _trainable(arrays, spec: Spec):
    return _run_tensor(arrays, spec)[0]


def _run_tensor(arrays, spec: Spec):
    """Values, and what the sampling keeps of their making."""
    tucker, train, probes = arrays
    cores = Train(tucker, train, *_ends(train, spec))
    return map_probes(
        lambda *inputs: spec.form.sample_chunk_keeping(cores, spec.orders, *inputs),
        probes.shape,
        *spec.form.along(probes.points, probes.directions)[:2],
        packed=is_packed(tucker),
        chunk_size=spec.chunk_size,
        keep_axis=spec.form.axis,
    )


@_trainable.def_fwd
def _trainable_fwd(perturbed, arrays, spec: Spec):
    del perturbed
    return _run_tensor(arrays, spec)


@_trainable.def_bwd
def _trainable_bwd(kept, cotangent, perturbed, arrays, spec: Spec):
    tucker, train, probes = arrays
    form, packed = spec.form, is_packed(tucker)
    holes = HoleTrains(tucker, train, train, train, *_ends(train, spec))
    families = form.along(probes.points, probes.directions, cotangent)

    def run(chunk, *families, **options):
        return map_probes(
            lambda *inputs: chunk(holes, spec.orders, *inputs),
            probes.shape,
            *families,
            packed=packed,
            chunk_size=spec.chunk_size,
            **options,
        )

    cotangents = jax.tree.map(lambda _: None, arrays)
    if any(jax.tree.leaves(perturbed[:2])):
        summed = lambda *inputs: form.transpose_chunk(*inputs, keep=False)  # noqa: E731
        cotangents = (*run(summed, *families, Along(kept, form.axis, False)), cotangents[2])
    if any(jax.tree.leaves(perturbed[2])):
        parts = run(form.input_chunk, *families, keep_axis=-2)
        parts = [modes_as_given(part, probes) for part in parts]
        points = cotangents[2].points if form.indexed else parts.pop(0)
        # The fields hold arrays of None here, which a constructor's checks need not see.
        shell = eqx.tree_at(
            lambda p: (p.points, p.directions),
            probes,
            (points, parts[0] if parts else None),
            is_leaf=lambda leaf: leaf is None,
        )
        cotangents = (*cotangents[:2], shell)
    return cotangents


def _ends(train: Any, spec: Spec):
    dtype = train[0].dtype
    return jnp.ones(spec.left, dtype), jnp.ones(spec.right, dtype)

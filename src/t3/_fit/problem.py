"""The least-squares problem of a fit, seen only through loops over chunks of probes.

With J the samples of a tangent and w the weights, the objective is ``1/2 |w (samples(x) - data)|^2``
plus ``ridge/2 |x|^2``. Values, gradients and Gauss-Newton products run forward and transpose of one
chunk before the next chunk starts: no residual of all probes exists.
"""

import contextlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

import memory
from t3._fit import geometry as geometries
from t3._fit.split import Split, on_host
from t3._sampling import forward_chunks as forward
from t3._sampling import transpose_chunks as backward
from t3._sampling.chunk_size import ChunkSize, resolve_chunk_size
from t3._sampling.kinds import Measurements, Sampling, measurements
from t3._sampling.probes import common_dtype, map_probes
from t3._sampling.transpose import hole_trains
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import is_packed


class LeastSquares(eqx.Module):
    """``1/2 |w (samples(x) - data)|^2 + ridge/2 |x|^2`` for tensors of one size and storage.

    Attributes:
        measured: samples and data.
        square_weight: ``w^2``, ``(d, T)`` for probes, else ``(T,)``.
        ridge: Tikhonov factor, or None.
        chunk_size: probes in a chunk; None for all.
        split: how probes are shared out over devices, or None. Every sum over probes then ends in
            one all-reduce.
    """

    measured: Measurements
    square_weight: Array | None
    ridge: Array | None
    chunk_size: int | None = eqx.field(static=True)
    split: Split | None = eqx.field(static=True, default=None)

    @property
    def dtype(self) -> Any:
        return jax.tree.leaves(self.measured.data)[0].dtype

    def data_square(self) -> Float[Array, ""]:
        """``|w data|^2``: the objective of the zero tensor, doubled."""

        def chunk(points, directions, data, mask):
            return 2 * _half_dot(data, self._weighted(data, mask))

        return self._over_chunks(chunk, is_packed(self.measured.data))

    def residual(self, x: TuckerTensorTrain) -> Any:
        """``samples(x) - data``, unweighted: d arrays ``(T, W, N_i)``, or ``(T, W)``.

        On many devices it stays split, with W filled up to a multiple of them.
        """
        return self._over_chunks(
            lambda points, directions, data, _: _minus(self._samples(x, points, directions), data),
            x.is_packed,
            keep_axis=-2 if self.measured.free else -1,
        )

    def objective(self, x: TuckerTensorTrain) -> Float[Array, ""]:
        """Its value at `x`. Memory: one chunk."""

        def chunk(points, directions, data, mask):
            r = _minus(self._samples(x, points, directions), data)
            return _half_dot(r, self._weighted(r, mask))

        value = self._over_chunks(chunk, x.is_packed)
        return value if self.ridge is None else value + self.ridge * x.inner(x) / 2

    def misfit(self, x: TuckerTensorTrain, objective: Array) -> Float[Array, ""]:
        """``1/2 |w (samples(x) - data)|^2``, which is the objective `x` has without its ridge."""
        if self.ridge is None:
            return objective
        return jnp.maximum(objective - self.ridge * x.inner(x) / 2, 0)

    def value_and_gradient(
        self, geometry: geometries.Geometry, x: TuckerTensorTrain, frame: T3Frame
    ) -> tuple[Float[Array, ""], T3Variations]:
        """Objective and gradient at `x`, whose frame in the geometry is given."""
        trains = hole_trains(frame)

        def chunk(points, directions, data, mask):
            r = _minus(self._samples(x, points, directions), data)
            weighted = self._weighted(r, mask)
            return _half_dot(r, weighted), self._back(trains, points, directions, weighted)

        value, (tucker, train) = self._over_chunks(chunk, x.is_packed)
        gradient = T3Variations(tucker, train)
        if self.ridge is not None:
            value = value + self.ridge * x.inner(x) / 2
            gradient = gradient + self._ridge_gradient(geometry, x, frame) * self.ridge
        return value, geometries.project(geometry, frame, gradient)

    def gradient(
        self, x: TuckerTensorTrain, *, geometry: geometries.Geometry = "manifold"
    ) -> tuple[T3Frame, T3Variations]:
        """Frame at `x` and gradient there."""
        frame = geometries.frame_at(geometry, x)
        return frame, self.value_and_gradient(geometry, x, frame)[1]

    def sweeps(self, frame: T3Frame) -> forward.FrameSweeps:
        """What all Gauss-Newton products at a frame compute alike, for all probes."""

        def chunk(points, directions, *_):
            orders, free = self.measured.orders, self.measured.free
            return forward.frame_sweeps(frame, orders, points, directions, free=free)

        return self._over_chunks(chunk, frame.is_packed, data=False, keep_axis=-2)

    def gauss_newton_product(
        self,
        geometry: geometries.Geometry,
        frame: T3Frame,
        v: T3Variations,
        sweeps: forward.FrameSweeps | None = None,
    ) -> T3Variations:
        """``(J^T w^2 J + ridge) v``, projected. `v` must be gauged on the manifold.

        The `sweeps` of the frame need not be given; with them those parts are read, not made.
        """
        trains = hole_trains(frame)
        count = self.measured.orders
        run = forward.tangent_probe_chunk if self.measured.free else forward.tangent_apply_chunk

        def chunk(points, directions, _, mask, *kept):
            known = forward.FrameSweeps(*kept) if kept else None
            jets = self._weighted(run(frame, v, count, points, directions, known), mask)
            return self._back(trains, points, directions, jets, known)

        kept = sweeps or ()
        out = T3Variations(*self._over_chunks(chunk, frame.is_packed, *kept, data=False))
        if self.ridge is not None:
            out = out + v * self.ridge
        return geometries.project(geometry, frame, out)

    def batch(self, index: Array) -> "LeastSquares":
        """The problem of some probes, with the ridge in proportion.

        Args:
            index: which, ``(w,)``; on many devices ``(devices, w / devices)``, of each its own.
        """
        share = index.size / self.measured.probes.count
        ridge = None if self.ridge is None else self.ridge * jnp.asarray(share, self.ridge.dtype)
        split, measured = self.split, self.measured
        part = measured.batch(index) if split is None else split.batch(measured, index)
        return LeastSquares(part, self.square_weight, ridge, self.chunk_size, split)

    def _over_chunks(
        self, fn, packed: bool, *kept: Any, data: bool = True, keep_axis: int | None = None
    ):
        """``fn(points, directions, data, mask, *kept)`` over chunks, of each device's own probes."""

        def share(measured, *kept):
            return map_probes(
                fn,
                measured.probes,
                measured.data if data else None,
                measured.mask,
                *kept,
                packed=packed,
                chunk_size=self.chunk_size,
                keep_axis=keep_axis,
            )

        if self.split is None:
            return share(self.measured, *kept)
        return self.split.run(share, self.measured, *kept, keep_axis=keep_axis, packed=packed)

    def _samples(self, x, points, directions):
        parts = x.tucker_cores, x.tt_cores, (x.left_end, x.right_end), self.measured.orders
        if self.measured.free:
            return forward.tensor_probe_chunk(*parts, points, directions)[0]
        return forward.tensor_apply_chunk(*parts, points, directions)

    def _back(self, trains, points, directions, jets, sweeps=None):
        inputs = trains, self.measured.orders, points, directions, jets
        if self.measured.free:
            centre = None if sweeps is None else sweeps.centre
            return backward.probe_transpose_chunk(*inputs, centre, keep=False)
        known = None if sweeps is None else forward.turned((sweeps.slots, sweeps.left))
        return backward.apply_transpose_chunk(*inputs, known, keep=False)

    def _weighted(self, r, mask):
        if mask is not None:
            trailing = (-1, 1) if self.measured.free else (-1,)
            factor = lambda a: mask.reshape(*[1] * (a.ndim - len(trailing)), *trailing)  # noqa: E731
            r = jax.tree.map(lambda a: a * factor(a), r)
        if self.square_weight is None:
            return r
        if not self.measured.free:
            return r * self.square_weight[:, None]
        if is_packed(r):
            return r * self.square_weight[:, :, None, None]
        return tuple(a * self.square_weight[i][:, None, None] for i, a in enumerate(r))

    def _ridge_gradient(self, geometry, x, frame):
        if geometry == "manifold":
            return geometries.point_direction(frame)
        slope = jax.grad(lambda z: z.inner(z) / 2)(x)
        return T3Variations(slope.tucker_cores, slope.tt_cores)


def least_squares(
    x: TuckerTensorTrain,
    sampling: Sampling,
    data: Any,
    *,
    weight: Any = None,
    ridge: float | Array | None = None,
    chunk_size: ChunkSize = "auto",
    batch_size: int | None = None,
    mesh: Mesh | None = None,
    axis: str | None = None,
) -> LeastSquares:
    """The problem of fitting tensors of the sizes and storage of `x`.

    Args:
        x: gives shape, ranks, storage and dtype.
        sampling: `t3.Probe`, `t3.Apply` or `t3.Entries`.
        data: what was measured, in the shapes that the sampling functions return.
        weight: factors of the residual: a number, ``(K + 1,)`` by order, for probes also ``(d, K +
            1)`` by mode and order, or ``(d,)`` by mode where they have no orders.
        ridge: Tikhonov factor, not negative.
        chunk_size: probes worked on at a time; `"auto"` from the sizes.
        batch_size: probes of a minibatch, for `"auto"`.
        mesh, axis: devices to share the probes out over, as in `t3.fit`.

    Raises:
        ValueError: shapes that do not fit, a negative ridge, an axis that the mesh does not have.
    """
    dtype = common_dtype(x)
    split = Split.checked(mesh, axis)
    # Whole samples that are to be shared out wait in the machine's memory, not on one device.
    with contextlib.nullcontext() if split is None else on_host():
        measured = measurements(x.shape, sampling, data, dtype, packed=x.is_packed)
    d, orders = x.ndim, measured.orders
    square = None
    if weight is not None:
        weight = jnp.asarray(weight, dtype)
        by_order = (sampling.order or 0) + 1
        given = (d, by_order) if measured.free else (by_order,)
        if measured.free and sampling.order is None and weight.shape == (d,):
            weight = weight[:, None]
        if weight.ndim > len(given) or weight.shape != given[len(given) - weight.ndim :]:
            raise ValueError(
                f"weight has shape {weight.shape}, expected a number, or a shape that ends "
                f"{given}: modes and orders for probes, orders otherwise."
            )
        square = jnp.broadcast_to(
            weight.reshape((1,) * (len(given) - weight.ndim) + weight.shape), given
        )
        square = square[..., :orders] ** 2
    if ridge is not None:
        if np.ndim(ridge) or not (isinstance(ridge, jax.core.Tracer) or float(ridge) >= 0):
            raise ValueError(f"The regularizer must be one number, not negative, got {ridge}.")
        ridge = jnp.asarray(ridge, dtype)
    count = min(batch_size or measured.probes.count, measured.probes.count)
    if split is not None:
        measured, count = split.place(measured), -(-count // split.devices)
    size = resolve_chunk_size(chunk_size, x, count, orders, free=measured.free)
    return LeastSquares(measured, square, ridge, size, split)


def check_sweeps_fit(
    problem: LeastSquares, geometry: geometries.Geometry, x: TuckerTensorTrain
) -> None:
    """Raises ValueError when the sweeps of all probes would not fit into memory."""
    shapes = eqx.filter_eval_shape(
        lambda problem, x: problem.sweeps(geometries.frame_at(geometry, x)), problem, x
    )
    need = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    device, where, more = None, "the device", "devices"
    if problem.split is not None:
        local = problem.split.mesh.local_devices
        device, where = local[0], "each device"
        need //= problem.split.devices
        if device.platform == "cpu":
            # All of them are in the one memory of the machine.
            need *= len(local)
            where, more = f"the {len(local)} processor devices of this process", "machines"
    have = memory.available_bytes(device)
    if have is not None and need > have:
        raise ValueError(
            f"resident=True keeps {memory.format_bytes(need)} of sweeps on {where}, with "
            f"{memory.format_bytes(have)} left: leave it out (they are made anew for each product), "
            f"or split the probes over more {more} with mesh=."
        )


def _minus(a, b):
    return jax.tree.map(jnp.subtract, a, b)


def _half_dot(a, b):
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, a, b)) / 2

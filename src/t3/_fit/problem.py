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
from jaxtyping import Array, Float

from t3._fit.geometry import Geometry, as_geometry
from t3._fit.split import Split, on_host
from t3._sampling.chunk_size import ChunkSize, resolve_chunk_size
from t3._sampling.loop import map_probes
from t3._sampling.measurements import Measurements, measurements, times_mask
from t3._sampling.probes import common_dtype
from t3._sampling.sampling import Sampling
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

    def largest(self) -> Float[Array, ""]:
        """Largest of ``|w data|``."""
        weight = None if self.square_weight is None else jnp.sqrt(self.square_weight)
        parts = jax.tree.leaves(_scaled(jax.tree.map(jnp.abs, self.measured.data), weight))
        return jnp.max(jnp.stack([jnp.max(a) for a in parts]))

    def with_data(self, data: Any) -> "LeastSquares":
        """The same samples with other data, stored as these are."""
        return eqx.tree_at(lambda problem: problem.measured.data, self, data)

    def residual(self, x: TuckerTensorTrain) -> Any:
        """``samples(x) - data``, unweighted: d arrays ``(T, W, N_i)``, or ``(T, W)``.

        On many devices it stays split, with W filled up to a multiple of them.
        """
        return self._over_chunks(
            lambda points, directions, data, _: _minus(self._samples(x, points, directions), data),
            x.is_packed,
            keep_axis=self.measured.form.axis,
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
        self, geometry: Geometry | str, x: TuckerTensorTrain, frame: T3Frame
    ) -> tuple[Float[Array, ""], T3Variations]:
        """Objective and gradient at `x`, whose frame in the geometry is given."""
        geometry = as_geometry(geometry)
        trains = frame.holes

        def chunk(points, directions, data, mask):
            r = _minus(self._samples(x, points, directions), data)
            weighted = self._weighted(r, mask)
            return _half_dot(r, weighted), self._back(trains, points, directions, weighted)

        value, (tucker, train) = self._over_chunks(chunk, x.is_packed)
        gradient = T3Variations(tucker, train)
        if self.ridge is not None:
            value = value + self.ridge * x.inner(x) / 2
            gradient = gradient + geometry.point(x, frame) * self.ridge
        return value, geometry.project(frame, gradient)

    def gradient(
        self, x: TuckerTensorTrain, *, geometry: Geometry | str = "manifold"
    ) -> tuple[T3Frame, T3Variations]:
        """Frame at `x` and gradient there."""
        frame = as_geometry(geometry).frame(x)
        return frame, self.value_and_gradient(geometry, x, frame)[1]

    def gauss_newton_product(
        self, geometry: Geometry | str, frame: T3Frame, v: T3Variations
    ) -> T3Variations:
        """``(J^T w^2 J + ridge) v``, projected. `v` must be gauged on the manifold."""
        trains = frame.holes
        count = self.measured.orders
        form, varied = self.measured.form, (v.tucker, v.tt)

        def chunk(points, directions, _, mask):
            jets = form.tangent_chunk(trains, varied, count, points, directions)
            jets = self._weighted(jets, mask)
            return self._back(trains, points, directions, jets)

        out = T3Variations(*self._over_chunks(chunk, frame.is_packed, data=False))
        if self.ridge is not None:
            out = out + v * self.ridge
        return as_geometry(geometry).project(frame, out)

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

    def _over_chunks(self, fn, packed: bool, *, data: bool = True, keep_axis: int | None = None):
        """``fn(points, directions, data, mask)`` over chunks, of each device's own probes."""

        def share(measured):
            points, directions, values, mask = measured.families
            return map_probes(
                fn,
                measured.probes.shape,
                points,
                directions,
                values if data else values._replace(family=None),
                mask,
                packed=packed,
                chunk_size=self.chunk_size,
                keep_axis=keep_axis,
            )

        if self.split is None:
            return share(self.measured)
        return self.split.run(share, self.measured, keep_axis=keep_axis, packed=packed)

    def _samples(self, x, points, directions):
        measured = self.measured
        return measured.form.sample_chunk(x.train, measured.orders, points, directions)

    def _back(self, trains, points, directions, jets):
        inputs = trains, self.measured.orders, points, directions, jets
        return self.measured.form.transpose_chunk(*inputs, keep=False)

    def _weighted(self, r, mask):
        return _scaled(times_mask(r, mask, self.measured.form), self.square_weight)


def least_squares(
    x: TuckerTensorTrain,
    sampling: Sampling,
    data: Any,
    *,
    weight: Any = None,
    ridge: float | Array | None = None,
    chunk_size: ChunkSize = "auto",
    batch_size: int | None = None,
    mesh: Any = None,
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
    split = Split.of(mesh, axis)
    # Whole samples that are to be shared out wait in the machine's memory, not on one device.
    with contextlib.nullcontext() if split is None else on_host():
        measured = measurements(x.shape, sampling, data, dtype, packed=x.is_packed)
    d, orders = x.ndim, measured.orders
    square = None
    if weight is not None:
        weight = _checked_weight(weight, dtype)
        by_order = (sampling.highest or 0) + 1
        given = (d, by_order) if measured.form.by_mode else (by_order,)
        if measured.form.by_mode and sampling.highest is None and weight.shape == (d,):
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
        ridge = ridge if isinstance(ridge, jax.core.Tracer) else checked_ridge(ridge)
        ridge = jnp.asarray(ridge, dtype)
    count = min(batch_size or measured.probes.count, measured.probes.count)
    if split is not None:
        measured, count = split.place(measured), -(-count // split.count)
    size = resolve_chunk_size(chunk_size, x, count, orders, form=measured.form)
    return LeastSquares(measured, square, ridge, size, split)


def checked_ridge(ridge: Any) -> float:
    """A regularizer as a number.

    Raises:
        ValueError: when it is no number, or negative.
    """
    if np.ndim(ridge) or not float(ridge) >= 0:
        raise ValueError(f"The regularizer must be one number, not negative, got {ridge}.")
    return float(ridge)


def _checked_weight(weight: Any, dtype: Any) -> Array:
    if not isinstance(weight, jax.core.Tracer):
        exact = np.asarray(weight, np.float64)
        square = np.square(exact.astype(dtype))
        if not np.all(np.isfinite(square)) or np.any((square == 0) != (exact == 0)):
            raise ValueError(
                f"weight must hold factors whose squares {np.dtype(dtype).name} can hold, got {exact}."
            )
    return jnp.asarray(weight, dtype)


def _scaled(r: Any, factors: Array | None) -> Any:
    """Residuals times factors by mode and order (probes), or by order."""
    if factors is None:
        return r
    if factors.ndim == 1:
        return r * factors.reshape(-1, *[1] * (r.ndim - 1))
    if is_packed(r):
        return r * factors[:, :, None, None]
    return tuple(a * factors[i][:, None, None] for i, a in enumerate(r))


def _minus(a, b):
    return jax.tree.map(jnp.subtract, a, b)


def _half_dot(a, b):
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, a, b)) / 2

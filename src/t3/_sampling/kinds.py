"""What is measured of a tensor in a fit: probes, applies or entries, plain or with derivatives."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._sampling.probes import (
    Modes,
    Probes,
    checked_order,
    index_probes,
    residual_jets,
    scalar_residual,
    vector_probes,
)
from t3._tensor.packing import stack_padded


class Probe(eqx.Module):
    """Probes at vectors, and with directions their derivatives along them.

    Attributes:
        ww: points, d arrays ``(*W, N_i)``.
        pp: directions of the same shapes, or None.
        order: highest derivative K; None for plain probes, whose data have no order axis.
    """

    ww: Modes
    pp: Modes | None = None
    order: int | None = eqx.field(static=True, default=None)


class Apply(eqx.Module):
    """The tensor contracted with vectors in all modes, and derivatives. Attributes as `Probe`."""

    ww: Modes
    pp: Modes | None = None
    order: int | None = eqx.field(static=True, default=None)


class Entries(eqx.Module):
    """Entries of the tensor, and derivatives along directions.

    Attributes:
        index: integers ``(d, *W)``.
        pp: directions, d arrays ``(*W, N_i)``, or None.
        order: highest derivative K; None for plain entries, whose data have no order axis.
    """

    index: Any
    pp: Modes | None = None
    order: int | None = eqx.field(static=True, default=None)


Sampling = Probe | Apply | Entries


class Measurements(eqx.Module):
    """Samples and data with the probe axes merged, in the storage of the tensor to fit.

    Attributes:
        probes: where.
        data: probes: d arrays ``(T, W, N_i)`` or stacked; else ``(T, W)``.
        free: whether one mode stays open.
        mask: factor of the residual of each probe, ``(1, W)``; None for ones.
    """

    probes: Probes
    data: Any
    free: bool = eqx.field(static=True)
    mask: Array | None = None

    @property
    def orders(self) -> int:
        """Derivative orders held, T."""
        return self.data.shape[0] if not self.free else self.data[0].shape[-3]

    def batch(self, index: Array) -> "Measurements":
        """The measurements of some probes only."""
        return self.along_probes(lambda a, axis: jnp.take(a, index, axis=axis), index.shape[0])

    def masked(self, mask: Array) -> "Measurements":
        """With a factor of the residual for each probe, ``(1, W)``."""
        return Measurements(self.probes, self.data, self.free, mask)

    def along_probes(self, fn: Callable[[Any, int], Any], count: int) -> "Measurements":
        """``fn(array, axis)`` in place of every array, `axis` being where it has its probes.

        Args:
            fn: the same for all arrays.
            count: probes of the result.
        """
        at = lambda axis: lambda a: fn(a, axis)  # noqa: E731
        probes = Probes(
            jax.tree.map(at(-1 if self.probes.indexed else -2), self.probes.points),
            jax.tree.map(at(-2), self.probes.directions),
            self.probes.shape,
            (count,),
        )
        data = jax.tree.map(at(-2 if self.free else -1), self.data)
        return Measurements(probes, data, self.free, jax.tree.map(at(-1), self.mask))


def measurements(
    shape: tuple[int, ...], sampling: Sampling, data: Any, dtype: Any, *, packed: bool
) -> Measurements:
    """Check samples and data against each other and against the shape of the tensor.

    Orders above the degree of the samples in the line parameter (d - 1 for probes, else d) do not
    depend on the tensor and are left out.

    Raises:
        ValueError: shapes that do not fit; they are named.
    """
    if not isinstance(sampling, Sampling):
        raise ValueError(
            f"sampling must be t3.Probe, t3.Apply or t3.Entries, got {type(sampling).__name__}."
        )
    if sampling.order is None and sampling.pp is not None:
        raise ValueError(
            "The directions pp of samples without derivatives have no effect: give order=, or leave "
            "pp out."
        )
    if data is None:
        raise ValueError("A fit needs data in the shapes that its sampling gives, got None.")
    free = isinstance(sampling, Probe)
    order = checked_order(0 if sampling.order is None else sampling.order)
    keep = min(order, len(shape) - free) + 1
    if isinstance(sampling, Entries):
        probes = index_probes(shape, sampling.index, sampling.pp, order, dtype)
    else:
        degree = min(keep - 1, 1)
        probes = vector_probes(shape, sampling.ww, sampling.pp, order, degree, dtype)
    if sampling.order is None:
        data = (
            jax.tree.map(lambda a: jnp.asarray(a)[None], data) if free else jnp.asarray(data)[None]
        )
    check = residual_jets if free else scalar_residual
    if probes.count == 0:
        raise ValueError("A fit needs at least one probe, got none.")
    data = check(data, probes, order, keep, dtype, "data")
    probes = Probes(probes.points, probes.directions, probes.shape, (probes.count,))
    if packed and not probes.stacked:
        width = [max(shape)]
        index = jnp.issubdtype(probes.points[0].dtype, jnp.integer)
        directions = probes.directions
        probes = Probes(
            jnp.stack(probes.points) if index else stack_padded(probes.points, width),
            None if directions is None else stack_padded(directions, width),
            probes.shape,
            probes.batch,
        )
        data = stack_padded(data, width) if free else data
    return Measurements(probes, data, free)

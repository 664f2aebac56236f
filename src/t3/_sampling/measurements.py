"""Samples and data as a fit uses them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._sampling.probes import Along, Probes
from t3._sampling.sampling import Sampling, check_sampling
from t3._tensor.packing import stack_padded


class Measurements(eqx.Module):
    """Samples and data with the probe axes merged, in the storage of the tensor to fit.

    Attributes:
        probes: where.
        data: values of the sampling, of the orders that depend on a tensor.
        form: the sampling without its probes.
        mask: factor of the residual of each probe, ``(1, W)``; None for ones.
    """

    probes: Probes
    data: Any
    form: Sampling
    mask: Array | None = None

    @property
    def orders(self) -> int:
        """Derivative orders held, T."""
        return jax.tree.leaves(self.data)[0].shape[self.form.axis - 1]

    @property
    def families(self) -> tuple[Along, ...]:
        """Points, directions, data and mask, each with where it has its probes."""
        probes = self.probes
        return (
            *self.form.along(probes.points, probes.directions, self.data),
            Along(self.mask, -1, False),
        )

    def batch(self, index: Array) -> "Measurements":
        """The measurements of some probes only."""
        return self.along_probes(lambda a, axis: jnp.take(a, index, axis=axis), index.shape[0])

    def masked(self, mask: Array) -> "Measurements":
        """With a factor of the residual for each probe, ``(1, W)``."""
        return Measurements(self.probes, self.data, self.form, mask)

    def along_probes(self, fn: Callable[[Any, int], Any], count: int) -> "Measurements":
        """``fn(array, axis)`` in place of every array, `axis` being where it has its probes.

        Args:
            fn: the same for all arrays.
            count: probes of the result.
        """
        points, directions, data, mask = (along.map(fn).family for along in self.families)
        probes = Probes(points, directions, self.probes.shape, (count,))
        return Measurements(probes, data, self.form, mask)


def times_mask(values: Any, mask: Array | None, form: Sampling) -> Any:
    """Values times factors of their probes, ``(1, W)``."""
    if mask is None:
        return values
    trailing = [1] * (-1 - form.axis)
    factor = lambda a: mask.reshape(*[1] * (a.ndim + form.axis), -1, *trailing)  # noqa: E731
    return jax.tree.map(lambda a: a * factor(a), values)


def measurements(
    shape: tuple[int, ...], sampling: Sampling, data: Any, dtype: Any, *, packed: bool
) -> Measurements:
    """Check samples and data against each other and against the shape of the tensor.

    Orders above the degree of the samples in the line parameter do not depend on the tensor and are
    left out.

    Raises:
        ValueError: shapes that do not fit; they are named.
    """
    check_sampling(sampling)
    if data is None:
        raise ValueError("A fit needs data in the shapes that its sampling gives, got None.")
    probes = sampling.located(shape, dtype)
    if probes.count == 0:
        raise ValueError("A fit needs at least one probe, got none.")
    data = sampling.checked(data, probes, dtype, "data")
    probes = Probes(probes.points, probes.directions, probes.shape, (probes.count,))
    if packed and not probes.stacked:
        width = [max(shape)]
        directions = probes.directions
        probes = Probes(
            stack_padded(probes.points, [] if sampling.indexed else width),
            None if directions is None else stack_padded(directions, width),
            probes.shape,
            probes.batch,
        )
        data = stack_padded(data, width) if sampling.by_mode else data
    return Measurements(probes, data, sampling.form)

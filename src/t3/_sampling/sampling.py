"""What a sampling of a tensor has to know: its inputs, the arithmetic of a chunk of probes, its values."""

import abc
import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from t3._sampling.probes import Along, Modes, Probes, checked_order, checked_values
from t3._tensor.network import HoleTrains, Train
from t3._tensor.packing import Cores, is_packed, split_padded, stack_padded


class Sampling(eqx.Module):
    """Something linear that is measured of a tensor at many probes, with derivatives or without.

    A subclass holds the probes as fields (families of d arrays, or stacked), says what they are in
    `probes`, and computes a chunk of them in `sample_chunk`. All else follows: samples of tangents,
    transposes, gradients, chunks, devices, fits. What follows by differentiation may be written by
    hand where it is faster. Whatever else a subclass needs must be a static field.

    In the methods for chunks, `count` is how many orders are computed, `points` and `directions`
    are w probes in the storage of the cores, and values are derivatives ``(count, w)``, or
    ``(count, w, *value_shape)``, or by mode d arrays ``(count, w, N_i)`` in that storage.

    One with derivatives has their highest order as a static field `order`, after its probes.

    Attributes:
        by_mode: whether a probe's value is a vector for each mode, of its size.
        value_ndim: axes of a probe's value, where it is one array.
        indexed: whether points are integer indices.
    """

    by_mode: ClassVar[bool] = False
    value_ndim: ClassVar[int] = 0
    indexed: ClassVar[bool] = False

    # What each must say.

    @abc.abstractmethod
    def probes(self, shape: tuple[int, ...], dtype: Any) -> Probes:
        """The probes, checked against a shape: `vector_probes` or `index_probes` of the fields."""

    @abc.abstractmethod
    def sample_chunk(self, train: Train, count: int, points: Any, directions: Any) -> Any:
        """Values of a tensor. Linear in each of its cores."""

    # What most have in common.

    @property
    def highest(self) -> int | None:
        """Highest derivative K; None for plain samples, whose values have no order axis."""
        return getattr(self, "order", None)

    def value_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one probe's value, where it is one array."""
        del shape
        return ()

    def degree(self, ndim: int) -> int:
        """Highest derivative that depends on a tensor of so many modes."""
        return ndim

    def slots(self, count: int) -> int:
        """Matrices of two bonds that a probe's transpose makes at a mode."""
        return min(count, 2) + count

    # What follows from `sample_chunk`.

    def sample_chunk_keeping(
        self, train: Train, count: int, points: Any, directions: Any
    ) -> tuple[Any, Any]:
        """Values, and what the transpose can use of their making, probes at the same axis."""
        return self.sample_chunk(train, count, points, directions), None

    def tangent_chunk(
        self,
        holes: HoleTrains,
        variations: tuple[Cores, Cores],
        count: int,
        points: Any,
        directions: Any,
    ) -> Any:
        """Values of a tangent."""
        return self.sample_chunk(holes.filled(variations), count, points, directions)

    def transpose_chunk(
        self,
        holes: HoleTrains,
        count: int,
        points: Any,
        directions: Any,
        residual: Any,
        kept: Any = None,
        *,
        keep: bool,
    ) -> tuple[Cores, Cores]:
        """Variations, Tucker and train, from residual values.

        Args:
            holes: cores around the holes.
            count, points, directions, residual: of w probes.
            kept: of `sample_chunk_keeping`, where `holes` are of a tensor.
            keep: whether results keep a leading axis of probes, or are summed.
        """
        if keep:
            families = points, directions, residual
            axes = [along.axis for along in self.along(*families)]
            one = lambda a, axis: jnp.expand_dims(a, axis)  # noqa: E731

            def of_one(*families):
                rows = [
                    jax.tree.map(lambda a, axis=axis: one(a, axis), family)
                    for family, axis in zip(families, axes, strict=True)
                ]
                return self.transpose_chunk(holes, count, *rows, keep=False)

            return jax.vmap(of_one, in_axes=tuple(axes))(*families)

        def forward(variations):
            return self.tangent_chunk(holes, variations, count, points, directions)

        # Linear, but as a product of cores that each hold a variation: no `jax.linear_transpose`.
        return jax.vjp(forward, holes.no_variations())[1](residual)[0]

    def input_chunk(
        self, holes: HoleTrains, count: int, points: Any, directions: Any, residual: Any
    ) -> tuple[Any, ...]:
        """Cotangents of points that are vectors, then of directions; holes are of a tensor."""
        train = Train(holes.tucker, holes.left, holes.left_end, holes.right_end)
        fixed = (points,) if self.indexed else ()
        moving = [part for part in (points, directions) if part is not None][len(fixed) :]

        def forward(*moving):
            return self.sample_chunk(train, count, *(*fixed, *moving, None)[:2])

        return jax.vjp(forward, *moving)[1](residual)

    # Probes and values.

    @property
    def axis(self) -> int:
        """Where values have their probes, counted from the end; orders are before them."""
        return -2 if self.by_mode else -1 - self.value_ndim

    def along(self, points: Any, directions: Any, values: Any = None) -> tuple[Along, ...]:
        """Each with where it has its probes."""
        return (
            Along(points, -1 if self.indexed else -2),
            Along(directions, -2),
            Along(values, self.axis, self.by_mode),
        )

    def count(self, ndim: int) -> int:
        """Orders that are computed for a tensor of so many modes: the others are zero."""
        return min(self.highest or 0, self.degree(ndim)) + 1

    def numbers(self, shape: tuple[int, ...]) -> int:
        """Of one probe's value, of one order."""
        return sum(shape) if self.by_mode else math.prod(self.value_shape(shape))

    def located(self, shape: tuple[int, ...], dtype: Any) -> Probes:
        """The probes, checked.

        Raises:
            ValueError: shapes that do not fit, a negative order, directions without an order.
        """
        if self.highest is None and getattr(self, "pp", None) is not None:
            raise ValueError(
                "The directions pp of samples without derivatives have no effect: give order=, or "
                "leave pp out."
            )
        checked_order(self.highest or 0)
        return self.probes(shape, dtype)

    def checked(self, values: Any, probes: Probes, dtype: Any, name: str) -> Any:
        """Values with the probe axes merged, of the orders that are computed. Errors use `name`.

        Raises:
            ValueError: shapes that do not fit, complex numbers.
        """
        orders = () if self.highest is None else (self.highest + 1,)
        last = None if self.by_mode else self.value_shape(probes.shape)
        values = checked_values(name, values, probes, orders, last, dtype)
        keep, before = self.count(len(probes.shape)), self.axis - 1

        def merged(a):
            first = a.ndim - len(orders) - len(probes.batch) - self._trailing
            shape = *a.shape[:first], (self.highest or 0) + 1, probes.count
            a = a.reshape(*shape, *a.shape[a.ndim - self._trailing :])
            return jax.lax.slice_in_dim(a, 0, keep, axis=a.ndim + before)

        return jax.tree.map(merged, values)

    def as_given(self, values: Any, probes: Probes) -> Any:
        """Merged values in the form of the probes: their axes, all orders, stacked or not."""
        if self.by_mode:
            values = modes_as_given(values, probes)
        orders = () if self.highest is None else (self.highest + 1,)

        def spread(a):
            axis = a.ndim + self.axis - 1
            if orders:
                missing = orders[0] - a.shape[axis]
                a = jnp.pad(a, [(0, missing if i == axis else 0) for i in range(a.ndim)])
            return a.reshape(*a.shape[:axis], *orders, *probes.batch, *a.shape[axis + 2 :])

        return jax.tree.map(spread, values)

    @property
    def _trailing(self) -> int:
        return -1 - self.axis

    # The sampling without its arrays: what a compiled program depends on.

    @property
    def families(self) -> tuple[Any, ...]:
        """The fields that are not static: points first."""
        return tuple(getattr(self, name) for name in self._dynamic())

    def with_families(self, families: tuple[Any, ...]) -> "Sampling":
        """The same sampling at other probes."""
        where = lambda s: [getattr(s, name) for name in self._dynamic()]  # noqa: E731
        return eqx.tree_at(where, self, list(families), is_leaf=lambda leaf: leaf is None)

    @property
    def form(self) -> "Sampling":
        """The sampling without its probes."""
        return self.with_families((None,) * len(self._dynamic()))

    @property
    def leading(self) -> tuple[tuple[int, int], ...]:
        """How many axes each of the families has before and behind those of its probes."""
        before = [int(f is not None and is_packed(f)) for f in self.families]
        return tuple((n, 0 if self.indexed and i == 0 else 1) for i, n in enumerate(before))

    @property
    def batch(self) -> tuple[int, ...]:
        """The probe axes, as they were given."""
        (before, behind), points = self.leading[0], self.families[0]
        shape = np.shape(points)[before:] if before else np.shape(points[0])
        return tuple(shape[: len(shape) - behind])

    def taken(self, index: np.ndarray) -> "Sampling":
        """The sampling at some positions of its merged probe axes."""
        pairs = zip(self.families, self.leading, strict=True)
        return self.with_families(tuple(_rows(f, index, *around) for f, around in pairs))

    def values_taken(self, values: Any, index: np.ndarray) -> Any:
        """Values at some positions of their merged probe axes."""
        before = int(self.highest is not None) + self.by_mode * self.leading[0][0]
        return _rows(values, index, before, -1 - self.axis, by_mode=self.by_mode)

    def _dynamic(self) -> list[str]:
        return [f.name for f in dataclasses.fields(self) if not f.metadata.get("static", False)]


def modes_as_given(family: Modes, probes: Probes) -> Modes:
    """Vectors of all modes in the form in which the probes were given."""
    if probes.stacked == is_packed(family):
        return family
    if probes.stacked:
        return stack_padded(family, [max(probes.shape)])
    return split_padded(family, [[size] for size in probes.shape])


def check_sampling(sampling: Any) -> None:
    """Raises ValueError for what is no sampling."""
    if not isinstance(sampling, Sampling):
        raise ValueError(
            "sampling must be t3.Probe, t3.Apply, t3.Entries or another t3.Sampling, got "
            f"{type(sampling).__name__}."
        )


def _rows(family: Any, index: np.ndarray, before: int, behind: int, *, by_mode: bool = True) -> Any:
    def rows(a):
        a = a if isinstance(a, jax.Array) else np.asarray(a)
        return a.reshape(*a.shape[:before], -1, *a.shape[a.ndim - behind :]).take(
            index, axis=before
        )

    if by_mode and isinstance(family, tuple | list):
        return tuple(map(rows, family))
    return None if family is None else rows(family)

"""What sampling sees of a tensor: a closed train of cores, or the trains around its holes.

Tensors and frames are both a `Network`, so that sampling needs to know neither.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._tensor.packing import Cores, as_cores, is_packed, map_modes, pad_to, peel, scalar_factor
from t3._tensor.ranks import FrameRanks


class T3Variations(eqx.Module):
    """One variation for each core that a frame leaves open.

    Attributes:
        tucker: d arrays ``(nO_i, N_i)``, or packed ``(d, nO, N)``.
        tt: d arrays ``(rL_i, nU_i, rR_{i+1})``, or packed ``(d, rL, nU, rR)``.

    The space of variations is a vector space: ``+``, ``-``, and ``*`` by a scalar work core by
    core.
    """

    tucker: Cores = eqx.field(converter=as_cores)
    tt: Cores = eqx.field(converter=as_cores)

    @property
    def is_packed(self) -> bool:
        return is_packed(self.tucker)

    def __add__(self, other: "T3Variations") -> "T3Variations":
        return jax.tree.map(jnp.add, self, other)

    def __sub__(self, other: "T3Variations") -> "T3Variations":
        return jax.tree.map(jnp.subtract, self, other)

    def __mul__(self, scalar) -> "T3Variations":
        factor = scalar_factor(scalar, jax.tree.leaves(self)[0].dtype)
        return jax.tree.map(lambda core: core * factor, self)

    __rmul__ = __mul__

    def __neg__(self) -> "T3Variations":
        return jax.tree.map(jnp.negative, self)

    def dot(self, other: "T3Variations") -> Array:
        """Sum of products of all entries: the inner product of tangents when both are gauged."""
        return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, self, other))


class Train(NamedTuple):
    """A tensor as a chunk of probes sees it.

    Attributes:
        tucker, tt: the cores, ragged, packed or peeled.
        left_end, right_end: vectors that close the end bonds, of their true sizes or padded.
    """

    tucker: Cores
    tt: Cores
    left_end: Array
    right_end: Array

    @property
    def ends(self) -> tuple[Array, Array]:
        """Vectors that close the end bonds, as long as the bonds are stored."""
        return _padded_ends(self, self.tt, self.tt)

    def peeled(self) -> "Train":
        """Packed cores with their first and last modes apart."""
        left, right = self.left_end.shape[0], self.right_end.shape[0]
        return self._replace(tucker=peel(self.tucker), tt=peel(self.tt, left, right))


class HoleTrains(NamedTuple):
    """The cores around the holes of a frame, as a chunk of probes sees them.

    Attributes:
        tucker: up cores, as in `t3.T3Frame`.
        down, left, right: train cores, as there.
        left_end, right_end: vectors that close the end bonds, of their true sizes.
    """

    tucker: Cores
    down: Cores
    left: Cores
    right: Cores
    left_end: Array
    right_end: Array

    @property
    def ends(self) -> tuple[Array, Array]:
        """Vectors that close the end bonds of left and right cores, as long as those are stored."""
        return _padded_ends(self, self.left, self.right)

    def peeled(self) -> "HoleTrains":
        """Packed cores with their first and last modes apart."""
        left, right = self.left_end.shape[0], self.right_end.shape[0]
        return self._replace(
            tucker=peel(self.tucker),
            down=peel(self.down, left, right),
            left=peel(self.left, left),
            right=peel(self.right, None, right),
        )

    def no_variations(self) -> tuple[Cores, Cores]:
        """Zeros for all holes, Tucker and train."""

        def zeros(up, down, left, right):
            train = (left.shape[0], up.shape[0], right.shape[2])
            return jnp.zeros((down.shape[1], up.shape[1]), up.dtype), jnp.zeros(train, up.dtype)

        return map_modes(zeros, self.tucker, self.down, self.left, self.right)

    def filled(self, variations: tuple[Cores, Cores]) -> Train:
        """The sum of all trains with one hole filled, as one train of the ranks of both sides."""
        pad = lambda end, before, after: jnp.pad(end, (before, after))  # noqa: E731
        left, right = self.ends
        return Train(
            *doubled_cores(self, variations),
            pad(left, 0, self.right[0].shape[0]),
            pad(right, self.left[-1].shape[2], 0),
        )


def _padded_ends(cores: Any, left: Cores, right: Cores) -> tuple[Array, Array]:
    return (
        pad_to(cores.left_end, left[0].shape[:1]),
        pad_to(cores.right_end, right[-1].shape[2:]),
    )


def doubled_cores(holes: HoleTrains, variations: tuple[Cores, Cores]) -> tuple[Cores, Cores]:
    """Tucker and train cores of a train that starts left of its hole and ends right of it."""

    def train(p, h, o, q):
        top = jnp.concatenate(
            [
                jnp.concatenate([p, h], axis=2),
                jnp.concatenate([jnp.zeros((*o.shape[:2], p.shape[2]), o.dtype), o], axis=2),
            ],
            axis=1,
        )
        bottom = jnp.pad(q, [(0, 0), (0, o.shape[1]), (p.shape[2], 0)])
        return jnp.concatenate([top, bottom])

    tucker = map_modes(lambda u, v: jnp.concatenate([u, v]), holes.tucker, variations[0])
    return tucker, map_modes(train, holes.left, variations[1], holes.down, holes.right)


class Network(eqx.Module):
    """A tensor, or a frame of one."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Mode sizes."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """Of all cores."""

    @property
    @abc.abstractmethod
    def is_packed(self) -> bool:
        """Whether cores are stacked."""

    @property
    @abc.abstractmethod
    def hole_sizes(self) -> FrameRanks:
        """True sizes around the holes."""

    @property
    @abc.abstractmethod
    def holes(self) -> HoleTrains:
        """Cores around the holes; a tensor's own cores stand on every side of its holes."""

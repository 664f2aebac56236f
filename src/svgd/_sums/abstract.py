"""What every way of summing must know."""

import abc
import dataclasses
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from kernels import RadialKernel
from svgd._sums.devices import Share

# Rows of a matching sample: from 1024 to twice as many, evenly spaced in their order.
_SAMPLE = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Particles whose sums are wanted and how accurately; concrete, on the host.

    Attributes:
        kernel: concrete.
        tolerance: bound on the error of the kernel.
        theta: opening angle in its place, or None.
        leaf_size: particles in a leaf, or None for the default.
        columns: scaled coordinates, one contiguous row for each axis, (d, n).
        like: `Partition.shapes` of an earlier partition, to be kept where they serve.
    """

    kernel: RadialKernel
    tolerance: float
    theta: float | None
    leaf_size: int | None
    columns: Float[np.ndarray, "d n"]
    like: tuple[int, ...] | None = None

    @property
    def n(self) -> int:
        """The number of particles."""
        return self.columns.shape[1]

    @property
    def dimension(self) -> int:
        """That of the particles."""
        return self.columns.shape[0]

    @property
    def dtype(self) -> np.dtype:
        """That of the particles."""
        return self.columns.dtype

    def sample(self, size: int) -> Float[np.ndarray, "m d"]:
        """From `size` to twice as many of the particles."""
        return self.columns.T[:: max(1, self.n // size)]


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a partition counts, of particles that are summed as one by default.

    Attributes:
        num_leaves: cells or leaves that hold particles.
        num_near_leaf_pairs: directed pairs of leaves summed particle by particle, a leaf with itself
            included.
        num_far_pairs: directed pairs of cells or nodes of which the source acts through proxies or
            its centre.
        num_far_entries: far pairs after expansion: (cell, neighbour in a sweep), or (block, node).
        num_tiles: dense tiles that one evaluation works through: pairs of blocks, or blocks up and
            down.
        seconds: predicted from these counts.
    """

    num_leaves: int = 1
    num_near_leaf_pairs: int = 1
    num_far_pairs: int = 0
    num_far_entries: int = 0
    num_tiles: int = 1
    seconds: float = 0.0


class Plan(NamedTuple):
    """A sum that could be built.

    Attributes:
        seconds: predicted time of one update.
        build: builds the sum, and counts its work; None where it turns out to be impossible.
    """

    seconds: float
    build: "Callable[[], tuple[AbstractSum, Counts] | None]"


class AbstractSum(eqx.Module):
    """A way of summing over one set of particles.

    Final classes hold what they have built from the particles in arrays, and in static fields only what
    a program must be compiled for. They are discrete: not differentiated, and good for particles that
    move a little.

    Attributes:
        name: of the way, in `Partition.sums`.
        reads: parameters of the update that have an effect on it, of those that need not.
        labels: what `Partition.explain` calls the counts, for those that this way has.
    """

    name: ClassVar[str]
    reads: ClassVar[frozenset[str]]
    labels: ClassVar[dict[str, str]]

    @classmethod
    @abc.abstractmethod
    def plans(cls, problem: Problem) -> Iterable[Plan]:
        """Sums of this kind that meet the accuracy, the preferred first; none where there are none."""

    @abc.abstractmethod
    def sum(
        self,
        kernel: RadialKernel,
        particles: Float[Array, "n d"],
        scores: Float[Array, "n d"],
        *,
        origin: Float[Array, " d"],
        chunk: int | None,
        share: Share | None,
    ) -> Float[Array, "n d"]:
        """sum_j k(x_j, x_i) s_j + grad_{x_j} k(x_j, x_i), traced and differentiable.

        Args:
            kernel, particles, scores: in the user's coordinates.
            origin: a point of the bulk of the particles.
            chunk: pairs of blocks evaluated at a time; None for the default.
            share: None on one device. Else this runs inside `jax.shard_map`, on what `split` shared out
                to a device, and with its own particles and scores.
        """

    @abc.abstractmethod
    def split(self, devices: int) -> tuple["AbstractSum", PyTree]:
        """The sum with all that devices share out padded to multiples of them.

        Returns:
            The sum, and a pytree like it: for each array whether it is split along its first axis.
        """

    @abc.abstractmethod
    def lost(
        self, z: Float[Array, "sample d"], moved: Float[Array, ""], shuffled: Bool[Array, ""]
    ) -> Float[Array, ""]:
        """The share of particles that have moved too far for this sum.

        Args:
            z: `sample_of` all particles, in scaled coordinates.
            moved: their moves against each other since this sum was built, in bandwidths.
            shuffled: whether these are as large as another order of the particles makes them.
        """

    @abc.abstractmethod
    def accuracy(self, tolerance: float, theta: float | None) -> str:
        """What the accuracy that was asked for became, in words."""

    @abc.abstractmethod
    def choices(self) -> tuple[str, ...]:
        """How it was built, in words, a line each."""

    @abc.abstractmethod
    def shapes(self) -> tuple[int, ...] | None:
        """Sizes that a later partition may keep, for `Problem.like`; None where there are none."""


@runtime_checkable
class Settings(Protocol):
    """What is read of a `SteinUpdate`."""

    @property
    def kernel(self) -> RadialKernel: ...
    @property
    def method(self) -> Literal["auto", "exact", "tree"] | type[AbstractSum]: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def theta(self) -> float | None: ...
    @property
    def leaf_size(self) -> int | None: ...
    @property
    def pairing(self) -> str: ...
    @property
    def chunk_pairs(self) -> int | None: ...


def sample_of(particles):
    """A few of the particles, the same rows for every set of as many."""
    return particles[:: max(1, particles.shape[0] // _SAMPLE)]


def scaled_sum(
    one: Callable[[Float[Array, "n d"], Float[Array, "n d"]], Float[Array, "n d"]],
    kernel: RadialKernel,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    origin: Float[Array, " d"],
    share: Share | None,
) -> Float[Array, "n d"]:
    """A sum from one in scaled coordinates, `one(z, scores)` = sum_j f s_j + slope (z_i - z_j)."""
    z = kernel.scale(particles - origin.astype(particles.dtype)[None, :])
    if share is not None and share.count % share.devices:
        # Padding takes part in no sum, so nothing may come back from it.
        z = jnp.where((share.places(z) < share.count)[:, None], z, 0)
    return kernel.unscale_gradient(one(z, kernel.scale_gradient(scores)))

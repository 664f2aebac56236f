"""The Stein update: one step direction for a set of particles, exact or over a tree of cells."""

import math
import warnings
from typing import Literal, cast

import equinox as eqx
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float

from kernels import RadialKernel
from svgd._checks import checked_particles, checked_rows
from svgd._sums.abstract import AbstractSum
from svgd._sums.choice import build_partition, needs_partition, partition_for
from svgd._sums.evaluate import evaluate
from svgd._sums.partition import Partition

_METHODS = ("auto", "exact", "tree")
_PAIRINGS = ("auto", "symmetric", "directed")
_DEFAULT_TOLERANCE = 1e-3


class SteinUpdate(eqx.Module):
    """The direction that decreases the KL divergence fastest in the kernel's function space.

        phi_i = (1/n) sum_j [ k(x_j, x_i) s_j + grad_{x_j} k(x_j, x_i) ]

    A module: it can be part of a model, and its value is differentiable in the particles, the
    scores and the kernel's bandwidth or metric (reverse mode; the sums carry custom VJPs, so
    forward mode raises).

    `partition` finds out, from the particles' places, which way of summing is cheapest; the update
    then takes the partition as an argument and can be compiled, mapped and differentiated:

        partition = update.partition(particles)
        phi = eqx.filter_jit(update)(particles, scores, partition)

    Attributes:
        kernel: a radial kernel of the `kernels` package.
        method: "exact" sums over all pairs, "tree" over a partition, "auto" takes what is predicted
            to be faster. Or a way of summing of your own, a final class of `AbstractSum`.
        tolerance: bound on the error of the kernel, max |k~ - k| over all pairs, where k(0) = 1.
        theta: opening angle; replaces the tolerance. A node whose box is smaller than theta times
            its distance acts as one point at its centre of mass. 0 opens everything, and all pairs
            are then summed at once, as with method "exact".
        leaf_size: particles in a leaf of the tree, where pairs of leaves are summed. By default 64,
            and 16 where a tolerance drops far pairs in up to three dimensions.
        pairing: "auto" or "symmetric": every unordered pair of leaves is evaluated once for both
            sides. "directed", once for each side, was slower: deprecated, and taken as "symmetric".
        chunk_pairs: pairs of blocks of particles evaluated at a time, where pairs are summed.

    Source:
        Liu and Wang, Stein variational gradient descent, 2016, algorithm 1.
    """

    kernel: RadialKernel
    method: Literal["auto", "exact", "tree"] | type[AbstractSum] = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    theta: float | None = eqx.field(static=True)
    leaf_size: int | None = eqx.field(static=True)
    pairing: Literal["auto", "symmetric"] = eqx.field(static=True)
    chunk_pairs: int | None = eqx.field(static=True)

    def __init__(
        self,
        kernel: RadialKernel,
        *,
        method: str | type[AbstractSum] = "auto",
        tolerance: float = _DEFAULT_TOLERANCE,
        theta: float | None = None,
        leaf_size: int | None = None,
        pairing: str = "auto",
        chunk_pairs: int | None = None,
    ):
        """
        Raises:
            ValueError: on a value outside its range, and on a parameter without effect: theta,
                leaf_size, pairing or chunk_pairs with method "exact", theta with a tolerance.
        """
        own = isinstance(method, type) and issubclass(method, AbstractSum)
        if not own and method not in _METHODS:
            raise ValueError(
                f"method must be one of {_METHODS}, or a class of AbstractSum, got {method!r}"
            )
        if pairing not in _PAIRINGS:
            raise ValueError(f"pairing must be one of {_PAIRINGS}, got {pairing!r}")
        if pairing == "directed":
            warnings.warn(
                'pairing="directed" was slower and is taken as "symmetric": leave it out',
                DeprecationWarning,
                stacklevel=2,
            )
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance}")
        if theta is not None:
            if not (theta >= 0 and math.isfinite(theta)):
                raise ValueError(f"theta must be finite and at least 0, got {theta}")
            if tolerance != _DEFAULT_TOLERANCE:
                raise ValueError(
                    "theta replaces the tolerance: give one of them, got "
                    f"theta={theta} and tolerance={tolerance}"
                )
        for name, value in (("leaf_size", leaf_size), ("chunk_pairs", chunk_pairs)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if method == "exact":
            given = {"theta": theta, "leaf_size": leaf_size, "chunk_pairs": chunk_pairs}
            given = [name for name, value in given.items() if value is not None]
            given += ["pairing"] if pairing != "auto" else []
            if given:
                raise ValueError(
                    f'{", ".join(given)} has no effect with method "exact": leave it out, or take '
                    'method "tree"'
                )
        self.kernel = kernel
        self.method = cast(Literal["auto", "exact", "tree"] | type[AbstractSum], method)
        self.tolerance = float(tolerance)
        self.theta = None if theta is None else float(theta)
        self.leaf_size = None if leaf_size is None else int(leaf_size)
        self.pairing = "auto" if pairing == "auto" else "symmetric"
        self.chunk_pairs = None if chunk_pairs is None else int(chunk_pairs)

    def partition(self, particles: ArrayLike, like: tuple[int, ...] | None = None) -> Partition:
        """Sorts particles into cells and decides how to sum over them. Eager.

        Args:
            particles: (n, d), concrete, as is the kernel.
            like: `shapes` of an earlier partition of the same run. They are kept where they serve
                these particles nearly as well, and with them the programs compiled for them.

        Returns:
            The partition, for these particles and ones that have moved little: error bounds hold for
            the particles that it was built from.

        Raises:
            ValueError: on traced values, and on particles that the update refuses.

        Warns:
            UnusedParameterWarning: on leaf_size, pairing or chunk_pairs where no pairs of leaves are
                summed: over cells, and with theta = 0.

        Cost:
            About 30 ns a particle on the host.
        """
        return build_partition(self, checked_rows("particles", particles), like)

    def __call__(
        self,
        particles: ArrayLike,
        scores: ArrayLike,
        partition: Partition | None = None,
        *,
        mesh: Mesh | None = None,
        axis: str | None = None,
    ) -> Float[Array, "n d"]:
        """The update direction phi.

        Args:
            particles: (n, d). Integers are promoted to the default float.
            scores: (n, d), the gradients of the log-density at the particles, in their dtype.
            partition: from `partition`. Without one it is built here, from concrete values.
            mesh: devices to split the work over, and the result's rows. Exact sums split the
                targets, and gather the sources on every device, or pass them round a ring from 1 GiB
                on (the crossover "svgd.sources" of `memory`; it needs an n that the devices divide).
                A pair is then evaluated from each of its sides, on one device once for both.
                Sums over a partition split its cells.
            axis: the name of the mesh axis; may be left out where it is the only one.

        Returns:
            (n, d), in the dtype of the particles.

        Raises:
            ValueError: on empty particles, a rank other than 2, scores of another shape or dtype,
                particles or scores that are not finite where the values are concrete, and traced
                values without a partition (unless the method is "exact", or "auto" with fewer than
                1024 particles); on a partition of another number of particles, method, type of
                kernel, tolerance or theta, and, where all values are concrete, on one whose sample
                of particles shows other particles, another order or another bandwidth; on an axis
                that the mesh doesn't have, and an axis without a mesh.

        Cost:
            O(n^2 d) operations when exact; over cells O(n p^d d) for p polynomials an axis. Memory
            of the inputs, the output and a few tiles or chunks; over cells also their moments.
        """
        particles, scores = checked_particles(particles, scores)
        partition = partition_for(self, particles, partition)
        return evaluate(self, particles, scores, partition, mesh, axis)

    def needs_partition(self, n: int) -> bool:
        """Whether an update of n particles sums over a partition, which it can't build when traced."""
        return needs_partition(self, n)

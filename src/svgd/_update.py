"""The Stein update: one step direction for a set of particles, exact or over a tree of cells."""

import math
from typing import Literal, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Float

from kernels import RadialKernel, stein_sum
from kernels._sharded import Share
from svgd._run.layout import sum_is_finite
from svgd._sums.choice import build_partition
from svgd._sums.matching import check_match
from svgd._sums.partition import Partition
from svgd._sums.sharding import axis_to_split, place_rows, sharded_direction, share_of
from svgd._sums.sums import sum_over_cells, sum_over_pairs

# Below so many particles the exact update wins whatever their places, so "auto" needs no partition.
ALWAYS_EXACT = 1024

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
            to be faster.
        tolerance: bound on the error of the kernel, max |k~ - k| over all pairs, where k(0) = 1.
        theta: opening angle; replaces the tolerance. A node whose box is smaller than theta times
            its distance acts as one point at its centre of mass. 0 opens everything, and all pairs
            are then summed at once, as with method "exact".
        leaf_size: particles in a leaf of the tree, where pairs of leaves are summed. By default 64,
            and 16 where a tolerance drops far pairs in up to three dimensions.
        pairing: "symmetric" evaluates every unordered pair of leaves once for both sides, "directed"
            once for each side, "auto" what is faster on the backend.
        chunk_pairs: pairs of blocks of particles evaluated at a time, where pairs are summed.

    Source:
        Liu and Wang, Stein variational gradient descent, 2016, algorithm 1.
    """

    kernel: RadialKernel
    method: Literal["auto", "exact", "tree"] = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    theta: float | None = eqx.field(static=True)
    leaf_size: int | None = eqx.field(static=True)
    pairing: Literal["auto", "symmetric", "directed"] = eqx.field(static=True)
    chunk_pairs: int | None = eqx.field(static=True)

    def __init__(
        self,
        kernel: RadialKernel,
        *,
        method: str = "auto",
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
        if method not in _METHODS:
            raise ValueError(f"method must be one of {_METHODS}, got {method!r}")
        if pairing not in _PAIRINGS:
            raise ValueError(f"pairing must be one of {_PAIRINGS}, got {pairing!r}")
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
        self.method = cast(Literal["auto", "exact", "tree"], method)
        self.tolerance = float(tolerance)
        self.theta = None if theta is None else float(theta)
        self.leaf_size = None if leaf_size is None else int(leaf_size)
        self.pairing = cast(Literal["auto", "symmetric", "directed"], pairing)
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
        traced = [
            name
            for name, value in (("particles", particles), ("the kernel", self.kernel))
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))
        ]
        if traced:
            raise ValueError(
                f"a partition needs concrete values, but {' and '.join(traced)} are traced: call "
                "update.partition(particles) outside jit, grad and vmap, and pass its result to "
                "update(particles, scores, partition)"
            )
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
        axis = axis_to_split(mesh, axis)
        particles, scores = checked_particles(particles, scores)
        partition = partition_for(self, particles, partition)
        share = None if mesh is None else share_of(particles, partition, mesh, axis)
        return direction(self, particles, scores, partition, mesh, share)

    def needs_partition(self, n: int) -> bool:
        """Whether an update of n particles sums over a partition, which it can't build when traced."""
        if self.method == "exact":
            return False
        return self.method == "tree" or n >= ALWAYS_EXACT or self.theta is not None


def partition_for(
    update: SteinUpdate, particles: Float[Array, "n d"], partition: Partition | None
) -> Partition | None:
    """The partition given, checked, or one built from concrete particles where one is needed."""
    if partition is not None:
        check_match(update, particles, partition)
    elif update.needs_partition(particles.shape[0]):
        partition = update.partition(particles)
    return partition


def direction(
    update: SteinUpdate,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    partition: Partition | None,
    mesh: Mesh | None,
    share: Share | None,
) -> Float[Array, "n d"]:
    """phi from arguments that are checked; `share` is of `share_of` under a mesh."""
    if share is not None:
        particles, scores = (place_rows(rows, mesh, share.axis) for rows in (particles, scores))
    return _direction(update, particles, scores, partition, mesh, share)


# Compiled here too, or a call outside of jit would trace and compile its loops every time.
@eqx.filter_jit
def _direction(
    update: SteinUpdate,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    partition: Partition | None,
    mesh: Mesh | None,
    share: Share | None,
) -> Float[Array, "n d"]:
    if mesh is not None:
        return sharded_direction(update, particles, scores, partition, mesh, share)
    kernel, n = update.kernel, particles.shape[0]
    if partition is None or partition.sums == "exact":
        return stein_sum(kernel, particles, scores) / n
    origin = jnp.asarray(partition.origin, particles.dtype)
    z = kernel.scale(particles - origin[None, :])
    scaled = kernel.scale_gradient(scores)
    if partition.sums == "cells":
        total = sum_over_cells(partition.cells, z, scaled)
    else:
        total = sum_over_pairs(kernel.profile, partition.pairs, z, scaled, update.chunk_pairs)
    return kernel.unscale_gradient(total) / n


def checked_particles(
    particles: ArrayLike, scores: ArrayLike
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Both as floating arrays (n, d) of one dtype, or a ValueError that says what is wrong."""
    particles = checked_rows("particles", particles)
    scores = _floating(scores)
    if scores.shape != particles.shape:
        raise ValueError(
            f"scores must have the shape of the particles {particles.shape}, got {scores.shape}"
        )
    if scores.dtype != particles.dtype:
        raise ValueError(
            f"particles have dtype {particles.dtype} but scores {scores.dtype}: cast one of them"
        )
    check_finite("scores", scores)
    return particles, scores


def checked_rows(name: str, rows: ArrayLike) -> Float[Array, "n d"]:
    """A floating array (n, d) of finite values, or a ValueError that says what is wrong."""
    rows = _floating(rows)
    if rows.ndim != 2:
        raise ValueError(
            f"{name} must have shape (n, d), got {rows.shape}; one particle is "
            f"{name}[None, :], one dimension {name}[:, None]"
        )
    if rows.size == 0:
        raise ValueError(f"{name} are empty, shape {rows.shape}: give at least one")
    check_finite(name, rows)
    return rows


def check_finite(name: str, rows: Array) -> None:
    """Raises ValueError that names the first row with NaN or infinity; traced values pass."""
    if isinstance(rows, jax.core.Tracer):
        return
    if not sum_is_finite(rows):
        bad = np.flatnonzero(~np.isfinite(np.asarray(rows)).all(axis=1))
        if bad.size:
            raise ValueError(
                f"{name} must be finite: {bad.size} of {rows.shape[0]} rows hold NaN or infinity, "
                f"the first is row {bad[0]}: {np.asarray(rows[bad[0]])}"
            )


def _floating(rows: ArrayLike) -> Array:
    rows = jnp.asarray(rows)
    if jnp.issubdtype(rows.dtype, jnp.complexfloating):
        raise ValueError(f"particles and scores must be real, got {rows.dtype}")
    if jnp.issubdtype(rows.dtype, jnp.floating):
        return rows
    return rows.astype(jnp.result_type(float))

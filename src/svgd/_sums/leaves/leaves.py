"""Leaves of a tree: near ones summed pair by pair, far nodes as one point each."""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

import memory
from kernels import RadialKernel
from svgd._sums.abstract import AbstractSum, Counts, Plan, Problem, scaled_sum
from svgd._sums.blocks import (
    AnyArray,
    Blocks,
    from_slots,
    make_blocks,
    pad_rows,
    padded,
    size_class,
    to_slots,
)
from svgd._sums.costs import pairs_seconds
from svgd._sums.devices import Share
from svgd._sums.leaves import tree as _tree
from svgd._sums.leaves import walk as _walk
from svgd._sums.leaves.lists import block_pairs, far_nodes
from svgd._sums.leaves.nodes import FarNodes, node_points
from svgd._sums.leaves.tiles import Points, default_chunk, far_sum, near_sum

_DEFAULT_LEAF = 64
# Where pairs beyond a radius are dropped, few leaves see each other. Milliseconds of the sums by
# particles in a leaf, tolerance 1e-3, d = 3, two CPU cores:
#     n = 100,000, h = 0.02     float32   8  45   16  55   32  80   64 174
#                               float64   8  62   16  75   32 158   64 340
#     n = 10,000, h = 0.1       float32   8 9.9   16 9.5   32 9.4   64  12
#                               float64   8  14   16  10   32  16   64  22
# Above three dimensions the walk over so many leaves costs more: n = 20,000, d = 8 0.6 s beside 0.13.
_DROPPED_LEAF, _DROPPED_LEAF_DIMENSION = 16, 3
# Particles from which pairs within reach are estimated.
_SAMPLE, _PAIR_SAMPLE = 8192, 256
# Bandwidths that particles may move however small their spread.
_MOVED = 0.3


def _location_workload(particles: int):
    """Builds the tree and its pairs on the host, and on the device."""
    z = np.random.default_rng(0).normal(size=(particles, 3)).astype(np.float32)

    def build(host):
        return Leaves.of(z, leaf_size=_DEFAULT_LEAF, radius=np.inf, theta=0.7, host=host)[0]

    return (lambda: build(True)), (lambda: build(False))


LOCATION = memory.register(
    memory.Crossover(
        name="svgd.tree_location",
        threshold={"cpu": np.inf},
        unit="particles",
        below="host",
        above="device",
        # Milliseconds on two CPU cores, d = 3, leaves of 64, theta 0.7, host and device:
        #     n = 1,024  1.9  15     4,096  3.9  22     8,192  9.3  36     100,000  630  1120
        evidence="measured on two CPU cores: the host is faster up to 100,000 particles; not on "
        "accelerators",
        workload=_location_workload,
    )
)


class Leaves(AbstractSum):
    """Particles in the leaves of a tree, near ones summed pair by pair, and far nodes.

    Attributes:
        blocks: particles in blocks that never cross a leaf; the last block is empty.
        first, second: near pairs of blocks, each unordered pair once, (pairs,).
        far: far nodes; None where there are none.
        radius: distance in bandwidths beyond which pairs of leaves are dropped, ().
        location: where it was built.
    """

    name: ClassVar[str] = "pairs"
    reads: ClassVar[frozenset[str]] = frozenset({"leaf_size", "chunk_pairs", "pairing"})
    labels: ClassVar[dict[str, str]] = {
        "num_leaves": "leaves",
        "num_near_leaf_pairs": "near leaf pairs (directed)",
        "num_far_pairs": "far pairs",
        "num_far_entries": "far entries",
        "num_tiles": "tiles",
    }

    blocks: Blocks
    first: Int[AnyArray, " pairs"]
    second: Int[AnyArray, " pairs"]
    far: FarNodes | None
    radius: Float[AnyArray, ""]
    location: Literal["host", "device"] = eqx.field(static=True)

    @classmethod
    def plans(cls, problem: Problem) -> Iterable[Plan]:
        angle = problem.theta is not None
        radius = np.inf if angle else problem.kernel.cutoff(problem.tolerance)
        few = np.isfinite(radius) and problem.dimension <= _DROPPED_LEAF_DIMENSION
        leaf = problem.leaf_size or (_DROPPED_LEAF if few else _DEFAULT_LEAF)
        # Under an opening angle only the walk knows; leaves meet themselves in any case.
        near = float(leaf) * problem.n if angle else _near_estimate(problem, radius, leaf)
        build = partial(
            cls.of,
            problem.columns.T,
            leaf_size=leaf,
            radius=radius,
            theta=problem.theta or 0.0,
            host=LOCATION.choose(problem.n) == LOCATION.below,
        )
        return [Plan(pairs_seconds(near, problem.n, problem.dimension, problem.dtype), build)]

    @classmethod
    def of(
        cls,
        z: Float[np.ndarray, "n d"],
        *,
        leaf_size: int,
        radius: float = np.inf,
        theta: float = 0.0,
        host: bool = True,
    ) -> tuple["Leaves", Counts]:
        """A tree's near leaves and far nodes, and their counts.

        Args:
            z: scaled coordinates.
            leaf_size: particles in a leaf, at most, if they differ.
            radius: pairs of leaves further apart are dropped.
            theta: opening angle; 0 makes nothing far.
            host: whether to build in NumPy, or else in JAX, with equal results.
        """
        if host:
            tree = _tree.build(z, leaf_size)
            walked = _walk.walk(tree, radius=radius, theta=theta)
        else:
            tree = _tree.build_on_device(z, leaf_size)
            walked = _walk.walk_on_device(tree, radius=radius, theta=theta)
        walked = _walk.Walk(*(np.asarray(rows) for rows in walked))
        start, stop, left = (np.asarray(rows) for rows in (tree.start, tree.stop, tree.left))
        leaves = np.flatnonzero(left < 0)
        leaves = leaves[np.argsort(start[leaves], kind="stable")]
        counts = (stop - start)[leaves].astype(np.int64)
        size = int(min(64, max(8, 2 ** int(np.ceil(np.log2(max(counts.mean(), 1)))))))
        used = int(np.sum(-(-counts // size)))
        num_blocks = size_class(used + 1)
        blocks, first_block = make_blocks(
            np.asarray(tree.order),
            start[leaves],
            counts,
            size,
            num_blocks=num_blocks,
            spare_group=leaves.shape[0],
        )
        # Leaves tile the particles, so a node's blocks run from its first leaf's to its last leaf's.
        first_block = np.append(first_block, used)
        begin = first_block[np.searchsorted(start[leaves], start)]
        end = first_block[np.searchsorted(start[leaves], stop)]

        near = walked.near_first, walked.near_second
        first, second = block_pairs(begin[near[0]], end[near[0]], begin[near[1]], end[near[1]])
        far, entries, far_pairs = None, 0, 2 * int(walked.far_first.shape[0])
        if far_pairs:
            far, entries = far_nodes(walked, begin, end, num_blocks)
        spare, rows = np.int32(num_blocks - 1), size_class(first.shape[0])
        sums = cls(
            blocks=blocks,
            first=pad_rows(first, rows, spare),
            second=pad_rows(second, rows, spare),
            far=far,
            radius=np.asarray(radius, z.dtype),
            location="host" if host else "device",
        )
        directed = 2 * first.shape[0] - int(np.sum(first == second))
        terms = directed * size**2 + entries * size
        return sums, Counts(
            num_leaves=int(leaves.shape[0]),
            num_near_leaf_pairs=2 * int(near[0].shape[0]) - int(np.sum(near[0] == near[1])),
            num_far_pairs=far_pairs,
            num_far_entries=entries,
            num_tiles=int(first.shape[0]) + (0 if far is None else int(far.block.shape[0])),
            # Now with the pairs of the list: the estimate doesn't know how wide leaves are.
            seconds=pairs_seconds(terms, z.shape[0], z.shape[1], z.dtype),
        )

    def sum(
        self,
        kernel: RadialKernel,
        particles: Float[Array, "n d"],
        scores: Float[Array, "n d"],
        *,
        origin: Float[Array, " d"],
        chunk: int | None = None,
        share: Share | None = None,
    ) -> Float[Array, "n d"]:
        return scaled_sum(
            partial(self.scaled, kernel.profile, chunk, share),
            kernel,
            particles,
            scores,
            origin,
            share,
        )

    def scaled(
        self,
        profile: RadialKernel,
        chunk: int | None,
        share: Share | None,
        z: Float[Array, "n d"],
        scores: Float[Array, "n d"],
    ) -> Float[Array, "n d"]:
        """The sum in scaled coordinates."""
        # A particle's own term is its score: f(0) = 1, and no repulsion.
        if share is None:
            return scores + self._of_others(profile, chunk, z, scores)
        everyone = (share.gathered(rows) for rows in (z, scores))
        others = self._of_others(profile, chunk, *everyone)
        others = padded(others, z.shape[0] * share.devices, 0)
        return scores + lax.psum_scatter(others, share.axis, tiled=True)

    def _of_others(self, profile, chunk, z, scores):
        valid = self.blocks.valid(z.dtype)
        points = Points(
            jnp.swapaxes(to_slots(None, z, self.blocks), 1, 2),
            jnp.swapaxes(to_slots(None, scores, self.blocks), 1, 2) * valid[:, None, :],
            valid,
        )
        if chunk is None:
            chunk = default_chunk(valid.shape[1], z.dtype.itemsize, jax.default_backend())
        out = near_sum(profile, chunk, points, self.first, self.second)
        if self.far is not None:
            nodes = node_points(points, self.far)
            out = out + far_sum(profile, chunk, points, nodes, self.far.block, self.far.group)
        return from_slots(None, jnp.swapaxes(out, 1, 2), self.blocks)

    def split(self, devices: int) -> tuple["Leaves", PyTree]:
        """The lists are shared out. Every device holds all blocks, and the parts' sums are added."""

        def even(rows, value):
            return padded(rows, -(-rows.shape[0] // devices) * devices, value)

        def where(sums):
            far = [] if sums.far is None else [sums.far.block, sums.far.group]
            return [sums.first, sums.second, *far]

        spare = self.blocks.fill.shape[0] - 1
        parts = [even(self.first, spare), even(self.second, spare)]
        if self.far is not None:
            parts += [even(self.far.block, spare), even(self.far.group, self.far.num_nodes - 1)]
        whole = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(where, self, parts), eqx.tree_at(where, whole, [True] * len(parts))

    def lost(
        self, z: Float[Array, "sample d"], moved: Float[Array, ""], shuffled: Bool[Array, ""]
    ) -> Float[Array, ""]:
        # Pairs of leaves that have moved against each other are others than the near ones.
        return (shuffled & (moved > _MOVED)).astype(z.dtype)

    def accuracy(self, tolerance: float, theta: float | None) -> str:
        if theta is not None:
            return f"opening angle theta = {theta:g}; nothing is dropped"
        radius = float(self.radius)
        if not np.isfinite(radius):
            return f"tolerance {tolerance:g}: no pairs are dropped"
        return f"tolerance {tolerance:g}: pairs of leaves beyond {radius:.3g} h are dropped"

    def choices(self) -> tuple[str, ...]:
        return (
            f"built on the {self.location} (crossover {LOCATION.name})",
            "pairing symmetric: one evaluation of the kernel serves both sides of a pair",
        )

    def shapes(self) -> tuple[int, ...] | None:
        return None


def _near_estimate(problem, radius, leaf):
    """Pairs of particles within twice the radius, from a sample, and those of leaves with themselves.

    A lower bound where leaves are wider than the radius, as in many dimensions.
    """
    if not np.isfinite(radius):
        return float(problem.n) ** 2
    sample = problem.sample(_SAMPLE)
    rows = sample[:: max(1, sample.shape[0] // _PAIR_SAMPLE)]
    others = sample[:: max(1, sample.shape[0] // (4 * _PAIR_SAMPLE))]
    distance = np.sqrt(
        sum((rows[:, None, k] - others[None, :, k]) ** 2 for k in range(problem.dimension))
    )
    near = float(np.mean(distance < 2 * radius))
    return float(problem.n) ** 2 * near + float(leaf) * problem.n

"""The partition: which particles are summed how. Built once for a set of particles, on the host."""

from typing import Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from kernels import RadialKernel
from svgd._sums.blocks import AnyArray, Blocks
from svgd._sums.cells.sweeps import Level


class Report:
    """What a partition reports about itself: counts, predicted costs, parameters.

    Static, and equal to every other report: partitions whose arrays have the same shapes share one
    compiled program, whatever their counts.
    """

    def __init__(self, **entries):
        self.__dict__.update(entries)

    def __eq__(self, other):
        return isinstance(other, Report)

    def __hash__(self):
        return hash(Report)


class CellSums(eqx.Module):
    """Particles in the cells of a lattice, summed by proxies.

    Attributes:
        blocks: particles in blocks that never cross a cell.
        middle: the middle of each cell of the finest lattice, in scaled coordinates, (cells, d).
        half_width: kappa, half the edge of the finest cells, ().
        levels: from the finest lattice to the coarsest.
        count: p, polynomials an axis.
        weight: b of the weight exp(-b |u|^2) that the proxies carry.
    """

    blocks: Blocks
    middle: Float[AnyArray, "cells d"]
    half_width: Float[AnyArray, ""]
    levels: tuple[Level, ...]
    count: int = eqx.field(static=True)
    weight: float = eqx.field(static=True)


class PairSums(eqx.Module):
    """Particles in the leaves of a tree, summed pair by pair, and far nodes.

    Attributes:
        blocks: particles in blocks that never cross a leaf; the last block is empty.
        first, second: near pairs of blocks, each unordered pair once, (pairs,).
        directed_first, directed_second: the same in both directions, sorted by target.
        far: far nodes; None where there are none.
        both_sides: whether the unordered list is evaluated (the other one is then not kept).
    """

    blocks: Blocks
    first: Int[AnyArray, " pairs"]
    second: Int[AnyArray, " pairs"]
    far: "FarSums | None"
    both_sides: bool = eqx.field(static=True)


class FarSums(eqx.Module):
    """Nodes that act on distant blocks as one point each.

    Attributes:
        leaf_of_block: the leaf of each block, ascending, (blocks,).
        node, leaf: the leaves of each node, sorted by node, (members,).
        block: the target block of each entry, (entries,).
        group: the nodes of each entry, padded with the last node, which is empty, (entries, g).
        num_leaves, num_nodes: static, padded.
    """

    node: Int[AnyArray, " members"]
    member: Int[AnyArray, " members"]
    block: Int[AnyArray, " entries"]
    group: Int[AnyArray, "entries nodes"]
    num_nodes: int = eqx.field(static=True)


class Partition(eqx.Module):
    """How a Stein update sums over one set of particles. From `SteinUpdate.partition`.

    Discrete, and constant under differentiation: given a partition, the update is a smooth function
    of particles, scores and bandwidth, and its gradient is exact for the approximated sum. Between
    the partitions of two nearby sets of particles the update jumps by no more than the tolerance.

    A partition goes through `jax.jit` as an argument. Its shapes are padded to four sizes per octave
    and its counts are not part of the compiled program, so that a run recompiles rarely.

    Attributes:
        num_particles: n.
        method: "exact" or "tree", what was asked for or what "auto" picked.
        sums: "exact" (all pairs), "cells" (a lattice of proxies) or "pairs" (near leaves, far nodes).
        origin: subtracted from particles before they are scaled, (d,).
        kernel: that it was built for; None where sums are exact.
        sample: a few of the particles that it was built from, (sample, d); None where sums are exact.
        tolerance, theta: of the update that built it.
        report: counts and predictions; read through the properties and `explain`.
    """

    origin: Float[AnyArray, " d"]
    cells: CellSums | None
    pairs: PairSums | None
    kernel: RadialKernel | None
    sample: Float[AnyArray, "sample d"] | None
    tolerance: float = eqx.field(static=True)
    theta: float | None = eqx.field(static=True)
    num_particles: int = eqx.field(static=True)
    method: Literal["exact", "tree"] = eqx.field(static=True)
    sums: Literal["exact", "cells", "pairs"] = eqx.field(static=True)
    report: Report = eqx.field(static=True)

    @property
    def shapes(self) -> tuple[int, ...] | None:
        """Plan and padded sizes of a sum over cells, for `SteinUpdate.partition(like=...)`."""
        return getattr(self.report, "shapes", None)

    @property
    def num_leaves(self) -> int:
        """Cells or leaves that hold particles."""
        return self.report.num_leaves

    @property
    def num_near_leaf_pairs(self) -> int:
        """Directed pairs of leaves summed particle by particle, a leaf with itself included."""
        return self.report.num_near_leaf_pairs

    @property
    def num_far_pairs(self) -> int:
        """Directed pairs of cells or nodes of which the source acts through proxies or its centre."""
        return self.report.num_far_pairs

    @property
    def num_far_entries(self) -> int:
        """Far pairs after expansion: (cell, neighbour in a sweep), or (block, node)."""
        return self.report.num_far_entries

    @property
    def num_tiles(self) -> int:
        """Dense tiles that one evaluation works through: pairs of blocks, or blocks up and down."""
        return self.report.num_tiles

    def explain(self) -> str:
        """Counts, predicted cost of each method, crossovers and accuracy parameters, as text."""
        return self.report.text()


def pad_rows(rows: np.ndarray, length: int, value) -> np.ndarray:
    """`rows` with rows of `value` appended up to `length`."""
    out = np.full((length, *rows.shape[1:]), value, rows.dtype)
    out[: rows.shape[0]] = rows
    return out


def as_device(tree):
    """NumPy arrays as JAX arrays."""
    # `jnp.asarray` would compile a copy for every shape.
    return jax.device_put(tree)

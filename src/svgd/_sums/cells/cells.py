"""Cells of a lattice, summed by proxies."""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from kernels import RadialKernel
from svgd._sums.abstract import AbstractSum, Counts, Plan, Problem, sample_of, scaled_sum
from svgd._sums.blocks import (
    AnyArray,
    best_block_size,
    from_slots,
    make_blocks,
    pad_rows,
    padded,
    to_slots,
)
from svgd._sums.cells.field import Lattices, slots_to_slots
from svgd._sums.cells.lattice import build_lattice
from svgd._sums.cells.levels import build_levels
from svgd._sums.cells.plan import CellPlan, cell_plans
from svgd._sums.devices import Share

# How much slower than the cheapest a plan may be for which programs are compiled already.
_LOYALTY = 1.5
# Particles from which cells are counted.
_SAMPLE = 8192
_LARGE_SAMPLE = 131072
_MANY_CELLS = 2048
# Moments and fields of all cells may take so many bytes.
_MAX_PROXY_BYTES = 2**30
# Half-widths from the middle of its cell beyond which a particle is lost to it: the edge is at 1, and
# at 1.5 eight polynomials have grown a thousandfold. The bound holds for shuffled particles that are
# all in one cell; the smaller number leaves room for rounding.
_BEYOND, _SHUFFLED_BEYOND = 1.5, 1.1


class Cells(AbstractSum):
    """Particles in the cells of a lattice, which act through moments against polynomials.

    Attributes:
        cells: the particles in their cells, and what carries moments from cell to cell.
        rates: of the Gaussians whose mixture stands for the kernel, (gaussians,).
        cutoff: distance in widths of a Gaussian beyond which it is dropped, ().
        error: bound on the kernel's error, ().
        reach: steps of the lattice within the cutoff, ().
    """

    name: ClassVar[str] = "cells"
    reads: ClassVar[frozenset[str]] = frozenset()
    labels: ClassVar[dict[str, str]] = {
        "num_leaves": "cells",
        "num_far_pairs": "far pairs",
        "num_far_entries": "far entries",
        "num_tiles": "tiles",
    }

    cells: Lattices
    rates: Float[AnyArray, " gaussians"]
    cutoff: Float[AnyArray, ""]
    error: Float[AnyArray, ""]
    reach: Int[AnyArray, ""]

    @classmethod
    def plans(cls, problem: Problem) -> Iterable[Plan]:
        if problem.theta is not None:
            return []
        columns, like = problem.columns, problem.like
        sides = columns.max(1) - columns.min(1)
        find = partial(cell_plans, problem.kernel, problem.tolerance)
        found = find(problem.sample(_SAMPLE), sides, problem.n, problem.dtype)
        if found and found[0].cells > _MANY_CELLS and problem.n > 2 * _SAMPLE:
            # A small sample misses most of many cells, and then their cost decides.
            found = find(problem.sample(_LARGE_SAMPLE), sides, problem.n, problem.dtype)
        if like is not None and found:
            # Compiling costs more than a plan that is a little slower.
            bound = _LOYALTY * found[0].seconds
            found.sort(
                key=lambda plan: (plan.count, plan.reach) != like[:2] or plan.seconds > bound
            )
        return [Plan(plan.seconds, partial(cls.of, columns, plan, like)) for plan in found]

    @classmethod
    def of(
        cls,
        columns: Float[np.ndarray, "d n"],
        plan: CellPlan,
        like: tuple[int, ...] | None = None,
    ) -> tuple["Cells", Counts] | None:
        """The cells of a plan, and their counts.

        Args:
            columns: scaled coordinates, one contiguous row for each axis.
            plan: from `cell_plans`.
            like: the shapes of an earlier sum, which are taken where they fit.

        Returns:
            None where the lattice cannot be numbered, or its proxies take too much memory.
        """
        dimension, dtype = columns.shape[0], columns.dtype
        edge = 2 * plan.half_width
        corner = None
        if plan.reach == 0:
            corner = ((columns.min(1) + columns.max(1) - edge) / 2).astype(dtype)
        lattice = build_lattice(columns, edge, corner)
        if lattice is None:
            return None
        cells, moments = lattice.counts.shape[0], plan.count**dimension
        if (
            cells > 1
            and 2 * cells * moments * (2 * dimension + 1) * dtype.itemsize > _MAX_PROXY_BYTES
        ):
            return None
        found = build_levels(lattice.positions, plan, dtype, like[4] if like else 0)
        if found is None:
            return None
        levels, entries, far_pairs = found
        rows = levels[0].into[0].shape[0]
        block_size, num_blocks = best_block_size(lattice.counts), None
        if like is not None:
            old_size, old_blocks = like[2:4]
            used = int(np.sum(-(-lattice.counts // old_size)))
            if block_size // 2 <= old_size <= 2 * block_size and used <= old_blocks <= 2 * used:
                block_size, num_blocks = old_size, old_blocks
        blocks, _ = make_blocks(
            lattice.order,
            lattice.starts,
            lattice.counts,
            block_size,
            num_blocks=num_blocks,
            spare_group=rows - 1,
        )
        middle = (lattice.positions + 0.5) * edge + (0 if corner is None else corner)
        sums = cls(
            cells=Lattices(
                blocks=blocks,
                middle=pad_rows(middle.astype(dtype), rows, 0),
                half_width=np.asarray(plan.half_width, dtype),
                levels=levels,
                count=plan.count,
                weight=plan.weight,
            ),
            rates=np.asarray(plan.rates, dtype),
            cutoff=np.asarray(plan.cutoff, dtype),
            error=np.asarray(plan.error, dtype),
            reach=np.asarray(plan.reach, np.int32),
        )
        counts = Counts(
            num_leaves=cells,
            num_near_leaf_pairs=0,
            num_far_pairs=far_pairs,
            num_far_entries=entries,
            num_tiles=2 * int(np.sum(-(-lattice.counts // block_size))),
            seconds=plan.seconds,
        )
        return sums, counts

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
            partial(self.scaled, kernel, share), kernel, particles, scores, origin, share
        )

    def scaled(
        self,
        kernel: RadialKernel,
        share: Share | None,
        z: Float[Array, "n d"],
        scores: Float[Array, "n d"],
    ) -> Float[Array, "n d"]:
        """The sum in scaled coordinates."""
        axis = None if share is None else share.axis
        # From the kernel of this call, so that shape parameters can be trained.
        weights = kernel.mixture_weights(jnp.asarray(self.rates)).astype(z.dtype)
        trained = bool(jax.tree.leaves(kernel.profile))
        slots = (to_slots(axis, rows, self.cells.blocks) for rows in (z, scores))
        out = slots_to_slots(axis, trained, self.cells, weights, *slots)
        return from_slots(axis, out, self.cells.blocks)

    def split(self, devices: int) -> tuple["Cells", PyTree]:
        """Blocks of particles are shared out, and particles by their order.

        A device sums its blocks up to moments, which are added over devices, and evaluates the field
        in its blocks. A block's particles may lie on any device, so coordinates, scores and results
        travel: a few floats each, beside the p^d multiply-adds that wait for them there.
        """
        blocks = self.cells.blocks
        spare = self.cells.middle.shape[0] - 1

        def even(rows, value):
            return padded(rows, -(-rows.shape[0] // devices) * devices, value)

        def where(sums):
            blocks = sums.cells.blocks
            return [blocks.slot_particle, blocks.particle_slot, blocks.fill, blocks.group]

        parts = [
            even(blocks.slot_particle, 0),
            even(blocks.particle_slot, 0),
            even(blocks.fill, 0),
            even(blocks.group, spare),
        ]
        whole = jax.tree.map(lambda _: False, self)
        return eqx.tree_at(where, self, parts), eqx.tree_at(where, whole, [True] * len(parts))

    def lost(
        self, z: Float[Array, "sample d"], moved: Float[Array, ""], shuffled: Bool[Array, ""]
    ) -> Float[Array, ""]:
        blocks, middle = self.cells.blocks, jnp.asarray(self.cells.middle).astype(z.dtype)
        slot = sample_of(blocks.particle_slot)
        cell = blocks.group[slot // blocks.slot_particle.shape[1]]
        edge = jnp.where(shuffled, _SHUFFLED_BEYOND, _BEYOND).astype(z.dtype)
        edge = edge * self.cells.half_width.astype(z.dtype)
        outside = jnp.max(jnp.abs(z - middle[cell]), axis=1) > edge
        return jnp.mean(outside.astype(z.dtype))

    def accuracy(self, tolerance: float, theta: float | None) -> str:
        return (
            f"tolerance {tolerance:g}: {self.cells.count} polynomials an axis in cells of half-width "
            f"{float(self.cells.half_width):.3g} h, {self.rates.shape[0]} Gaussian(s), dropped beyond "
            f"{float(self.cutoff):.3g} of their widths; kernel error at most {float(self.error):.2g}"
        )

    def choices(self) -> tuple[str, ...]:
        return ("built on the host, as cells are wherever svgd.tree_location builds trees",)

    def shapes(self) -> tuple[int, ...] | None:
        blocks, rows = self.cells.blocks, self.cells.levels[0].into[0].shape[0]
        return (self.cells.count, int(self.reach), *blocks.slot_particle.shape[::-1], rows)

"""The sums of a Stein update over a partition, in scaled coordinates.

Both compute y_i = sum_j f s_j + slope (z_i - z_j) over all particles, with scaled scores s.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels import RadialKernel
from svgd._sums.blocks import from_slots, take_rows, to_slots
from svgd._sums.cells.particles import block_cotangents, block_field, block_moments
from svgd._sums.cells.sweeps import from_parents, lattice_field, to_parents
from svgd._sums.leaves.tiles import Points, default_chunk, far_sum, near_sum
from svgd._sums.partition import CellSums, PairSums


def sum_over_cells(
    sums: CellSums, z: Float[Array, "n d"], scores: Float[Array, "n d"]
) -> Float[Array, "n d"]:
    """Up to moments, across every level of the lattice, down to particles.

    Cost: n p^d (2 d + 1) multiply-adds, and those of the sweeps; memory of the particles in their
    blocks, the moments of blocks and cells, and a few chunks.
    """
    slots = (to_slots(rows, sums.blocks) for rows in (z, scores))
    return from_slots(cells_over_slots(None, sums, *slots), sums.blocks)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def cells_over_slots(
    axis: str | None,
    sums: CellSums,
    z: Float[Array, "blocks slots d"],
    scores: Float[Array, "blocks slots d"],
) -> Float[Array, "blocks slots d"]:
    """`sum_over_cells` from slots to slots; what padding holds is neither read nor meant.

    Args:
        axis: of a mesh whose devices each have their own blocks, inside `jax.shard_map`: moments
            are then summed over it. None where all blocks are here.
        sums, z, scores: as in `sum_over_cells`.
    """
    return _cells_forward(axis, sums, z, scores)[0]


def _cells_forward(axis, sums, z, scores):
    offsets, charges, ones = _in_cells(sums, z, scores)
    moments = _moments(axis, sums, offsets, jnp.concatenate([charges, ones], axis=1))
    field = _field(moments, sums.levels, sums.count)
    out = block_field(offsets, take_rows(field, sums.blocks.group), **_shape(sums))
    return jnp.swapaxes(out, 1, 2), (sums, z, scores, field)


def _cells_backward(axis, residuals, cotangent):
    sums, z, scores, field = residuals
    dimension = z.shape[2]
    offsets, charges, ones = _in_cells(sums, z, scores)
    arriving = jnp.swapaxes(cotangent, 1, 2) * ones

    # The cotangent goes up like charges, back across the lattice, and meets the particles there.
    back = jnp.swapaxes(_moments(axis, sums, offsets, arriving), 1, 2)
    # The field is linear in the moments, so its transpose does not depend on where it is taken.
    zeros = jnp.zeros((field.shape[0], field.shape[2], dimension + 1), field.dtype)
    (back,) = jax.vjp(lambda m: _field(m, sums.levels, sums.count), zeros)[1](back)
    both = jnp.concatenate([back, jnp.swapaxes(field, 1, 2)], axis=2)
    d_offsets, d_charges = block_cotangents(
        offsets,
        jnp.concatenate([charges, ones, arriving], axis=1),
        take_rows(both, sums.blocks.group),
        kept=dimension,
        **_shape(sums),
    )
    return None, jnp.swapaxes(d_offsets, 1, 2), jnp.swapaxes(d_charges, 1, 2)


cells_over_slots.defvjp(_cells_forward, _cells_backward)


def _in_cells(sums, z, scores):
    """Offsets from the middles of cells, scores that are 0 in padding, and ones that are."""
    ones = sums.blocks.valid(z.dtype)[:, None, :]
    middle = take_rows(sums.middle, sums.blocks.group)
    offsets = jnp.swapaxes(z - middle[:, None, :], 1, 2)
    return offsets, jnp.swapaxes(scores, 1, 2) * ones, ones


def _moments(axis, sums, offsets, charges):
    own = jax.ops.segment_sum(
        block_moments(offsets, charges, **_shape(sums)),
        sums.blocks.group,
        sums.middle.shape[0],
        indices_are_sorted=True,
        mode="promise_in_bounds",
    )
    return own if axis is None else lax.psum(own, axis)


def _shape(sums):
    return {"half_width": sums.half_width, "count": sums.count, "weight": sums.weight}


def _field(moments, levels, count):
    level, coarser = levels[0], levels[1:]
    field = lattice_field(moments, level)
    if coarser:
        parents = to_parents(moments, level, count, coarser[0].into[0].shape[0])
        field = field + from_parents(_field(parents, coarser, count), level, count)
    return field


def sum_over_pairs(
    profile: RadialKernel,
    sums: PairSums,
    z: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    chunk: int | None,
) -> Float[Array, "n d"]:
    """Near pairs of blocks particle by particle, far nodes as one point each.

    Args:
        profile: the kernel's `profile`.
        sums: from a partition.
        z, scores: scaled coordinates and scores.
        chunk: pairs of blocks at a time; None for the default of the backend.
    """
    # A particle's own term is its score: f(0) = 1, and no repulsion.
    return scores + pairs_of_others(profile, sums, z, scores, chunk)


def pairs_of_others(
    profile: RadialKernel,
    sums: PairSums,
    z: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    chunk: int | None,
) -> Float[Array, "n d"]:
    """`sum_over_pairs` without each particle's own term."""
    blocks = sums.blocks
    valid = blocks.valid(z.dtype)
    points = Points(
        jnp.swapaxes(to_slots(z, blocks), 1, 2),
        jnp.swapaxes(to_slots(scores, blocks), 1, 2) * valid[:, None, :],
        valid,
    )
    if chunk is None:
        chunk = default_chunk(valid.shape[1], z.dtype.itemsize, jax.default_backend())
    out = near_sum(profile, sums.both_sides, chunk, points, sums.first, sums.second)
    if sums.far is not None:
        nodes = _far_nodes(points, sums.far)
        out = out + far_sum(profile, chunk, points, nodes, sums.far.block, sums.far.group)
    return from_slots(jnp.swapaxes(out, 1, 2), blocks)


def _far_nodes(points: Points, far) -> Points:
    """Each far node as its particle count, centre of mass and summed score, (1, rows, nodes)."""
    block_count = jnp.sum(points.m, axis=1)
    block_z = jnp.sum(points.z * points.m[:, None, :], axis=2)
    block_q = jnp.sum(points.q, axis=2)

    def total(rows):
        return jax.ops.segment_sum(
            take_rows(rows, far.member),
            far.node,
            far.num_nodes,
            indices_are_sorted=True,
            mode="promise_in_bounds",
        )

    count = total(block_count)
    centre = total(block_z) / jnp.maximum(count, 1)[:, None]
    return Points(centre.T[None], total(block_q).T[None], count[None])

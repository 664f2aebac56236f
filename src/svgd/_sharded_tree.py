"""The sums of a partition on many devices: each takes its share of the target blocks or of the pairs.

Everything here runs on one device inside `jax.shard_map`, on its rows of arrays split along the
first axis: particles by their order, blocks by the order of their cells. A block's particles may lie on
any device, so particles travel to blocks and back, as coordinates, scores and results: a few floats
each, beside the p^d multiply-adds that wait for them there.
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from svgd._blocks import Blocks, take_rows, to_slots
from svgd._cells import block_cotangents, block_field, block_moments
from svgd._pairs import Points, default_chunk, far_sum, near_sum
from svgd._partition import CellSums, PairSums
from svgd._sums import _far_nodes, _field


class BlockShare(eqx.Module):
    """One device's blocks, and where its own particles are among the blocks of all devices.

    Attributes:
        slot_particle: the particle in each slot of these blocks, among all, (blocks, block_size).
        fill: how many slots of each block are real, (blocks,).
        group: the cell of each block, ascending, (blocks,).
        particle_slot: the slot of each of the device's particles, among those of all, (m,).
    """

    slot_particle: Int[Array, "blocks block_size"]
    fill: Int[Array, " blocks"]
    group: Int[Array, " blocks"]
    particle_slot: Int[Array, " m"]


def split_blocks(blocks: Blocks, num_groups: int, devices: int) -> BlockShare:
    """Blocks and particles padded to multiples of the devices, to be split along the first axis."""
    size = -(-blocks.fill.shape[0] // devices) * devices
    count = -(-blocks.particle_slot.shape[0] // devices) * devices
    return BlockShare(
        padded(blocks.slot_particle, size, 0),
        padded(blocks.fill, size, 0),
        padded(blocks.group, size, num_groups - 1),
        padded(blocks.particle_slot, count, 0),
    )


def padded(rows: Array, length: int, value) -> Array:
    """`rows` with rows of `value` appended up to `length`."""
    rows = jnp.asarray(rows)
    widths = [(0, length - rows.shape[0])] + [(0, 0)] * (rows.ndim - 1)
    return jnp.pad(rows, widths, constant_values=value)


def cells_at_share(
    sums: CellSums,
    share: BlockShare,
    z: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    axis: str,
) -> Float[Array, "m d"]:
    """`svgd._sums.sum_over_cells` over the particles of all devices, at those of this one.

    Moments are summed over devices, and every device takes them across the lattice.

    Args:
        sums: the whole partition; its blocks are not read.
        share: this device's part of `split_blocks`.
        z, scores: of this device's particles.
        axis: the mesh axis.
    """
    return _to_particles(
        axis, share, _cells(axis, sums, share, *_to_blocks(axis, share, z, scores))
    )


# Blocks and particles: each way is a gather whose transpose is the gather of the other way.


def _to_blocks(axis, share, *rows):
    return tuple(_spread(axis, share, row) for row in rows)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spread(axis, share, rows):
    """Particles of all devices to the slots of this one: (m, c) to (blocks, block_size, c)."""
    return take_rows(lax.all_gather(rows, axis, tiled=True), share.slot_particle)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _to_particles(axis, share, slots):
    """Slots of all devices to the particles of this one."""
    slots = lax.all_gather(slots, axis, tiled=True)
    return take_rows(slots.reshape(-1, slots.shape[2]), share.particle_slot)


def _spread_backward(axis, share, cotangent):
    # Padding has weight 0 wherever slots are used, so only a particle's real slot counts.
    return None, _to_particles(axis, share, cotangent)


def _to_particles_backward(axis, share, cotangent):
    return None, _spread(axis, share, cotangent) * _valid(share, cotangent.dtype)[:, :, None]


_spread.defvjp(lambda axis, share, rows: (_spread(axis, share, rows), share), _spread_backward)
_to_particles.defvjp(
    lambda axis, share, slots: (_to_particles(axis, share, slots), share), _to_particles_backward
)


def _valid(share, dtype):
    slot = jnp.arange(share.slot_particle.shape[1], dtype=share.fill.dtype)
    return (slot[None, :] < share.fill[:, None]).astype(dtype)


# Cells: as in `svgd._sums`, with the moments summed over devices.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cells(axis, sums, share, z, scores):
    return _cells_forward(axis, sums, share, z, scores)[0]


def _cells_forward(axis, sums, share, z, scores):
    offsets, charges, ones = _in_cells(sums, share, z, scores)
    moments = _moments(axis, sums, share, offsets, jnp.concatenate([charges, ones], axis=1))
    field = _field(moments, sums.levels, sums.count)
    out = block_field(offsets, take_rows(field, share.group), **_shape(sums))
    return jnp.swapaxes(out, 1, 2), (sums, share, z, scores, field)


def _cells_backward(axis, residuals, cotangent):
    sums, share, z, scores, field = residuals
    dimension = z.shape[2]
    offsets, charges, ones = _in_cells(sums, share, z, scores)
    arriving = jnp.swapaxes(cotangent, 1, 2) * ones

    # The cotangent goes up like charges, back across the lattice, and meets the particles there.
    back = jnp.swapaxes(_moments(axis, sums, share, offsets, arriving), 1, 2)
    zeros = jnp.zeros((field.shape[0], field.shape[2], dimension + 1), field.dtype)
    (back,) = jax.vjp(lambda m: _field(m, sums.levels, sums.count), zeros)[1](back)
    both = jnp.concatenate([back, jnp.swapaxes(field, 1, 2)], axis=2)
    d_offsets, d_charges = block_cotangents(
        offsets,
        jnp.concatenate([charges, ones, arriving], axis=1),
        take_rows(both, share.group),
        kept=dimension,
        **_shape(sums),
    )
    return None, None, jnp.swapaxes(d_offsets, 1, 2), jnp.swapaxes(d_charges, 1, 2)


_cells.defvjp(_cells_forward, _cells_backward)


def _in_cells(sums, share, z, scores):
    """Offsets from the middles of cells, scores that are 0 in padding, and ones that are."""
    ones = _valid(share, z.dtype)[:, None, :]
    middle = take_rows(sums.middle, share.group)
    offsets = jnp.swapaxes(z - middle[:, None, :], 1, 2)
    return offsets, jnp.swapaxes(scores, 1, 2) * ones, ones


def _moments(axis, sums, share, offsets, charges):
    own = jax.ops.segment_sum(
        block_moments(offsets, charges, **_shape(sums)),
        share.group,
        sums.middle.shape[0],
        indices_are_sorted=True,
        mode="promise_in_bounds",
    )
    return lax.psum(own, axis)


def _shape(sums):
    return {"half_width": sums.half_width, "count": sums.count, "weight": sums.weight}


# Pairs: the list is cut into equal parts, whatever blocks it names.


class PairShare(eqx.Module):
    """One device's part of the near pairs and of the far entries; see `PairSums` and `FarSums`."""

    first: Int[Array, " pairs"]
    second: Int[Array, " pairs"]
    far_block: Int[Array, " entries"] | None
    far_group: Int[Array, "entries nodes"] | None


def split_pairs(sums: PairSums, devices: int) -> PairShare:
    """Lists padded to multiples of the devices, to be split along the first axis."""

    def even(rows, value):
        return padded(rows, -(-rows.shape[0] // devices) * devices, value)

    spare = sums.blocks.fill.shape[0] - 1
    far = sums.far
    return PairShare(
        even(sums.first, spare),
        even(sums.second, spare),
        None if far is None else even(far.block, spare),
        None if far is None else even(far.group, far.num_nodes - 1),
    )


def pairs_at_share(
    weights: Callable,
    sums: PairSums,
    share: PairShare,
    z: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    chunk: int | None,
    axis: str,
) -> Float[Array, "m d"]:
    """`svgd._sums.sum_over_pairs` over the particles of all devices, at those of this one.

    Every device holds all blocks and evaluates its part of the list; the parts are summed.
    """
    blocks = sums.blocks
    count = blocks.particle_slot.shape[0]
    valid = blocks.valid(z.dtype)
    everyone = [lax.all_gather(rows, axis, tiled=True)[:count] for rows in (z, scores)]
    slots = [jnp.swapaxes(to_slots(rows, blocks), 1, 2) for rows in everyone]
    points = Points(slots[0], slots[1] * valid[:, None, :], valid)
    if chunk is None:
        chunk = default_chunk(valid.shape[1], z.dtype.itemsize, jax.default_backend())
    out = near_sum(weights, sums.both_sides, chunk, points, share.first, share.second)
    if share.far_block is not None:
        nodes = _far_nodes(points, sums.far)
        out = out + far_sum(weights, chunk, points, nodes, share.far_block, share.far_group)
    flat = jnp.swapaxes(out, 1, 2).reshape(-1, z.shape[1])
    padding = z.shape[0] * jax.lax.axis_size(axis) - count
    total = take_rows(flat, padded(blocks.particle_slot, count + padding, 0))
    # A particle's own term is its score: f(0) = 1, and no repulsion.
    return scores + lax.psum_scatter(total, axis, tiled=True)

"""The sums of a partition on many devices: each takes its share of the target blocks or of the pairs.

What runs on one device inside `jax.shard_map` works on its rows of arrays split along the first axis:
particles by their order, blocks by the order of their cells. A block's particles may lie on any device,
so particles travel to blocks and back, as coordinates, scores and results: a few floats each, beside
the p^d multiply-adds that wait for them there.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from kernels import RadialKernel
from svgd._sums.blocks import Blocks, take_rows
from svgd._sums.partition import CellSums, PairSums, Partition
from svgd._sums.sums import cells_over_slots, pairs_of_others


def split_partition(partition: Partition, devices: int, axis: str) -> tuple[Partition, PyTree]:
    """A partition with the arrays that devices share out padded to multiples of them.

    Cells: blocks of particles. Pairs: the lists, whatever blocks they name; all blocks stay whole.

    Returns:
        The partition, and how each of its arrays is split over the mesh axis. A device's part is a
        partition itself, for `cells_at_share` or `pairs_at_share`.
    """

    def even(rows, value):
        return padded(rows, -(-rows.shape[0] // devices) * devices, value)

    if partition.cells is not None:
        blocks = partition.cells.blocks
        spare = partition.cells.middle.shape[0] - 1
        parts = [
            even(blocks.slot_particle, 0),
            even(blocks.particle_slot, 0),
            even(blocks.fill, 0),
            even(blocks.group, spare),
        ]
    else:
        pairs = partition.pairs
        spare = pairs.blocks.fill.shape[0] - 1
        parts = [even(pairs.first, spare), even(pairs.second, spare)]
        if pairs.far is not None:
            parts += [even(pairs.far.block, spare), even(pairs.far.group, pairs.far.num_nodes - 1)]
    specs = jax.tree.map(lambda _: PartitionSpec(), partition)
    specs = eqx.tree_at(_shared_out, specs, [PartitionSpec(axis)] * len(parts))
    return eqx.tree_at(_shared_out, partition, parts), specs


def _shared_out(partition: Partition) -> list:
    if partition.cells is not None:
        blocks = partition.cells.blocks
        return [blocks.slot_particle, blocks.particle_slot, blocks.fill, blocks.group]
    pairs = partition.pairs
    far = [] if pairs.far is None else [pairs.far.block, pairs.far.group]
    return [pairs.first, pairs.second, *far]


def padded(rows: Array, length: int, value) -> Array:
    """`rows` with rows of `value` appended up to `length`."""
    rows = jnp.asarray(rows)
    widths = [(0, length - rows.shape[0])] + [(0, 0)] * (rows.ndim - 1)
    return jnp.pad(rows, widths, constant_values=value)


def cells_at_share(
    sums: CellSums, z: Float[Array, "m d"], scores: Float[Array, "m d"], axis: str
) -> Float[Array, "m d"]:
    """`svgd._sums.sums.sum_over_cells` over the particles of all devices, at those of this one.

    Moments are summed over devices, and every device takes them across the lattice.

    Args:
        sums: with this device's blocks, which name particles among all, and the slots of its own
            particles among those of all.
        z, scores: of this device's particles.
        axis: the mesh axis.
    """
    slots = (_to_blocks(axis, sums.blocks, rows) for rows in (z, scores))
    return _to_particles(axis, sums.blocks, cells_over_slots(axis, sums, *slots))


# Blocks and particles: each way is a gather whose transpose is the gather of the other way.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _to_blocks(axis, blocks: Blocks, rows):
    """Particles of all devices to the slots of this one: (m, c) to (blocks, block_size, c)."""
    return take_rows(lax.all_gather(rows, axis, tiled=True), blocks.slot_particle)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _to_particles(axis, blocks: Blocks, slots):
    """Slots of all devices to the particles of this one."""
    slots = lax.all_gather(slots, axis, tiled=True)
    return take_rows(slots.reshape(-1, slots.shape[2]), blocks.particle_slot)


def _to_blocks_backward(axis, blocks, cotangent):
    # Padding has weight 0 wherever slots are used, so only a particle's real slot counts.
    return None, _to_particles(axis, blocks, cotangent)


def _to_particles_backward(axis, blocks, cotangent):
    slots = _to_blocks(axis, blocks, cotangent)
    return None, slots * blocks.valid(slots.dtype)[:, :, None]


_to_blocks.defvjp(
    lambda axis, blocks, rows: (_to_blocks(axis, blocks, rows), blocks), _to_blocks_backward
)
_to_particles.defvjp(
    lambda axis, blocks, slots: (_to_particles(axis, blocks, slots), blocks), _to_particles_backward
)


def pairs_at_share(
    profile: RadialKernel,
    sums: PairSums,
    z: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    chunk: int | None,
    axis: str,
) -> Float[Array, "m d"]:
    """`svgd._sums.sums.sum_over_pairs` over the particles of all devices, at those of this one.

    Every device holds all blocks and evaluates its part of the lists; the parts are summed.

    Args:
        profile: the kernel's `profile`.
        sums: with this device's part of the lists.
        z, scores: of this device's particles.
        chunk: as in `sum_over_pairs`.
        axis: the mesh axis.
    """
    count = sums.blocks.particle_slot.shape[0]
    everyone = [lax.all_gather(rows, axis, tiled=True)[:count] for rows in (z, scores)]
    others = pairs_of_others(profile, sums, *everyone, chunk)
    others = padded(others, z.shape[0] * lax.axis_size(axis), 0)
    # A particle's own term is its score: f(0) = 1, and no repulsion.
    return scores + lax.psum_scatter(others, axis, tiled=True)

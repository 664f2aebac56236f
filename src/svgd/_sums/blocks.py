"""Particles in equal blocks that never cross a cell: fixed shapes for ragged groups."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

# Partitions are put together from NumPy arrays and then moved to the device as a whole.
AnyArray = Array | np.ndarray

# Sizes per octave that data-dependent lengths are padded to: at most 19 % of padding.
_SIZES_PER_OCTAVE = 4


class Blocks(eqx.Module):
    """Particles in blocks of equal size that never cross a group, padded by repeats of weight 0.

    Attributes:
        slot_particle: the particle in each slot, (blocks, block_size).
        particle_slot: the slot of each particle in the flattened blocks, (n,).
        fill: how many slots of each block are real, (blocks,).
        group: the cell or leaf of each block, ascending, (blocks,).
    """

    slot_particle: Int[AnyArray, "blocks block_size"]
    particle_slot: Int[AnyArray, " n"]
    fill: Int[AnyArray, " blocks"]
    group: Int[AnyArray, " blocks"]

    def valid(self, dtype) -> Float[Array, "blocks block_size"]:
        """1 for real slots and 0 for padding."""
        slot = jnp.arange(self.slot_particle.shape[1], dtype=self.fill.dtype)
        return (slot[None, :] < self.fill[:, None]).astype(dtype)


def size_class(count: int, minimum: int = 4) -> int:
    """`count` rounded up to one of four sizes per octave, so that shapes repeat between partitions."""
    if count <= minimum:
        return minimum
    exponent = np.ceil(np.log2(count) * _SIZES_PER_OCTAVE - 1e-9) / _SIZES_PER_OCTAVE
    return max(count, int(np.ceil(2.0**exponent)))


def best_block_size(counts: Int[np.ndarray, " groups"], sizes=(16, 32, 64, 128, 256)) -> int:
    """The block size that costs least for groups of these sizes.

    A block costs its slots, padding included, and about 24 slots more for the products' start-up.
    """
    overhead = 24
    return min(sizes, key=lambda b: int(np.sum(-(-counts // b))) * (b + overhead))


def stable_order(key):
    """The stable sorting permutation of integer keys, as int32, and the sorted keys.

    Keys of 32 bits are sorted packed with the particle's number: NumPy sorts plain 64-bit integers
    several times faster than it finds a permutation.
    """
    if key.dtype == np.uint32:
        packed = key.astype(np.uint64) << np.uint64(32)
        packed |= np.arange(key.shape[0], dtype=np.uint64)
        packed.sort()
        return packed.astype(np.uint32).astype(np.int32), (packed >> np.uint64(32)).astype(
            np.uint32
        )
    order = np.argsort(key, kind="stable").astype(np.int32)
    return order, key[order]


def make_blocks(
    order: Int[np.ndarray, " n"],
    starts: Int[np.ndarray, " groups"],
    counts: Int[np.ndarray, " groups"],
    block_size: int,
    *,
    num_blocks: int | None = None,
    spare_group: int | None = None,
) -> tuple[Blocks, Int[np.ndarray, " groups"]]:
    """Cuts sorted groups of particles into blocks.

    Args:
        order: the particles, group after group.
        starts: first position of each group in `order`.
        counts: particles in each group, at least 1.
        block_size: slots in a block.
        num_blocks: blocks after padding; by default the next size class.
        spare_group: the group that padding blocks belong to; by default the number of groups.

    Returns:
        The blocks, and the first block of each group.
    """
    n = order.shape[0]
    per_group = -(-counts // block_size)
    first_block = np.cumsum(per_group) - per_group
    used = int(per_group.sum())
    total = size_class(used) if num_blocks is None else num_blocks
    if total < used:
        raise ValueError(f"{used} blocks are needed, but num_blocks is {num_blocks}")
    group = np.repeat(np.arange(counts.shape[0], dtype=np.int32), per_group)
    within = np.arange(used, dtype=np.int32) - first_block[group].astype(np.int32)
    fill = np.minimum(counts[group] - within * block_size, block_size).astype(np.int32)

    # Position p of a group's particles goes to slot p - start + first_block * block_size.
    slot = np.arange(n, dtype=np.int32)
    slot += np.repeat((first_block * block_size - starts).astype(np.int32), counts)
    particle_slot = np.empty(n, np.int32)
    particle_slot[order] = slot
    # Padding repeats the group's first particle, so that it lies in the same box.
    slot_particle = np.zeros((total, block_size), np.int32)
    slot_particle[:used] = order[starts[group]][:, None]
    slot_particle.reshape(-1)[slot] = order

    spare = counts.shape[0] if spare_group is None else spare_group
    pad = total - used
    blocks = Blocks(
        slot_particle=slot_particle,
        particle_slot=particle_slot,
        fill=np.concatenate([fill, np.zeros(pad, np.int32)]),
        group=np.concatenate([group, np.full(pad, spare, np.int32)]),
    )
    return blocks, first_block


def pad_rows(rows: np.ndarray, length: int, value) -> np.ndarray:
    """`rows` with rows of `value` appended up to `length`."""
    out = np.full((length, *rows.shape[1:]), value, rows.dtype)
    out[: rows.shape[0]] = rows
    return out


def padded(rows: AnyArray, length: int, value) -> Array:
    """As `pad_rows`, in JAX."""
    rows = jnp.asarray(rows)
    widths = [(0, length - rows.shape[0])] + [(0, 0)] * (rows.ndim - 1)
    return jnp.pad(rows, widths, constant_values=value)


def take_rows(rows, index):
    """Rows by index. Indices come from a partition, which holds valid ones only, so none is checked."""
    return rows.at[index].get(mode="promise_in_bounds")


# Blocks and particles: each way is a gather whose transpose is the gather of the other way. Inside of
# `jax.shard_map` particles and blocks are a device's own, and may name particles of any device.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def to_slots(
    axis: str | None, values: Float[Array, "n c"], blocks: Blocks
) -> Float[Array, "blocks block_size c"]:
    """Copies particles into their slots; padding repeats a particle of the same group.

    Args:
        axis: of a mesh over which particles and blocks are split; None where all are here.
        values: rows of the particles.
        blocks: where they go.
    """
    return take_rows(_everyones(axis, values), blocks.slot_particle)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def from_slots(
    axis: str | None, values: Float[Array, "blocks block_size c"], blocks: Blocks
) -> Float[Array, "n c"]:
    """Copies slots back to their particles. Arguments as those of `to_slots`."""
    values = _everyones(axis, values)
    return take_rows(values.reshape(-1, *values.shape[2:]), blocks.particle_slot)


def _everyones(axis, rows):
    return rows if axis is None else lax.all_gather(rows, axis, tiled=True)


def _to_slots_backward(axis, blocks, cotangent):
    # Padding has weight 0 wherever slots are used, so its cotangent is 0 and only the one real slot
    # of each particle counts: a gather, where the transposed gather would be a scatter.
    return from_slots(axis, cotangent, blocks), None


def _from_slots_backward(axis, blocks, cotangent):
    slots = to_slots(axis, cotangent, blocks)
    return slots * blocks.valid(slots.dtype)[:, :, None], None


to_slots.defvjp(lambda axis, v, blocks: (to_slots(axis, v, blocks), blocks), _to_slots_backward)
from_slots.defvjp(
    lambda axis, v, blocks: (from_slots(axis, v, blocks), blocks), _from_slots_backward
)

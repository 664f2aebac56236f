"""The direction of an update: one pipeline for every way of summing, on one device and on many."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from svgd._sums.abstract import Settings
from svgd._sums.all_pairs import AllPairs
from svgd._sums.blocks import padded
from svgd._sums.devices import SOURCES, Share, axis_to_split, check_divides, place_rows
from svgd._sums.partition import Partition


def share_of(
    particles: Float[Array, "n d"], partition: Partition | None, mesh: Mesh, axis: str
) -> Share:
    """How an update splits these particles: whether their sources go round a ring, above all.

    Chosen here and not in the compiled function, whose cache does not know what is forced.
    """
    n, devices = particles.shape[0], mesh.shape[axis]
    exact = partition is None or isinstance(partition.way, AllPairs)
    gathered_bytes = 2 * particles.size * particles.dtype.itemsize
    share = Share(axis, devices, n, exact and SOURCES.choose(gathered_bytes) == SOURCES.above)
    if share.ring:
        check_divides(n, mesh, axis, "sources cannot go round a ring")
    return share


def evaluate(
    update: Settings,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    partition: Partition | None,
    mesh: Mesh | None,
    axis: str | None,
) -> Float[Array, "n d"]:
    """The direction phi, from particles, scores and a partition that are checked."""
    axis = axis_to_split(mesh, axis)
    if mesh is None or axis is None:
        return direction(update, particles, scores, partition, None, None)
    share = share_of(particles, partition, mesh, axis)
    particles, scores = (place_rows(rows, mesh, axis) for rows in (particles, scores))
    return direction(update, particles, scores, partition, mesh, share)


# Compiled here too, or a call outside of jit would trace and compile its loops every time.
@eqx.filter_jit
def direction(
    update: Settings,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    partition: Partition | None,
    mesh: Mesh | None,
    share: Share | None,
) -> Float[Array, "n d"]:
    """As `evaluate`, in a program of its own; `share` is of `share_of` under a mesh."""
    n = particles.shape[0]
    way, origin = (AllPairs(), None) if partition is None else (partition.way, partition.origin)

    def local(kernel, particles, scores, way, origin):
        chunk = update.chunk_pairs
        total = way.sum(kernel, particles, scores, origin=origin, chunk=chunk, share=share)
        return total / n

    if mesh is None or share is None:
        return local(update.kernel, particles, scores, way, origin)

    axis, size = share.axis, -(-n // share.devices) * share.devices
    split, whole = PartitionSpec(axis), PartitionSpec()
    way, shared_out = way.split(share.devices)
    parts = jax.tree.map(lambda is_split: split if is_split else whole, shared_out)
    specs = (whole, split, split, parts, whole)
    rows = _padded_particles(particles, size), padded(scores, size, 0)
    arguments = (update.kernel, *rows, way, origin)
    if AxisType.Explicit in mesh.axis_types:
        # Types of such a mesh say where arrays are; shard_map wants them to say what it does.
        arguments = jax.tree.map(partial(_reshard, mesh), specs, arguments)
    # Only rows of their own leave a device, so there is no replication to be checked.
    run = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    phi = run(*arguments)
    if size != n and AxisType.Explicit in mesh.axis_types:
        phi = jax.sharding.reshard(phi, NamedSharding(mesh, whole))
    return phi[:n]


def _padded_particles(particles, length):
    """Particles with the last one repeated up to `length`.

    Not with zeros, which may lie far from all others: tiles that reach so far are slow.
    """
    last = jax.lax.stop_gradient(particles[-1:])
    missing = length - particles.shape[0]
    return jnp.concatenate([particles, jnp.repeat(last, missing, axis=0)]) if missing else particles


def _reshard(mesh, spec, argument):
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, sharding), argument)

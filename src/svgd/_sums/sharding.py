"""The Stein update over many devices: particles are split over one axis of a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

import memory
from kernels._sharded import Share, stein_sum_at_share
from svgd._sums.partition import Partition
from svgd._sums.sharded_tree import cells_at_share, padded, pairs_at_share, split_partition

SOURCES = memory.register(
    memory.Crossover(
        name="svgd.sources",
        threshold=float(2**30),
        unit="bytes of gathered sources",
        below="gathered",
        above="ring",
        evidence="a bound on memory, not a time: what all particles and scores may take on each "
        "device beside its own",
    )
)


def axis_to_split(mesh: Mesh | None, axis: str | None) -> str | None:
    """The axis of the mesh to split over; None without a mesh, where naming an axis is an error."""
    if mesh is not None:
        return memory.mesh_axis(mesh, axis)
    if axis is not None:
        raise ValueError(f"axis={axis!r} names an axis of a mesh: give mesh= as well")
    return None


def check_divides(count: int, mesh: Mesh, axis: str, what: str) -> None:
    """Raises ValueError, with the nearest counts that do, unless `count` divides over the devices."""
    devices = mesh.shape[axis]
    if count % devices:
        fewer, more = count // devices * devices, -(-count // devices) * devices
        choices = f"{fewer} or {more}" if fewer else f"{more}"
        raise ValueError(
            f"{what}: {count} particles do not divide over the {devices} devices of mesh axis "
            f"{axis!r}; take {choices}"
        )


def share_of(
    particles: Float[Array, "n d"], partition: Partition | None, mesh: Mesh, axis: str
) -> Share:
    """How an update splits these particles: whether their sources go round a ring, above all.

    Chosen here and not in the compiled function, whose cache does not know what is forced.
    """
    n, devices = particles.shape[0], mesh.shape[axis]
    exact = partition is None or partition.sums == "exact"
    gathered_bytes = 2 * particles.size * particles.dtype.itemsize
    share = Share(axis, devices, n, exact and SOURCES.choose(gathered_bytes) == SOURCES.above)
    if share.ring:
        check_divides(n, mesh, axis, "sources cannot go round a ring")
    return share


def sharded_direction(
    update,
    particles: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    partition: Partition | None,
    mesh: Mesh,
    share: Share,
) -> Float[Array, "n d"]:
    """The update direction, each device's share of the rows on that device.

    Exact: targets are split, and sources gathered or passed round a ring, by their bytes. Over cells:
    blocks of particles are split, so that each device sums its share up to moments and evaluates the
    field in its share of the cells; the moments are summed over devices. Pairs: the list is split.
    """
    axis, devices, n = share.axis, share.devices, share.count
    exact = partition is None or partition.sums == "exact"
    size = -(-n // devices) * devices
    split, whole = PartitionSpec(axis), PartitionSpec()
    partition, parts = (None, whole) if exact else split_partition(partition, devices, axis)

    def local(kernel, particles, scores, partition):
        if exact:
            return stein_sum_at_share(kernel, particles, scores, share) / n
        z = kernel.scale(particles - partition.origin.astype(particles.dtype)[None, :])
        if size != n:
            # Padding takes part in no sum, so nothing may come back from it.
            z = jnp.where((share.places(z) < n)[:, None], z, 0)
        scaled = kernel.scale_gradient(scores)
        if partition.sums == "cells":
            total = cells_at_share(partition.cells, z, scaled, axis)
        else:
            total = pairs_at_share(
                kernel.profile, partition.pairs, z, scaled, update.chunk_pairs, axis
            )
        return kernel.unscale_gradient(total) / n

    specs = (whole, split, split, parts)
    arguments = (
        update.kernel,
        _padded_particles(particles, size),
        padded(scores, size, 0),
        partition,
    )
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


def place_rows(rows: Array, mesh: Mesh, axis: str) -> Array:
    """Rows that are not traced, on their devices: split where they divide, else on all of them."""
    if isinstance(rows, jax.core.Tracer):
        return rows
    spec = PartitionSpec(axis) if rows.shape[0] % mesh.shape[axis] == 0 else PartitionSpec()
    return jax.device_put(rows, NamedSharding(mesh, spec))

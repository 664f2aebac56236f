"""Particles on a mesh: which axis splits them, how exact sums travel, where rows are."""

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

import memory
from kernels._sharded import Share as Share

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


def place_rows(rows: Array, mesh: Mesh, axis: str) -> Array:
    """Rows that are not traced, on their devices: split where they divide, else on all of them."""
    if isinstance(rows, jax.core.Tracer):
        return rows
    spec = PartitionSpec(axis) if rows.shape[0] % mesh.shape[axis] == 0 else PartitionSpec()
    return jax.device_put(rows, NamedSharding(mesh, spec))

"""The devices that share work out: a mesh and the axis of it that rows are split over."""

import contextlib
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree


def mesh_axis(mesh: Any, axis: str | None) -> str:
    """The mesh axis to split over: the one named, or the only one.

    Raises:
        ValueError: when the mesh has no such axis, or several and none is named.
        TypeError: when it is no mesh.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}: make one with "
            'jax.make_mesh((number of devices,), ("devices",))'
        )
    names = mesh.axis_names
    if axis is None:
        if len(names) != 1:
            raise ValueError(f"the mesh has the axes {names}: say which one with axis=")
        axis = str(names[0])
    if axis not in names:
        raise ValueError(f"the mesh has no axis {axis!r}, only {names}")
    return axis


@dataclass(frozen=True)
class Devices:
    """The devices along one axis of a mesh. Hashable, so static where it is an argument.

    Attributes:
        mesh: all devices.
        axis: the name of the axis that work is split over; may be left out where it is the only one.
    """

    mesh: Mesh
    axis: str = ""

    def __post_init__(self):
        object.__setattr__(self, "axis", mesh_axis(self.mesh, self.axis or None))

    @staticmethod
    def of(mesh: Any, axis: str | None = None) -> "Devices | None":
        """The devices that a caller's `mesh=` and `axis=` name; None where no mesh is given.

        Args:
            mesh: a mesh, devices, or None.
            axis: the name of its axis, or None.

        Raises:
            ValueError: an axis without a mesh, or one that the mesh doesn't have.
            TypeError: something else than a mesh.
        """
        if mesh is None:
            if axis is not None:
                raise ValueError(f"axis={axis!r} names an axis of a mesh: give mesh= as well")
            return None
        if isinstance(mesh, Devices):
            if axis not in (None, mesh.axis):
                raise ValueError(f"the devices given split the axis {mesh.axis!r}, not {axis!r}")
            return mesh
        return Devices(mesh, mesh_axis(mesh, axis))

    @property
    def count(self) -> int:
        """How many share the work."""
        return self.mesh.shape[self.axis]

    @property
    def is_explicit(self) -> bool:
        """Whether types of arrays on this mesh say where they are."""
        return AxisType.Explicit in self.mesh.axis_types

    @property
    def automatic(self) -> "Devices":
        """The same devices on a mesh that leaves the placement of arrays to the compiler.

        Explicit axes would ask every operation where its result should be.
        """
        return Devices(Mesh(self.mesh.devices, self.mesh.axis_names), self.axis)

    def in_force(self) -> contextlib.AbstractContextManager:
        """A context in which the mesh is the one in force."""
        return jax.set_mesh(self.mesh)

    def spec(self, along: int = 0) -> PartitionSpec:
        """Arrays split along one of their axes."""
        return PartitionSpec(*[None] * along, self.axis)

    def sharding(self, along: int | None = 0) -> NamedSharding:
        """Where such arrays are; with `along` None, where whole ones are."""
        return NamedSharding(self.mesh, PartitionSpec() if along is None else self.spec(along))

    def check_divides(self, count: int, what: str, rows: str = "particles") -> None:
        """Raises ValueError, with the nearest counts that do, unless `count` divides over them.

        Args:
            count: of the rows.
            what: why they have to, as the beginning of a sentence.
            rows: what they are.
        """
        if count % self.count:
            fewer, more = count // self.count * self.count, self.padded(count)
            choices = f"{fewer} or {more}" if fewer else f"{more}"
            raise ValueError(
                f"{what}: {count} {rows} do not divide over the {self.count} devices of mesh axis "
                f"{self.axis!r}; take {choices}"
            )

    def padded(self, count: int) -> int:
        """The next number of rows that divides."""
        return -(-count // self.count) * self.count

    def place(self, rows: Array, along: int = 0) -> Array:
        """Rows on their devices: split where they divide, else whole on each. Traced ones stay."""
        if isinstance(rows, Tracer):
            return rows
        divides = rows.shape[along] % self.count == 0
        return self.put(rows, along if divides else None)

    def replicate(self, tree: PyTree) -> PyTree:
        """Every array whole on each device."""
        return jax.tree.map(lambda leaf: self.put(leaf, None), tree)

    def put(self, array: Any, along: int | None) -> Array:
        """An array split along an axis that divides, or whole. Processes each give theirs whole."""
        where = self.sharding(along)
        here = not isinstance(array, jax.Array) or array.is_fully_addressable
        if where.is_fully_addressable or not here:
            return jax.device_put(array, where)
        # The mesh has devices of other processes: each cuts its own devices' part out of its copy.
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, where, lambda index: array[index])

    def index(self) -> Array:
        """Which of the devices this one is; inside `jax.shard_map`."""
        return lax.axis_index(self.axis).astype(np.int32)

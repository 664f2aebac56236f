"""The axis of a device mesh that work is split over."""

from typing import Any

from jax.sharding import Mesh


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

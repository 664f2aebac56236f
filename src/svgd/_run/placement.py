"""Where the arrays of a run are: on one device, or split over one axis of a mesh."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from kernels._sharded import Share
from svgd._sums.devices import axis_to_split, place_rows
from svgd._sums.evaluate import share_of
from svgd._sums.partition import Partition


def split_over(mesh: Mesh | None, axis: str | None) -> tuple[Mesh, str] | None:
    """The mesh and its axis, checked; None on one device.

    The mesh has the same devices and axes, but leaves the placement of arrays to the compiler.
    """
    axis = axis_to_split(mesh, axis)
    return None if mesh is None else (Mesh(mesh.devices, mesh.axis_names), axis)


def in_force(split: tuple[Mesh, str] | None):
    """A context in which the mesh is the one in force; no change on one device."""
    return contextlib.nullcontext() if split is None else jax.set_mesh(split[0])


def shared(
    points: Float[Array, "n d"], partition: Partition | None, split: tuple[Mesh, str] | None
) -> tuple[Mesh | None, Share | None]:
    """The mesh and how an update splits the points over it; None twice on one device."""
    return (None, None) if split is None else (split[0], share_of(points, partition, *split))


def place_particles(particles: PyTree, mesh: Mesh, axis: str) -> PyTree:
    """Particles as the user gives them, with JAX arrays on the devices; others stay as they are."""

    def place(leaf):
        return place_rows(leaf, mesh, axis) if isinstance(leaf, jax.Array) and leaf.ndim else leaf

    return jax.tree.map(place, particles)


def place_state(state: PyTree, shape: tuple[int, ...], mesh: Mesh, axis: str) -> PyTree:
    """A sampler's state on the devices: arrays of the points' shape split, all others on each."""

    def place(leaf):
        if not eqx.is_array(leaf) and not isinstance(leaf, np.ndarray):
            return leaf
        spec = PartitionSpec(axis) if leaf.shape == shape else PartitionSpec()
        return jax.device_put(jnp.asarray(leaf), NamedSharding(mesh, spec))

    return jax.tree.map(place, state)

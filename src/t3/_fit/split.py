"""The samples of a fit split over the devices of a mesh axis."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

import memory
from t3._sampling.kinds import Measurements


class Split(NamedTuple):
    """A mesh and the axis of it that shares out the probes; hashable, so static under jit.

    Every device works through its own probes; what all of them need, the tensor and its frame, each
    holds whole.
    """

    mesh: Mesh
    axis: str

    @staticmethod
    def checked(mesh: Mesh | None, axis: str | None) -> "Split | None":
        """None without a mesh.

        Raises:
            ValueError, TypeError: an axis without a mesh; else as `memory.mesh_axis`.
        """
        if mesh is None:
            if axis is not None:
                raise ValueError(f"axis={axis!r} names an axis of mesh=, which is missing.")
            return None
        axis = memory.mesh_axis(mesh, axis)
        # Explicit axes would ask every operation on the tensor where its result should be.
        return Split(Mesh(mesh.devices, mesh.axis_names), axis)

    @property
    def devices(self) -> int:
        """Shares."""
        return self.mesh.shape[self.axis]

    def place(self, measured: Measurements) -> Measurements:
        """Each device's share of the samples on that device.

        A number of probes that does not divide is filled up with zeros of weight zero.
        """
        count = measured.probes.count
        missing = -count % self.devices

        def put(a, axis):
            if missing:
                widths = [(0, 0)] * a.ndim
                widths[axis] = (0, missing)
                a = np.pad(np.asarray(a), widths)
            return self._put(a, self._spec(a.ndim, axis))

        if missing:
            dtype = jax.tree.leaves(measured.data)[0].dtype
            measured = measured.masked(jnp.ones((1, count), dtype))
        return measured.along_probes(put, count + missing)

    def replicate(self, tree: Any) -> Any:
        """Every array whole on every device."""
        return jax.tree.map(lambda a: self._put(a, PartitionSpec()), tree)

    def draw(self, key: Array, count: int, size: int) -> Array:
        """A minibatch: positions ``(devices, size / devices)``, of each device in its own share."""
        keys = jax.random.split(key, self.devices)
        share, part = count // self.devices, -(-size // self.devices)
        draw = lambda k: jax.random.choice(k, share, (min(part, share),), replace=False)  # noqa: E731
        return self._put(jax.vmap(draw)(keys), PartitionSpec(self.axis))

    def batch(self, measured: Measurements, index: Array) -> Measurements:
        """The measurements at positions that `draw` gave; nothing leaves its device."""

        def take(a, axis):
            spec = self._spec(a.ndim, axis)
            local = lambda a, index: jnp.take(a, index[0], axis=axis)  # noqa: E731
            specs = (spec, PartitionSpec(self.axis))
            return jax.shard_map(local, mesh=self.mesh, in_specs=specs, out_specs=spec)(a, index)

        return measured.along_probes(take, index.size)

    def run(
        self,
        fn: Callable[..., Any],
        measured: Measurements,
        *,
        keep_axis: int | None,
        packed: bool,
    ) -> Any:
        """``fn(share of measured)`` on every device.

        Args:
            fn: may close over anything that every device holds whole.
            measured: placed.
            keep_axis: where results have probes, counted from the end; they stay split. None adds
                the results of all devices, in one reduction.
            packed: whether kept results of the modes are stacked.
        """
        share = measured.probes.count // self.devices
        leaves, structure = jax.tree.flatten(measured)
        specs = jax.tree.leaves(
            measured.along_probes(lambda a, axis: self._spec(a.ndim, axis), share)
        )

        def local(*leaves):
            measured = jax.tree.unflatten(structure, leaves)
            result = fn(measured.along_probes(lambda a, _: a, share))
            if keep_axis is not None:
                return result
            # One vector, so that there is one reduction and not one for each core.
            flat, restore = ravel_pytree(result)
            return restore(jax.lax.psum(flat, self.axis))

        out = PartitionSpec()
        if keep_axis is not None:
            out = PartitionSpec(*[None] * (2 if packed and keep_axis == -2 else 1), self.axis)
        run = jax.shard_map(local, mesh=self.mesh, in_specs=tuple(specs), out_specs=out)
        return run(*leaves)

    def _spec(self, ndim: int, axis: int) -> PartitionSpec:
        return PartitionSpec(*[None] * (ndim + axis), self.axis)

    def _put(self, a: Any, spec: PartitionSpec) -> Array:
        sharding = NamedSharding(self.mesh, spec)
        local = not isinstance(a, jax.Array) or a.is_fully_addressable
        if sharding.is_fully_addressable or not local:
            return jax.device_put(a, sharding)
        # The mesh has devices of other processes: each cuts its own devices' part out of its copy.
        host = np.asarray(a)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def on_host() -> contextlib.AbstractContextManager:
    """New arrays go to the processor's memory, where JAX has the processor as a device."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return contextlib.nullcontext()


def to_this_process(tree: Any) -> Any:
    """Arrays that every device holds whole as arrays of this process alone."""
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), tree)

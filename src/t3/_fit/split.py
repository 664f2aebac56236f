"""The samples of a fit split over the devices of a mesh axis."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jaxtyping import Array

import memory
from t3._sampling.measurements import Measurements


class Split(NamedTuple):
    """Devices that share out the probes; hashable, so static under jit.

    Every device works through its own probes; what all of them need, the tensor and its frame, each
    holds whole.
    """

    devices: memory.Devices

    @staticmethod
    def of(mesh: Any, axis: str | None) -> "Split | None":
        """None without a mesh; what is one already stays it.

        Raises:
            ValueError, TypeError: an axis without a mesh; else as `memory.Devices.of`.
        """
        if isinstance(mesh, Split):
            return mesh
        if mesh is None and axis is not None:
            raise ValueError(f"axis={axis!r} names an axis of mesh=, which is missing.")
        devices = memory.Devices.of(mesh, axis)
        # Explicit axes would ask every operation on the tensor where its result should be.
        return None if devices is None else Split(devices.automatic)

    @property
    def count(self) -> int:
        """Shares."""
        return self.devices.count

    def place(self, measured: Measurements) -> Measurements:
        """Each device's share of the samples on that device.

        A number of probes that does not divide is filled up with zeros of weight zero.
        """
        count = measured.probes.count
        missing = -count % self.count

        def put(a, axis):
            if missing:
                widths = [(0, 0)] * a.ndim
                widths[axis] = (0, missing)
                a = np.pad(np.asarray(a), widths)
            return self.devices.put(a, a.ndim + axis)

        if missing:
            dtype = jax.tree.leaves(measured.data)[0].dtype
            measured = measured.masked(jnp.ones((1, count), dtype))
        return measured.along_probes(put, count + missing)

    def draw(self, key: Array, count: int, size: int) -> Array:
        """A minibatch: positions ``(devices, size / devices)``, of each device in its own share."""
        keys = jax.random.split(key, self.count)
        share, part = count // self.count, -(-size // self.count)
        draw = lambda k: jax.random.choice(k, share, (min(part, share),), replace=False)  # noqa: E731
        return self.devices.put(jax.vmap(draw)(keys), 0)

    def batch(self, measured: Measurements, index: Array) -> Measurements:
        """The measurements at positions that `draw` gave; nothing leaves its device."""

        def take(a, axis):
            spec = self.devices.spec(a.ndim + axis)
            local = lambda a, index: jnp.take(a, index[0], axis=axis)  # noqa: E731
            specs = (spec, self.devices.spec())
            run = jax.shard_map(local, mesh=self.devices.mesh, in_specs=specs, out_specs=spec)
            return run(a, index)

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
        share = measured.probes.count // self.count
        leaves, structure = jax.tree.flatten(measured)
        specs = jax.tree.leaves(
            measured.along_probes(lambda a, axis: self.devices.spec(a.ndim + axis), share)
        )

        def local(*leaves):
            measured = jax.tree.unflatten(structure, leaves)
            result = fn(measured.along_probes(lambda a, _: a, share))
            if keep_axis is not None:
                return result
            # One vector, so that there is one reduction and not one for each core.
            flat, restore = ravel_pytree(result)
            return restore(jax.lax.psum(flat, self.devices.axis))

        out = PartitionSpec()
        if keep_axis is not None:
            out = self.devices.spec(2 if packed and keep_axis == -2 else 1)
        run = jax.shard_map(local, mesh=self.devices.mesh, in_specs=tuple(specs), out_specs=out)
        return run(*leaves)


def on_host() -> contextlib.AbstractContextManager:
    """New arrays go to the processor's memory, where JAX has the processor as a device."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return contextlib.nullcontext()


def to_this_process(tree: Any) -> Any:
    """Arrays that every device holds whole as arrays of this process alone."""
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), tree)

"""Sampling over many devices: each takes its share of the probes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

import memory
from t3._sampling.probes import probe_shards
from t3._sampling.sampling import Sampling


class ShardedProbesWarning(UserWarning):
    """Probes that are split over devices went into a function for one device."""


def over_devices(
    fn: Callable[..., Any],
    network: Any,
    sampling: Sampling,
    residual: Any,
    devices: memory.Devices,
    chunk_size: Any,
    *,
    summed: bool,
) -> Any:
    """``fn(network, sampling, residual, chunk_size, summed)`` of each device's share of the probes.

    Args:
        fn: for one device; the same function at each call, or it is compiled anew. Results that are
            not summed have probes first, as variations do; without a residual they are values.
        network: on every device.
        sampling, residual: split along their first probe axis; the residual may be None.
        devices: to split over.
        chunk_size: probes that one device works on at a time.
        summed: add the results of all devices.

    Raises:
        ValueError: no probe axis; or kept results of a number of probes that the devices do not
            divide, which could not stay split.
    """
    counts, families = set(), sampling.families
    before = tuple(lead for lead, _ in sampling.leading)
    for family, (lead, behind) in zip(families, sampling.leading, strict=True):
        for a in [] if family is None else [family] if lead else family:
            counts.add(np.shape(a)[lead] if np.ndim(a) > lead + behind else 0)
    if counts == {0}:
        raise ValueError(
            "the points must have a probe axis to split over devices, got single ones."
        )
    missing = max(-count % devices.count for count in counts)
    if missing and not summed:
        raise ValueError(
            f"the first probe axis must divide over the {devices.count} devices of mesh axis "
            f"{devices.axis!r} for kept results to stay split, got {counts.pop()} probes. Append "
            f"{missing} probes whose residual is zero, and leave their rows out."
        )
    # Where values have their first probe axis.
    first = int(sampling.highest is not None) + sampling.by_mode * before[0]
    if missing and len(counts) == 1:
        # Zero residuals add nothing to the sum.
        families = tuple(
            _filled(f, lead, missing) for f, lead in zip(families, before, strict=True)
        )
        residual = _filled(residual, first, missing)
    parts = network, families, residual
    return _run(parts, fn, sampling.form, devices, (before, first), chunk_size, summed)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4, 5, 6))
def _run(parts, fn, form, devices, places, chunk_size, summed: bool):
    before, first = places
    whole = PartitionSpec()
    specs = whole, tuple(map(devices.spec, before)), devices.spec(first)
    out = whole if summed else devices.spec(first if parts[2] is None else 0)

    def local(network, families, residual):
        result = fn(network, form.with_families(families), residual, chunk_size, summed)
        if not summed:
            return result
        # One vector, so that there is one reduction and not one for each core.
        flat, restore = ravel_pytree(result)
        return restore(jax.lax.psum(flat, devices.axis))

    if devices.is_explicit:
        # Types of such a mesh say where arrays are; shard_map wants them to say what it does.
        place = lambda spec, tree: jax.tree.map(  # noqa: E731
            lambda a: jax.sharding.reshard(a, NamedSharding(devices.mesh, spec)), tree
        )
        parts = jax.tree.map(place, specs, parts, is_leaf=lambda s: isinstance(s, PartitionSpec))
    return jax.shard_map(local, mesh=devices.mesh, in_specs=specs, out_specs=out)(*parts)


def warn_of_sharded_probes(sampling: Sampling) -> None:
    """Warn when points that are not traced are split over devices along a probe axis."""
    if probe_shards(sampling.families[0]) > 1:
        memory.warn_caller(
            "the probes are split over devices, but chunks of them are cut across the split: every "
            "device gathers all probes. Give mesh= to t3.sample or t3.sample_transpose (or call "
            "t3.sharded_probe_derivatives_transpose), which keep each device on its share; or work "
            "in jax.shard_map split along the probes; a fit takes t3.fit(..., mesh=...).",
            ShardedProbesWarning,
        )


def _filled(family: Any, axis: int, missing: int) -> Any:
    """Zeros appended on one axis of every array."""

    def fill(a):
        widths = [(0, missing if i == axis else 0) for i in range(np.ndim(a))]
        return jnp.pad(jnp.asarray(a), widths)

    return jax.tree.map(fill, family)

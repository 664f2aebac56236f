"""Sampling over many devices: each takes its share of the probes."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import memory
from t3._sampling.probes import probe_shards
from t3._sampling.sampling import Sampling
from t3._sampling.stack import callers_level


class ShardedProbesWarning(UserWarning):
    """Probes that are split over devices went into a function for one device."""


def over_devices(
    fn: Callable[..., Any],
    parts: tuple[Any, Sampling, Any],
    mesh: Mesh,
    axis: str | None,
    *,
    summed: bool,
) -> Any:
    """``fn(network, sampling, residual)`` of each device's share of the probes.

    Args:
        fn: for one device. Results that are not summed have probes first, as variations do; those
            of a sampling have orders and, stacked, modes before them.
        parts: the network is on every device; sampling and residual (or None) are split along their
            first probe axis.
        mesh, axis: the devices, and the mesh axis to split over.
        summed: add the results of all devices.

    Raises:
        ValueError, TypeError: a mesh or an axis that `memory.mesh_axis` refuses.
        ValueError: no probe axis; or kept results of a number of probes that the mesh axis does not
            divide, which could not stay split.
    """
    network, sampling, residual = parts
    axis = memory.mesh_axis(mesh, axis)
    devices, families = mesh.shape[axis], sampling.families
    counts, before = set(), [lead for lead, _ in sampling.leading]
    for family, (lead, behind) in zip(families, sampling.leading, strict=True):
        for a in [] if family is None else [family] if lead else family:
            counts.add(np.shape(a)[lead] if np.ndim(a) > lead + behind else 0)
    if counts == {0}:
        raise ValueError(
            "the points must have a probe axis to split over devices, got single ones."
        )
    missing = max(-count % devices for count in counts)
    if missing and not summed:
        raise ValueError(
            f"the first probe axis must divide over the {devices} devices of mesh axis {axis!r} for "
            f"kept results to stay split, got {counts.pop()} probes. Append {missing} probes whose "
            "residual is zero, and leave their rows out."
        )
    # Where values have their first probe axis.
    first = (sampling.highest is not None) + sampling.by_mode * before[0]
    if missing and len(counts) == 1:
        # Zero residuals add nothing to the sum.
        families = tuple(
            _filled(f, lead, missing) for f, lead in zip(families, before, strict=True)
        )
        residual = _filled(residual, first, missing)
    spec = lambda place: PartitionSpec(*[None] * place, axis)  # noqa: E731
    specs = PartitionSpec(), tuple(map(spec, before)), spec(first)
    out = PartitionSpec() if summed else spec(first if residual is None else 0)

    def local(network, families, residual):
        result = fn(network, sampling.form.with_families(families), residual)
        if not summed:
            return result
        # One vector, so that there is one reduction and not one for each core.
        flat, restore = ravel_pytree(result)
        return restore(jax.lax.psum(flat, axis))

    run = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out)

    def placed(*parts):
        if AxisType.Explicit in mesh.axis_types:
            # Types of such a mesh say where arrays are; shard_map wants them to say what it does.
            place = lambda spec, tree: jax.tree.map(  # noqa: E731
                lambda a: jax.sharding.reshard(a, NamedSharding(mesh, spec)), tree
            )
            parts = jax.tree.map(
                place, specs, parts, is_leaf=lambda s: isinstance(s, PartitionSpec)
            )
        return run(*parts)

    return jax.jit(placed)(network, families, residual)


def warn_of_sharded_probes(sampling: Sampling) -> None:
    """Warn when points that are not traced are split over devices along a probe axis."""
    if probe_shards(sampling.families[0]) > 1:
        warnings.warn(
            "the probes are split over devices, but chunks of them are cut across the split: every "
            "device gathers all probes. Give mesh= to t3.sample or t3.sample_transpose (or call "
            "t3.sharded_probe_derivatives_transpose), which keep each device on its share; or work "
            "in jax.shard_map split along the probes; a fit takes t3.fit(..., mesh=...).",
            ShardedProbesWarning,
            stacklevel=callers_level(),
        )


def _filled(family: Any, axis: int, missing: int) -> Any:
    """Zeros appended on one axis of every array."""

    def fill(a):
        widths = [(0, missing if i == axis else 0) for i in range(np.ndim(a))]
        return jnp.pad(jnp.asarray(a), widths)

    return jax.tree.map(fill, family)

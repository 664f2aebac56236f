"""The probe-derivative transpose over many devices: each takes its share of the probes."""

import sys
import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import memory
from t3._sampling.chunk_size import ChunkSize
from t3._sampling.probes import probe_shards
from t3._tensor.packing import is_packed

if TYPE_CHECKING:
    from t3._sampling.probes import Modes
    from t3._tangent.frame import T3Frame, T3Variations


class ShardedProbesWarning(UserWarning):
    """Probes that are split over devices went into a function for one device."""


def sharded_probe_derivatives_transpose(
    residual: "Modes",
    ww: "Modes",
    pp: "Modes | None",
    frame: "T3Frame",
    order: int,
    *,
    mesh: Mesh,
    axis: str | None = None,
    sum_over_probes: bool = False,
    chunk_size: ChunkSize = "auto",
) -> "T3Variations":
    """`t3.probe_derivatives_transpose` with the first probe axis split over a mesh axis.

    Every device works through its own probes in chunks, on a frame that all of them hold. A summed
    result ends in one all-reduce and is on every device; a kept one stays split. Where the devices
    do not divide the probes, a sum is filled up with probes whose residual is zero.

    Args:
        residual, ww, pp, frame, order, sum_over_probes: as in `t3.probe_derivatives_transpose`.
        mesh: the devices.
        axis: the name of the mesh axis; may be left out where there is one.
        chunk_size: probes that one device works on at a time; ``"auto"`` looks at its share.

    Raises:
        ValueError, TypeError: a mesh or an axis that `memory.mesh_axis` refuses.
        ValueError: no probe axis; or kept results of a number of probes that the mesh axis does not
            divide, which could not stay split.
    """
    from t3._sampling.transpose import probe_derivatives_transpose

    axis = memory.mesh_axis(mesh, axis)
    lead = 1 if is_packed(ww) else 0
    devices = mesh.shape[axis]
    counts = {np.shape(point)[lead] if np.ndim(point) > lead + 1 else 0 for point in _arrays(ww)}
    if counts == {0}:
        raise ValueError("ww must have a probe axis to split over devices, got single vectors.")
    missing = max(-count % devices for count in counts)
    if missing and not sum_over_probes:
        raise ValueError(
            f"the first probe axis must divide over the {devices} devices of mesh axis {axis!r} for "
            f"kept results to stay split, got {counts.pop()} probes. Append {missing} probes whose "
            "residual is zero, and leave their rows out."
        )
    if missing and len(counts) == 1:
        # Zero residuals add nothing to the sum.
        ww, pp = _filled(ww, lead, missing), _filled(pp, lead, missing)
        residual = _filled(residual, lead + 1, missing)
    split = PartitionSpec(*[None] * lead, axis)
    split_residual = PartitionSpec(*[None] * (lead + 1), axis)

    def local(residual, ww, pp, frame):
        variations = probe_derivatives_transpose(
            residual, ww, pp, frame, order, sum_over_probes=sum_over_probes, chunk_size=chunk_size
        )
        if not sum_over_probes:
            return variations
        # One vector, so that there is one reduction and not one for each core.
        flat, restore = ravel_pytree(variations)
        return restore(jax.lax.psum(flat, axis))

    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(split_residual, split, split, PartitionSpec()),
        out_specs=PartitionSpec() if sum_over_probes else PartitionSpec(axis),
    )

    def placed(residual, ww, pp, frame):
        if AxisType.Explicit in mesh.axis_types:
            # Types of such a mesh say where arrays are; shard_map wants them to say what it does.
            place = lambda tree, spec: jax.tree.map(  # noqa: E731
                lambda a: jax.sharding.reshard(a, NamedSharding(mesh, spec)), tree
            )
            residual = place(residual, split_residual)
            ww, pp = place(ww, split), place(pp, split)
            frame = place(frame, PartitionSpec())
        return run(residual, ww, pp, frame)

    return jax.jit(placed)(residual, ww, pp, frame)


def warn_of_sharded_probes(
    points: Any, remedy: str = "t3.sharded_probe_derivatives_transpose(..., mesh=..., axis=...)"
) -> None:
    """Warn when points that are not traced are split over devices along a probe axis.

    Args:
        points: as in `t3.probe_shards`.
        remedy: what to call instead.
    """
    if probe_shards(points) > 1:
        warnings.warn(
            "the probes are split over devices, but chunks of them are cut across the split: every "
            f"device gathers all probes. Call {remedy}, which keeps each device on its share.",
            ShardedProbesWarning,
            stacklevel=callers_level(),
        )


def callers_level() -> int:
    """Where the caller of this package is on the stack, for a warning by the caller of this function.

    Methods come here through more frames than functions do, of Equinox too.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("t3", "equinox"):
        level, frame = level + 1, frame.f_back
    return level


# For samplings that have no sharded twin.
IN_SHARD_MAP = "it in jax.shard_map split along the probes, or for a fit t3.fit(..., mesh=...)"


def _arrays(family: Any) -> list:
    return [family] if is_packed(family) else list(family)


def _filled(family: Any, axis: int, missing: int) -> Any:
    """Zeros appended on one axis of every array."""

    def fill(a):
        widths = [(0, missing if i == axis else 0) for i in range(np.ndim(a))]
        return jnp.pad(jnp.asarray(a), widths)

    return jax.tree.map(fill, family)

"""The probe-derivative transpose over many devices: each takes its share of the probes."""

import warnings
from typing import TYPE_CHECKING, Any

import jax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ._chunk_size import ChunkSize
from ._packing import is_packed

if TYPE_CHECKING:
    from ._frame import T3Frame, T3Variations
    from ._probes import Modes


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
    axis: str,
    sum_over_probes: bool = False,
    chunk_size: ChunkSize = "auto",
) -> "T3Variations":
    """`t3.probe_derivatives_transpose` with the first probe axis split over a mesh axis.

    Every device works through its own probes in chunks, on a frame that all of them hold. A summed
    result ends in one all-reduce and is on every device; a kept one stays split.

    Args:
        residual, ww, pp, frame, order, sum_over_probes: as in `t3.probe_derivatives_transpose`.
        mesh: the devices.
        axis: the name of the mesh axis.
        chunk_size: probes that one device works on at a time; ``"auto"`` looks at its share.

    Raises:
        ValueError: no probe axis, or a number of probes that the mesh axis does not divide.
    """
    from ._transpose import probe_derivatives_transpose

    lead = 1 if is_packed(ww) else 0
    devices = mesh.shape[axis]
    for point in [ww] if lead else ww:
        if point.ndim < lead + 2 or point.shape[lead] % devices:
            count = point.shape[lead] if point.ndim >= lead + 2 else "no"
            raise ValueError(
                f"the first probe axis must divide over the {devices} devices of mesh axis "
                f"{axis!r}, got {count} probes. Append probes whose residual is zero: they add "
                "nothing to a sum, and their rows can be cut off a kept result."
            )
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


def warn_of_sharded_probes(ww: Any) -> None:
    """Warn when points that are not traced are split over devices along a probe axis."""
    lead = 1 if is_packed(ww) else 0
    for point in [ww] if lead else ww:
        if isinstance(point, jax.Array) and not isinstance(point, jax.core.Tracer):
            local = point.sharding.shard_shape(point.shape)
            if local[lead:-1] != point.shape[lead:-1]:
                warnings.warn(
                    "the probes are split over devices, but chunks of them are cut across the "
                    "split: every device gathers all probes. Call "
                    "t3.sharded_probe_derivatives_transpose(..., mesh=..., axis=...), which keeps "
                    "each device on its share.",
                    ShardedProbesWarning,
                    stacklevel=3,
                )
                return

"""Far nodes, each of which acts on distant blocks as one point."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Int

from svgd._sums.blocks import AnyArray, take_rows
from svgd._sums.leaves.tiles import Points

# Nodes that one far entry evaluates against a block.
FAR_GROUP = 64


class FarNodes(eqx.Module):
    """Nodes, the blocks that they are made of, and the blocks that they act on.

    Attributes:
        node, member: the blocks of each node, sorted by node, (members,).
        block: the target block of each entry, (entries,).
        group: the nodes of each entry, padded with the last node, which is empty, (entries, g).
        num_nodes: padded.
    """

    node: Int[AnyArray, " members"]
    member: Int[AnyArray, " members"]
    block: Int[AnyArray, " entries"]
    group: Int[AnyArray, "entries nodes"]
    num_nodes: int = eqx.field(static=True)


def node_points(points: Points, far: FarNodes) -> Points:
    """Each far node as its particle count, centre of mass and summed score, (1, rows, nodes)."""
    block_count = jnp.sum(points.m, axis=1)
    block_z = jnp.sum(points.z * points.m[:, None, :], axis=2)
    block_q = jnp.sum(points.q, axis=2)

    def total(rows):
        return jax.ops.segment_sum(
            take_rows(rows, far.member),
            far.node,
            far.num_nodes,
            indices_are_sorted=True,
            mode="promise_in_bounds",
        )

    count = total(block_count)
    centre = total(block_z) / jnp.maximum(count, 1)[:, None]
    return Points(centre.T[None], total(block_q).T[None], count[None])

"""Sums at every particle over all others, each unordered pair of blocks evaluated once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

# Blocks are whole numbers of vector registers: a tile's rows then start aligned.
LANES = 8


class Circle:
    """Blocks of particles on a circle.

    With an odd number of blocks, each meets those of the half circle ahead of it, and every
    unordered pair of blocks is met once. What is symmetric in the two, such as distances and weights,
    then serves the sums at both.

    Attributes:
        count: particles.
        size: particles in a block.
        blocks: an odd number of them.
        axis: of the particles in every array, 0 or -1.
    """

    def __init__(self, count: int, size: int, axis: int):
        self.axis = axis
        blocks = -(-count // size) | 1
        size = -(-count // blocks)
        self.count = count
        self.size = -(-size // LANES) * LANES
        self.blocks = -(-count // self.size) | 1

    def sum(
        self,
        particles: PyTree,
        own: Callable[[PyTree], Any],
        both: Callable[[PyTree, PyTree], tuple[Any, Any]],
    ) -> PyTree:
        """The sums at every particle.

        Args:
            particles: pytree of arrays with `count` particles on the axis. Functions get slices with
                `size` of them and, last, their places (size,). Those at places from `count` on repeat
                the last one: they may take part as targets, not as sources.
            own: of a block, the sums over it at its particles.
            both: of two different blocks, the sums at the first over the second, and at the second
                over the first.

        Returns:
            The sums, with `count` particles on the axis.

        Cost:
            Memory of the padded particles, the result and one pair of blocks; the derivative recomputes
            each pair of blocks.
        """
        length = self.blocks * self.size

        def padded(leaf):
            widths = [(0, 0)] * leaf.ndim
            widths[self.axis] = (0, length - self.count)
            return jnp.pad(leaf, widths, mode="edge")

        def cut(leaves):
            return jax.tree.map(
                lambda leaf: lax.slice_in_dim(leaf, 0, self.count, axis=self.axis), leaves
            )

        def take(leaves, start):
            parts = jax.tree.map(
                lambda leaf: lax.dynamic_slice_in_dim(leaf, start, self.size, axis=self.axis),
                leaves,
            )
            # Copied: fused into the loop over a tile the slices would be cut out for every pair.
            return lax.optimization_barrier(parts)

        def add(totals, parts, start):
            sums = jax.tree.map(jnp.add, take(totals, start), parts)
            return jax.tree.map(
                lambda total, part: lax.dynamic_update_slice_in_dim(total, part, start, self.axis),
                totals,
                sums,
            )

        everything = (*jax.tree.map(padded, particles), jnp.arange(length, dtype=jnp.int32))
        own, both = jax.checkpoint(own), jax.checkpoint(both)
        if self.blocks == 1:
            return cut(own(everything))

        def one_block(totals, block):
            here = take(everything, block * self.size)

            def one_pair(carry, ahead):
                sums, totals = carry
                start = (block + ahead) % self.blocks * self.size
                parts, back = both(here, take(everything, start))
                return (jax.tree.map(jnp.add, sums, parts), add(totals, back, start)), None

            ahead = jnp.arange(1, self.blocks // 2 + 1, dtype=jnp.int32)
            (sums, totals), _ = lax.scan(one_pair, (own(here), totals), ahead)
            return add(totals, sums, block * self.size), None

        def zeros(struct):
            shape = list(struct.shape)
            shape[self.axis] = length
            return jnp.zeros(shape, struct.dtype)

        start = jax.tree.map(zeros, jax.eval_shape(lambda all_: own(take(all_, 0)), everything))
        totals, _ = lax.scan(one_block, start, jnp.arange(self.blocks, dtype=jnp.int32))
        return cut(totals)

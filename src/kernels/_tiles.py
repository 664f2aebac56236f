"""The mathematics of one tile: a block of target particles against a block of sources.

Arrays are (rows, particles): coordinates (d, T) and (d, S), charges (c, T) and (c, S), and a tile of
weights (S, T). With the long axis last, the elementwise work over a tile is read and written in
order, and the sums over sources are products of a few rows with the tile.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

# Up to this many dimensions squared distances are summed coordinate by coordinate inside the loop
# that takes the profile; above it they come from matrix products.
MAX_UNROLLED = 8

# Blocks may reach out to |z|^2 = COMPACT / eps before products of coordinates lose too much: an
# expanded r^2, and so the weight of a close pair in relative terms, is off by about COMPACT there.
COMPACT = 1e-4


class Block(eqx.Module):
    """Particles of one side of a tile.

    Attributes:
        x: coordinates, (d, m).
        q: charges, (c, m).
        a: cotangents of the sums at these particles, (c, m); None outside a backward pass.
        index: place of each particle among all, (m,); pairs of equal places are left out.
    """

    x: Float[Array, "d m"]
    q: Float[Array, "c m"]
    a: Float[Array, "c m"] | None
    index: Int[Array, " m"]


class Pairs(eqx.Module):
    """Distances of a tile and the sums over its sources.

    Differences are taken from the coordinates as given, before they are scaled or squared. Sums of
    weights times differences are products with coordinates centred on a target, which keeps a
    common offset out of them. What is left is the extent of the targets: while that is *compact*
    the products lose little; otherwise the differences are summed pair by pair, slower and exact.
    """

    targets: Block
    sources: Block
    rate: Float[Array, " d"]
    zt: Float[Array, "d t"]
    zs: Float[Array, "d s"]
    compact: Array

    def __init__(self, targets: Block, sources: Block, rate: Array):
        self.targets, self.sources, self.rate = targets, sources, rate
        centre = targets.x[:, :1]
        self.zt = (targets.x - centre) * rate[:, None]
        self.zs = (sources.x - centre) * rate[:, None]
        radius2 = jnp.max(jnp.sum(self.zt**2, axis=0))
        # A difference out of a product is off by about eps times the radius: sqrt(COMPACT eps) at the limit.
        self.compact = radius2 <= COMPACT / jnp.finfo(rate.dtype).eps

    def squared_distances(self) -> Float[Array, "s t"]:
        """r^2 of every pair; infinite, so that every weight is zero, for a particle with itself."""
        r2 = sum(self._difference(k) ** 2 for k in range(self.rate.shape[0]))
        same = self.sources.index[:, None] == self.targets.index[None, :]
        return jnp.where(same, jnp.inf, r2)

    def differences_sum(self, weights: Float[Array, "s t"]) -> Float[Array, "d t"]:
        """sum_j w_ij (z_i - z_j)."""

        def expanded(weights):
            sums = dot(with_ones(self.zs), weights)
            return self.zt * sums[-1:] - sums[:-1]

        return lax.cond(self.compact, expanded, lambda w: self._looped_sum(w), weights)

    def charges_and_differences_sum(self, weights: Float[Array, "s t"]) -> Float[Array, "d t"]:
        """sum_j w_ij (q_j + z_i - z_j), for charges with d rows."""

        def expanded(weights):
            sums = dot(with_ones(self.sources.q - self.zs), weights)
            return sums[:-1] + self.zt * sums[-1:]

        def looped(weights):
            return dot(self.sources.q, weights) + self._looped_sum(weights)

        return lax.cond(self.compact, expanded, looped, weights)

    def cotangent_weights(
        self, slope: Float[Array, "s t"], curvature: Float[Array, "s t"], repel: bool
    ) -> Float[Array, "s t"]:
        """W_ij with dE/dz_i = sum_j W_ij (z_i - z_j) + ..., symmetric in i and j.

        W = -slope (a_i.q_j + a_j.q_i) - [repel] curvature (a_i - a_j).(z_i - z_j).
        """
        t, s = self.targets, self.sources
        if t.q.shape[0] <= MAX_UNROLLED:
            exchange = sum(
                s.q[k][:, None] * t.a[k][None, :] + s.a[k][:, None] * t.q[k][None, :]
                for k in range(t.q.shape[0])
            )
        else:
            exchange = dot(jnp.concatenate([s.q, s.a]).T, jnp.concatenate([t.a, t.q]))
        if not repel:
            return -slope * exchange
        work = sum(
            (s.a[k][:, None] - t.a[k][None, :]) * self._difference(k)
            for k in range(self.rate.shape[0])
        )
        return -slope * exchange - curvature * work

    def _difference(self, k) -> Float[Array, "s t"]:
        """(z_j - z_i) in dimension k, subtracted before it is scaled."""
        return (self.sources.x[k][:, None] - self.targets.x[k][None, :]) * self.rate[k]

    def _looped_sum(self, weights):
        def one(k):
            return -jnp.sum(weights * self._difference(k), axis=0)

        return lax.map(one, jnp.arange(self.rate.shape[0]))


def forward_tile(weights: Callable, repel: bool, targets: Block, sources: Block, rate: Array):
    """sum_j f q_j + [repel] slope (z_i - z_j) over the sources of one tile: (c, T)."""
    pairs = Pairs(targets, sources, rate)
    f, slope, _ = weights(pairs.squared_distances())
    if not repel:
        return dot(sources.q, f)
    if slope is f:
        return pairs.charges_and_differences_sum(f)
    return dot(sources.q, f) + pairs.differences_sum(slope)


def backward_tile(weights: Callable, repel: bool, targets: Block, sources: Block, rate: Array):
    """Cotangents of z and q at the targets.

    dq_i = sum_j f a_j
    dz_i = sum_j W_ij (z_i - z_j) + [repel] slope (a_i - a_j)
    """
    pairs = Pairs(targets, sources, rate)
    f, slope, curvature = weights(pairs.squared_distances())
    dz = pairs.differences_sum(pairs.cotangent_weights(slope, curvature, repel))
    ones_a = with_ones(sources.a)
    f_a = dot(ones_a, f)
    if repel:
        slope_a = f_a if slope is f else dot(ones_a, slope)
        dz = dz + targets.a * slope_a[-1:] - slope_a[:-1]
    return dz, f_a[:-1]


def dot(a: Array, b: Array) -> Array:
    """a @ b in the precision of the dtype itself: accelerators shorten float32 by default."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def with_ones(rows: Float[Array, "c m"]) -> Float[Array, "c1 m"]:
    return jnp.concatenate([rows, jnp.ones((1, rows.shape[1]), rows.dtype)])


def as_rows(columns: Array) -> Array:
    """(m, c) as (c, m), copied: fused into the loop over a tile it would be read with a stride."""
    return lax.optimization_barrier(columns.T)

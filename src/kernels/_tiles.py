"""The mathematics of one tile: a block of target particles against a block of sources.

Arrays are (rows, particles): coordinates (d, T) and (d, S), charges (c, T) and (c, S), and a tile of
weights (S, T). With the long axis last, the elementwise work over a tile is read and written in
order, and the sums over sources are products of a few rows with the tile.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

# Up to this many dimensions squared distances are summed coordinate by coordinate inside the loop
# that takes the profile; above it they come from one matrix product. Seconds of one exact float32
# update of 4,096 particles on two CPU cores, forward:
#     d            4      8      12     16     24     32     100
#     coordinates  GRIDC
#     product      GRIDP
MAX_UNROLLED = 8


class Block(eqx.Module):
    """Particles of one side of a tile.

    Attributes:
        x: coordinates, (d, m).
        q: charges, (c, m).
        a: cotangents of the sums at these particles, (c, m); None outside a backward pass.
        index: place of each particle among all, (m,); pairs of equal places are left out, and so
            is padding, which carries a negative place.
    """

    x: Float[Array, "d m"]
    q: Float[Array, "c m"]
    a: Float[Array, "c m"] | None
    index: Int[Array, " m"]


class Pairs(eqx.Module):
    """Distances of a tile and the sums over its sources.

    Coordinates are centred on a target before anything is formed from them, so that a common
    offset of all particles costs no digits. What is left is the extent of the targets: while that
    is *compact*, expanded products lose little; otherwise every difference is taken pair by pair
    before it is squared or summed, which is slower and exact.
    """

    targets: Block
    sources: Block
    rate: Float[Array, " d"]
    zt: Float[Array, "d t"]
    zs: Float[Array, "d s"]
    compact: Array
    unrolled: bool = eqx.field(static=True)

    def __init__(self, targets: Block, sources: Block, rate: Array):
        self.targets, self.sources, self.rate = targets, sources, rate
        centre = targets.x[:, :1]
        self.zt = (targets.x - centre) * rate[:, None]
        self.zs = (sources.x - centre) * rate[:, None]
        radius2 = jnp.max(jnp.sum(self.zt**2, axis=0))
        # r^2 by expansion is off by about eps times this radius squared: 1e-4 at the limit.
        self.compact = radius2 <= 1e-4 / jnp.finfo(rate.dtype).eps
        self.unrolled = targets.x.shape[0] <= MAX_UNROLLED

    def squared_distances(self) -> Float[Array, "s t"]:
        """r^2 of every pair; infinite, so that every weight is zero, for a particle with itself."""
        if self.unrolled:
            r2 = sum(self._difference(k) ** 2 for k in range(self.rate.shape[0]))
        else:
            r2 = self._if_compact(self._expanded_distances, self._looped_distances)
        source, target = self.sources.index[:, None], self.targets.index[None, :]
        return jnp.where((source == target) | (source < 0), jnp.inf, r2)

    def differences_sum(self, weights: Float[Array, "s t"]) -> Float[Array, "d t"]:
        """sum_j w_ij (z_i - z_j)."""
        return self._if_compact(self._expanded_sum, self._looped_sum, weights)

    def charges_and_differences_sum(self, weights: Float[Array, "s t"]) -> Float[Array, "d t"]:
        """sum_j w_ij (q_j + z_i - z_j), for charges with d rows."""

        def expanded(weights):
            sums = dot(with_ones(self.sources.q - self.zs), weights)
            return sums[:-1] + self.zt * sums[-1:]

        def looped(weights):
            return dot(self.sources.q, weights) + self._looped_sum(weights)

        return self._if_compact(expanded, looped, weights)

    def cotangent_weights(
        self, f: Array, slope: Array, curvature: Array, repel: bool
    ) -> Float[Array, "s t"]:
        """W_ij with dE/dz_i = sum_j W_ij (z_i - z_j) + ..., symmetric in i and j.

        W = -slope (a_i.q_j + a_j.q_i) - [repel] curvature (a_i - a_j).(z_i - z_j).
        """
        t, s = self.targets, self.sources
        merged = repel and curvature is slope
        if self.unrolled and t.q.shape[0] <= MAX_UNROLLED:
            exchange = sum(
                s.q[k][:, None] * t.a[k][None, :] + s.a[k][:, None] * t.q[k][None, :]
                for k in range(t.q.shape[0])
            )
        elif merged and not self.unrolled:
            return self._if_compact(self._expanded_merged, self._looped_merged, slope)
        else:
            exchange = self._exchange()
        if not repel:
            return -slope * exchange
        if self.unrolled:
            work = sum(
                (t.a[k][None, :] - s.a[k][:, None]) * -self._difference(k)
                for k in range(self.rate.shape[0])
            )
        else:
            work = self._if_compact(self._expanded_work, self._looped_work)
        return -slope * exchange - curvature * work

    def _if_compact(self, expanded: Callable, looped: Callable, *operands):
        # Plain functions: lax.cond hashes its branches, and a bound method holds traced arrays.
        return lax.cond(
            self.compact, lambda *args: expanded(*args), lambda *args: looped(*args), *operands
        )

    def _difference(self, k) -> Float[Array, "s t"]:
        """(z_j - z_i) in dimension k, subtracted before it is scaled."""
        return (self.sources.x[k][:, None] - self.targets.x[k][None, :]) * self.rate[k]

    def _over_dimensions(self, term: Callable) -> Float[Array, "s t"]:
        """sum_k term(k, z_j - z_i in dimension k), a loop that holds one tile at a time."""
        shape = (self.sources.x.shape[1], self.targets.x.shape[1])

        def step(total, k):
            return total + term(k, self._difference(k)), None

        start = jnp.zeros(shape, self.rate.dtype)
        return lax.scan(step, start, jnp.arange(self.rate.shape[0]))[0]

    def _expanded_distances(self):
        norms = jnp.sum(self.zs**2, axis=0)[:, None] + jnp.sum(self.zt**2, axis=0)[None, :]
        return jnp.maximum(norms - 2 * dot(self.zs.T, self.zt), 0)

    def _looped_distances(self):
        return self._over_dimensions(lambda k, difference: difference**2)

    def _expanded_sum(self, weights):
        sums = dot(with_ones(self.zs), weights)
        return self.zt * sums[-1:] - sums[:-1]

    def _looped_sum(self, weights):
        def one(k):
            return -jnp.sum(weights * self._difference(k), axis=0)

        return lax.map(one, jnp.arange(self.rate.shape[0]))

    def _exchange(self):
        t, s = self.targets, self.sources
        return dot(jnp.concatenate([s.q, s.a]).T, jnp.concatenate([t.a, t.q]))

    def _expanded_merged(self, slope):
        # a_i.q_j + a_j.q_i + (a_i - a_j).(z_i - z_j), as one product of 2 d rows.
        t, s = self.targets, self.sources
        left = jnp.concatenate([s.q - self.zs, s.a])
        right = jnp.concatenate([t.a, t.q - self.zt])
        own = jnp.sum(s.a * self.zs, axis=0)[:, None] + jnp.sum(t.a * self.zt, axis=0)[None, :]
        return -slope * (dot(left.T, right) + own)

    def _looped_merged(self, slope):
        return -slope * (self._exchange() + self._looped_work())

    def _expanded_work(self):
        t, s = self.targets, self.sources
        own = jnp.sum(s.a * self.zs, axis=0)[:, None] + jnp.sum(t.a * self.zt, axis=0)[None, :]
        left = jnp.concatenate([self.zs, s.a])
        right = jnp.concatenate([t.a, self.zt])
        return own - dot(left.T, right)

    def _looped_work(self):
        t, s = self.targets, self.sources
        return self._over_dimensions(
            lambda k, difference: (s.a[k][:, None] - t.a[k][None, :]) * difference
        )


def forward_tile(weights: Callable, repel: bool, targets: Block, sources: Block, rate: Array):
    """sum_j f q_j + [repel] slope (z_i - z_j) over the sources of one tile: (c, T)."""
    pairs = Pairs(targets, sources, rate)
    f, slope, _ = weights(pairs.squared_distances())
    if not repel:
        return dot(sources.q, f)
    if slope is f:
        return pairs.charges_and_differences_sum(f)
    return dot(sources.q, f) + pairs.differences_sum(slope)


def backward_tile(
    weights: Callable,
    repel: bool,
    targets: Block,
    sources: Block,
    rate: Array,
    both_sides: bool = False,
):
    """Cotangents of z and q at the targets, and with `both_sides` also at the sources.

    dq_i = sum_j f a_j
    dz_i = sum_j W_ij (z_i - z_j) + [repel] slope (a_i - a_j)
    """
    pairs = Pairs(targets, sources, rate)
    f, slope, curvature = weights(pairs.squared_distances())
    w = pairs.cotangent_weights(f, slope, curvature, repel)

    def gather(pairs, f, slope, w):
        ones_a = with_ones(pairs.sources.a)
        f_a = dot(ones_a, f)
        dz = pairs.differences_sum(w)
        if repel:
            slope_a = f_a if slope is f else dot(ones_a, slope)
            dz = dz + pairs.targets.a * slope_a[-1:] - slope_a[:-1]
        return dz, f_a[:-1]

    here = gather(pairs, f, slope, w)
    if not both_sides:
        return here
    f_back = f.T
    slope_back = f_back if slope is f else slope.T
    return here, gather(Pairs(sources, targets, rate), f_back, slope_back, w.T)


def dot(a: Array, b: Array) -> Array:
    """a @ b in the precision of the dtype itself: accelerators shorten float32 by default."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def with_ones(rows: Float[Array, "c m"]) -> Float[Array, "c1 m"]:
    return jnp.concatenate([rows, jnp.ones((1, rows.shape[1]), rows.dtype)])


def as_rows(columns: Array) -> Array:
    """(m, c) as (c, m), copied: fused into the loop over a tile it would be read with a stride."""
    return lax.optimization_barrier(columns.T)

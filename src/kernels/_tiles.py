"""The mathematics of one tile: a block of target particles against a block of sources.

Arrays are (rows, particles): coordinates (d, T) and (d, S), charges (c, T) and (c, S), and a tile of
weights (S, T). With the long axis last, the elementwise work over a tile is read and written in
order, and the sums over sources are products of a few rows with the tile.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from kernels._weights import Profile, pair_weights

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
        present: 1 for a particle, 0 for padding, (m,); None without padding.
    """

    x: Float[Array, "d m"]
    q: Float[Array, "c m"]
    a: Float[Array, "c m"] | None
    index: Int[Array, " m"]
    present: Float[Array, " m"] | None = None

    def with_ones(self, rows: Float[Array, "c m"]) -> Float[Array, "c1 m"]:
        """Rows of sources and, last, a row of ones; padding is zero in all."""
        ones = jnp.ones_like(rows[:1]) if self.present is None else self.present[None, :]
        return jnp.concatenate([rows * ones, ones])


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Distances of a tile and the sums over its sources.

    Differences are taken from the coordinates as given, before they are scaled or squared. Sums of
    weights times differences are products with coordinates centred on a target, which keeps a
    common offset out of them. What is left is the extent of the targets: while that is *compact*
    the products lose little; otherwise the differences are summed pair by pair, slower and exact.

    Attributes:
        targets, sources: the two sides.
        rate: scale of each dimension.
        zt, zs: both sides' scaled coordinates about the same centre.
        compact: whether products are good enough.
        distinct: whether no particle is on both sides.
        across: whether weights are laid out (t, s) instead of (s, t), as the tile's other side left
            them: transposing a tile would cost more than the sums.
    """

    targets: Block
    sources: Block
    rate: Float[Array, " d"]
    zt: Float[Array, "d t"]
    zs: Float[Array, "d s"]
    compact: Array
    distinct: bool
    across: bool = False

    @classmethod
    def of(cls, targets: Block, sources: Block, rate: Array, distinct: bool = False) -> "Pairs":
        # A particle, so that a common offset of all cancels exactly; the one nearest the mean, since
        # sums of products lose what differences from the centre have above those of a pair.
        about = targets.x - targets.x[:, :1]
        offset = jnp.sum((about - jnp.mean(about, axis=1, keepdims=True)) ** 2, axis=0)
        centre = lax.dynamic_slice_in_dim(targets.x, jnp.argmin(offset), 1, axis=1)
        zt = (targets.x - centre) * rate[:, None]
        zs = (sources.x - centre) * rate[:, None]
        radius2 = jnp.max(jnp.sum(zt**2, axis=0))
        # A difference out of a product is off by about eps times the radius: sqrt(COMPACT eps) at the limit.
        compact = radius2 <= COMPACT / jnp.finfo(rate.dtype).eps
        return cls(targets, sources, rate, zt, zs, compact, distinct)

    def swapped(self) -> "Pairs":
        """The same tile with the sides exchanged, for sums of the same weights the other way."""
        return dataclasses.replace(
            self,
            targets=self.sources,
            sources=self.targets,
            zt=self.zs,
            zs=self.zt,
            across=not self.across,
        )

    def squared_distances(self) -> Float[Array, "s t"]:
        """r^2 of every pair; infinite, so that every weight is zero, for a particle with itself."""
        r2 = sum(self._difference(k) ** 2 for k in range(self.rate.shape[0]))
        if self.distinct:
            return r2
        same = self.sources.index[:, None] == self.targets.index[None, :]
        return jnp.where(same, jnp.inf, r2)

    def sums(self, rows: Float[Array, "c s"], weights: Array) -> Float[Array, "c1 t"]:
        """sum_j w_ij u_j for rows u of the sources, and sum_j w_ij last."""
        rows = self.sources.with_ones(rows)
        return dot_across(rows, weights) if self.across else dot(rows, weights)

    def differences_sum(self, weights: Array) -> Float[Array, "d t"]:
        """sum_j w_ij (z_i - z_j)."""

        def expanded(weights):
            sums = self.sums(self.zs, weights)
            return self.zt * sums[-1:] - sums[:-1]

        return lax.cond(self.compact, expanded, lambda w: self._looped_sum(w), weights)

    def charges_sum(self, weights: Array) -> Float[Array, "c t"]:
        """sum_j w_ij q_j."""
        return self.sums(self.sources.q, weights)[:-1]

    def charges_and_differences_sum(self, weights: Array) -> Float[Array, "d t"]:
        """sum_j w_ij (q_j + z_i - z_j), for charges with d rows."""

        def expanded(weights):
            sums = self.sums(self.sources.q - self.zs, weights)
            return sums[:-1] + self.zt * sums[-1:]

        def looped(weights):
            return self.charges_sum(weights) + self._looped_sum(weights)

        return lax.cond(self.compact, expanded, looped, weights)

    def cotangent_weights(
        self, slope: Float[Array, "s t"], curvature: Float[Array, "s t"], repel: bool
    ) -> Float[Array, "s t"]:
        """W_ij with dE/dz_i = sum_j W_ij (z_i - z_j) + ..., symmetric in i and j.

        W = -slope (a_i.q_j + a_j.q_i) - [repel] curvature (a_i - a_j).(z_i - z_j).
        """
        if repel and curvature is slope:
            return lax.cond(
                self.compact,
                lambda slope: -slope * self._merged_exchange(),
                lambda slope: self._cotangent_weights(slope, slope, repel),
                slope,
            )
        return self._cotangent_weights(slope, curvature, repel)

    def _merged_exchange(self) -> Float[Array, "s t"]:
        """a_i.q_j + a_j.q_i + (a_i - a_j).(z_i - z_j) as products of charges that have lost z."""
        t, s = self.targets, self.sources
        qt, qs = t.q - self.zt, s.q - self.zs
        own_t, own_s = (jnp.sum(a * z, axis=0) for a, z in ((t.a, self.zt), (s.a, self.zs)))
        exchange = own_s[:, None] + own_t[None, :]
        for k in range(qt.shape[0]):
            exchange += qs[k][:, None] * t.a[k][None, :] + s.a[k][:, None] * qt[k][None, :]
        return exchange

    def _cotangent_weights(self, slope, curvature, repel: bool) -> Float[Array, "s t"]:
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
        """(z_j - z_i) in dimension k, subtracted before it is scaled; laid out as the weights are."""
        s, t = self.sources.x[k], self.targets.x[k]
        gap = s[None, :] - t[:, None] if self.across else s[:, None] - t[None, :]
        return gap * self.rate[k]

    def _looped_sum(self, weights):
        along, across = (1, 0) if self.across else (0, 1)
        if self.sources.present is not None:
            weights = weights * jnp.expand_dims(self.sources.present, across)

        def one(k):
            return -jnp.sum(weights * self._difference(k), axis=along)

        return lax.map(one, jnp.arange(self.rate.shape[0]))


def forward_tile(profile: Profile, repel: bool, targets: Block, sources: Block, rate: Array):
    """sum_j f q_j + [repel] slope (z_i - z_j) over the sources of one tile: (c, T)."""
    pairs = Pairs.of(targets, sources, rate)
    return _forward_sums(pairs, pair_weights(profile, pairs.squared_distances()), repel)


def forward_both(profile: Profile, repel: bool, here: Block, there: Block, rate: Array):
    """`forward_tile` at each of two different blocks over the other, from one set of weights."""
    pairs = Pairs.of(here, there, rate, distinct=True)
    found = pair_weights(profile, pairs.squared_distances())
    back = _forward_sums(pairs.swapped(), found, repel)
    return _forward_sums(pairs, found, repel), back


def backward_tile(profile: Profile, repel: bool, targets: Block, sources: Block, rate: Array):
    """Cotangents of z and q at the targets.

    dq_i = sum_j f a_j
    dz_i = sum_j W_ij (z_i - z_j) + [repel] slope (a_i - a_j)
    """
    pairs = Pairs.of(targets, sources, rate)
    found = pair_weights(profile, pairs.squared_distances())
    return _backward_sums(pairs, found, pairs.cotangent_weights(*found[1:], repel), repel)


def backward_both(profile: Profile, repel: bool, here: Block, there: Block, rate: Array):
    """`backward_tile` at each of two different blocks over the other, from one set of weights."""
    pairs = Pairs.of(here, there, rate, distinct=True)
    found = pair_weights(profile, pairs.squared_distances())
    w = pairs.cotangent_weights(*found[1:], repel)
    back = _backward_sums(pairs.swapped(), found, w, repel)
    return _backward_sums(pairs, found, w, repel), back


def _forward_sums(pairs: Pairs, found, repel: bool):
    f, slope, _ = found
    if not repel:
        return pairs.charges_sum(f)
    if slope is f:
        return pairs.charges_and_differences_sum(f)
    return pairs.charges_sum(f) + pairs.differences_sum(slope)


def _backward_sums(pairs: Pairs, found, cotangent_weights, repel: bool):
    f, slope, _ = found
    dz = pairs.differences_sum(cotangent_weights)
    f_a = pairs.sums(pairs.sources.a, f)
    if repel:
        slope_a = f_a if slope is f else pairs.sums(pairs.sources.a, slope)
        dz = dz + pairs.targets.a * slope_a[-1:] - slope_a[:-1]
    return dz, f_a[:-1]


def dot(a: Array, b: Array) -> Array:
    """a @ b in the precision of the dtype itself: accelerators shorten float32 by default."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def dot_across(rows: Float[Array, "c t"], weights: Float[Array, "s t"]) -> Float[Array, "c s"]:
    """rows @ weights^T: the sums at a tile's other side, in about the time of `dot(rows, weights)`.

    As columns, copied: XLA folds transposes into a product of rows, which takes twice as long.
    Nanoseconds a pair, 4 rows, tiles of 384, two CPU cores: float64 0.16 beside 0.25, float32 0.08
    beside 0.15.
    """
    columns = lax.optimization_barrier(rows.T)
    return lax.optimization_barrier(dot(weights, columns)).T


def as_rows(columns: Array) -> Array:
    """(m, c) as (c, m), copied: fused into the loop over a tile it would be read with a stride."""
    return lax.optimization_barrier(columns.T)

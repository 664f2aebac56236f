"""The exact sum on many devices: each sums over all sources at its own share of the targets.

Everything here runs on one device inside `jax.shard_map`, on its rows of arrays split along the
first axis. Sources are gathered once and then read like those of a single device; or they go round a
ring, so that a device holds its own rows and one other device's at a time.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels import RadialKernel
from kernels._pairwise import tile_loss, tile_sizes
from kernels._tiles import MAX_UNROLLED, Block, as_rows, backward_tile, dot, forward_tile
from kernels._weights import Profile, pair_weights, shape_cotangent
from kernels._wide import WidePairs, wide_forward_tile
from memory import map_concat, map_sum


@dataclasses.dataclass(frozen=True)
class Share:
    """How particles are split.

    Attributes:
        axis: the mesh axis.
        devices: along it.
        count: particles of all devices together, without padding at the end of the last ones.
        ring: whether sources go round instead of being gathered.
    """

    axis: str
    devices: int
    count: int
    ring: bool

    def gathered(self, rows: Array) -> Array:
        """The rows of all devices, without the padding."""
        return lax.all_gather(rows, self.axis, tiled=True)[: self.count]

    def places(self, rows: Array) -> Array:
        """The places of this device's rows among all."""
        size = rows.shape[0]
        first = lax.axis_index(self.axis).astype(jnp.int32) * size
        return first + jnp.arange(size, dtype=jnp.int32)


def stein_sum_at_share(
    kernel: RadialKernel,
    particles: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    share: Share,
) -> Float[Array, "m d"]:
    """`kernels.stein_sum` over the particles of all devices, at those of this one.

    Cost: O(n m d) operations. Memory of the gathered sources, or twice that of its own, and a few
    tiles. The backward pass costs twice the forward and sends once more what the forward does.
    """
    scaled = kernel.scale_gradient(scores)
    x, rate = _coordinates(kernel, particles, share)
    others = _sum(kernel.profile, share, x, rate, scaled)
    # A particle's own score stays unscaled, as in `kernels.stein_sum`.
    return scores + kernel.unscale_gradient(others)


def _coordinates(kernel, particles, share):
    """Coordinates x and rates such that z = x * rate: see `kernels._pairwise`."""
    if kernel.metric is None:
        return particles, kernel.rates(particles.shape[1], particles.dtype)
    fixed = lax.stop_gradient(particles)
    mean = lax.pmean(jnp.mean(fixed, axis=0), share.axis)
    distance = jnp.sum((fixed - mean[None, :]) ** 2, axis=1)
    nearest = lax.all_gather(fixed[jnp.argmin(distance)], share.axis)
    centre = nearest[jnp.argmin(lax.all_gather(jnp.min(distance), share.axis))]
    rate = jnp.ones(particles.shape[1], particles.dtype)
    return kernel.scale(particles - centre[None, :]), rate


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _sum(profile: Profile, share: Share, x, rate, charges):
    one = _wide_forward if x.shape[1] > MAX_UNROLLED else partial(_over_tiles, forward_tile)
    return _over_sources(share, partial(one, profile, rate), (x, charges))


def _sum_forward(profile, share, x, rate, charges):
    return _sum(profile, share, x, rate, charges), (profile, x, rate, charges)


def _sum_backward(share, residuals, cotangent):
    profile, x, rate, charges = residuals
    wide = x.shape[1] > MAX_UNROLLED
    one = _wide_backward if wide else partial(_over_tiles, backward_tile)
    rows = (x, charges, cotangent)
    # A pair's part is symmetric, so what reaches a particle as a source is summed at it as a target.
    dz, dq = _over_sources(share, partial(one, profile, rate), rows)
    # Padding is a target only.
    dz = jnp.where((share.places(x) < share.count)[:, None], dz, 0)
    # The dz of all particles sum to zero, so any centre serves that is the same on all devices.
    centre = lax.pmean(x[0], share.axis)
    d_profile = profile
    if jax.tree.leaves(profile):
        one = _wide_shape if wide else _tiles_shape
        d_profile = _over_sources(share, partial(one, profile, rate), rows)
    return d_profile, dz * rate[None, :], jnp.sum(dz * (x - centre[None, :]), axis=0), dq


_sum.defvjp(_sum_forward, _sum_backward)


def _over_sources(share, one, rows):
    """`one(targets, sources)`, summed over the sources of all devices; rows are x, charges, .."""
    targets = (*rows, share.places(rows[0]))
    if not share.ring:
        sources = jax.tree.map(share.gathered, rows)
        return one(targets, (*sources, jnp.arange(share.count, dtype=jnp.int32)))
    # Differentiated once more, the sums would keep every tile.
    one = jax.checkpoint(one)
    to_next = [(k, (k + 1) % share.devices) for k in range(share.devices)]

    def step(carry, _):
        visiting, total = carry
        visiting = jax.tree.map(lambda leaf: lax.ppermute(leaf, share.axis, to_next), visiting)
        return (visiting, jax.tree.map(jnp.add, total, one(targets, visiting))), None

    start = (targets, one(targets, targets))
    return lax.scan(step, start, length=share.devices - 1)[0][1]


# -------------------------------------------------------------------------- few dimensions: tiles


def _over_tiles(tile, profile, rate, targets, sources):
    rows, columns = tile_sizes(targets[0].shape[1])

    def sum_at(rows):
        target = _block(rows)

        def from_sources(rows):
            return tile(profile, True, target, _block(rows), rate)

        sums = map_sum(from_sources, sources, chunk_size=columns, checkpoint=True)
        return jax.tree.map(jnp.transpose, sums)

    return map_concat(sum_at, targets, chunk_size=rows, checkpoint=True)


def _tiles_shape(profile, rate, targets, sources):
    sizes = tile_sizes(targets[0].shape[1])
    return shape_cotangent(profile, partial(tile_loss, True, rate), targets, sources, sizes)


def _block(rows) -> Block:
    x, q, *a, places = rows
    return Block(as_rows(x), as_rows(q), as_rows(a[0]) if a else None, places)


# -------------------------------------------------------------------------- many: matrix products


def _wide_forward(profile, rate, targets, sources):
    pairs, targets, sources = _wide_pairs(rate, targets, sources)

    def tile(target, source):
        return wide_forward_tile(pairs, profile, True, target[:3], source)

    return _over_wide_tiles(tile, targets, sources)


def _wide_shape(profile, rate, targets, sources):
    pairs, targets, sources = _wide_pairs(rate, targets, sources)

    def loss(profile, target, source):
        sums = wide_forward_tile(pairs, profile, True, target[:3], source[:4])
        return jnp.sum(target[4] * sums)

    return shape_cotangent(profile, loss, targets, sources, tile_sizes(targets[0].shape[1]))


def _wide_backward(profile, rate, targets, sources):
    pairs, targets, sources = _wide_pairs(rate, targets, sources)

    def sums(expanded, target, source):
        (*t, qt, at), (*s, qs, as_) = target, source
        f, slope, curvature = pair_weights(profile, pairs.squared_distances(expanded, t, s))
        work = pairs.work(expanded, at, as_, t, s)
        w = -slope * (dot(at, qs.T) + dot(qt, as_.T)) - curvature * work
        dz = pairs.differences_sum(expanded, w, t, s)
        return dz + at * jnp.sum(slope, axis=1)[:, None] - dot(slope, as_), dot(f, as_)

    def tile(target, source):
        return pairs.within_reach((target[1], source[1]), sums, target, source)

    return _over_wide_tiles(tile, targets, sources)


def _wide_pairs(rate, targets, sources):
    """The distances of all pairs, and the rows (z, norm, place, charges, ..) of both sides."""
    size = targets[0].shape[0]
    pairs = WidePairs(jnp.concatenate([targets[0], sources[0]]), rate)
    # A target that is among the sources carries the place that it has there, and so leaves itself out.
    place = targets[-1] - sources[-1][0]
    among = (place >= 0) & (place < sources[0].shape[0])
    here = jnp.arange(size, dtype=jnp.int32)
    there = size + jnp.arange(sources[0].shape[0], dtype=jnp.int32)
    targets = (
        pairs.z[:size],
        pairs.norm[:size],
        jnp.where(among, size + place, here),
        *targets[1:-1],
    )
    return pairs, targets, (pairs.z[size:], pairs.norm[size:], there, *sources[1:-1])


def _over_wide_tiles(tile, targets, sources):
    rows, columns = tile_sizes(targets[0].shape[1])

    def sum_at(target):
        return map_sum(
            lambda source: tile(target, source), sources, chunk_size=columns, checkpoint=True
        )

    return map_concat(sum_at, targets, chunk_size=rows, checkpoint=True)

"""Sums over listed pairs of blocks of particles, and over pairs of a block and far nodes.

The sum at target i is

    y_i = sum_j f q_j + slope m_j (z_i - z_j),        (f, slope) = kernel.weights(|z_i - z_j|^2)

over the sources j of the listed blocks; a particle's pair with itself is left out, since it is known
in closed form. Tiles are evaluated chunk by chunk and evaluated again in the backward pass: nothing is
kept per pair. Arrays are (blocks, rows, slots) and tiles (sources, targets).
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels import RadialKernel
from kernels._tiles import dot, dot_across
from kernels._weights import pair_weights
from svgd._sums.blocks import take_rows

# Bytes of tiles that one chunk keeps live, and up to how many bytes a chunk has at least _LEAST_PAIRS.
# Milliseconds on two CPU cores, n = 10,000, d = 3, theta 0.5, forward plus value with gradient, by
# slots of a block and pairs of blocks in a chunk (* is the default):
#     float64   32   8 1250   16* 1050   32 1250   64 1170      float32   32   16 690   32* 640   128 680
#               64   2 1250    4*  970    8 1180   16 1090                64    4 660    8* 530    16 670
#              128   1 2690    2  1000    4* 820    8 1000               128    2 800    4* 570     8 460
#              512   1 1730    2   650    4* 530                         512    1 1550   2  480     4* 350
# That of a GPU is assumed, not measured.
_CHUNK_BYTES = {"cpu": 2**19, "gpu": 2**28}
_LEAST_PAIRS, _LEAST_PAIRS_BYTES = 4, 2**27


class Points(eqx.Module):
    """Blocks of points that act on each other.

    Attributes:
        z: scaled coordinates, (blocks, d, slots).
        q: scaled scores, 0 in padding, (blocks, d, slots).
        m: 1 for a particle, 0 in padding, the particle count for a far node, (blocks, slots).
    """

    z: Float[Array, "blocks d slots"]
    q: Float[Array, "blocks d slots"]
    m: Float[Array, "blocks slots"]


def default_chunk(slots: int, itemsize: int, platform: str) -> int:
    """Pairs of blocks in one chunk: about four live tiles each, within the cap in bytes."""
    cap = _CHUNK_BYTES.get(platform, _CHUNK_BYTES["cpu"])
    pair = 4 * slots * slots * itemsize
    return max(1, cap // pair, min(_LEAST_PAIRS, _LEAST_PAIRS_BYTES // pair))


# ---------------------------------------------------------------------------- one tile


def _tile(profile, zt, zs, same):
    """Centred coordinates of both sides and (f, slope, curvature) of a tile (sources, targets)."""
    # Differences come first: a common offset of all particles costs no digits. Slots are sorted, and
    # products of coordinates lose least about one in their middle.
    middle = zt.shape[1] // 2
    centre = zt[:, middle : middle + 1]
    zt, zs = zt - centre, zs - centre
    r2 = sum((zs[k][:, None] - zt[k][None, :]) ** 2 for k in range(zt.shape[0]))
    own = same & jnp.eye(zs.shape[1], zt.shape[1], dtype=bool)
    return zt, zs, pair_weights(profile, jnp.where(own, jnp.inf, r2))


def _gather(product, zt, zs, qs, ms, f, slope):
    """The sum at the targets: (d, t). `product` is `dot`, or `dot_across` at a tile's sources."""
    pull = ms[None] * zs
    if slope is f:
        sums = product(jnp.concatenate([qs - pull, ms[None]]), f)
        return sums[:-1] + zt * sums[-1:]
    sums = product(jnp.concatenate([pull, ms[None]]), slope)
    return product(qs, f) - sums[:-1] + zt * sums[-1:]


def _tile_forward(profile, t, s, same):
    zt, zs, (f, slope, _) = _tile(profile, t.z, s.z, same)
    return _gather(dot, zt, zs, s.q, s.m, f, slope)


def _tile_both(profile, t, s, same):
    """The sums at both sides from one evaluation of the profile; none at the sources of `same`."""
    zt, zs, (f, slope, _) = _tile(profile, t.z, s.z, same)
    here = _gather(dot, zt, zs, s.q, s.m, f, slope)
    there = _gather(dot_across, zs, zt, t.q, t.m, f, slope)
    return here, jnp.where(same, 0, there)


def _cotangent_weights(profile, t, at, s, as_, same):
    zt, zs, (f, slope, curvature) = _tile(profile, t.z, s.z, same)
    axes = range(zt.shape[0])
    exchange = sum(
        s.q[k][:, None] * at[k][None, :] + as_[k][:, None] * t.q[k][None, :] for k in axes
    )
    work = sum(
        (s.m[:, None] * at[k][None, :] - as_[k][:, None] * t.m[None, :])
        * (zt[k][None, :] - zs[k][:, None])
        for k in axes
    )
    w = -slope * exchange - curvature * work
    return zt, zs, f, slope, w


def _spread(product, zt, zs, at, mt, as_, ms, f, slope, w):
    """Cotangents of z and q at one side, from that side's weights."""
    ones = jnp.ones((1, zs.shape[1]), zs.dtype)
    moved = product(jnp.concatenate([zs, ones]), w)
    dz = zt * moved[-1:] - moved[:-1]
    if slope is f:
        sums = product(jnp.concatenate([as_, ms[None]]), f)
        pulled, dq = sums, sums[:-1]
    else:
        pulled, dq = product(jnp.concatenate([as_, ms[None]]), slope), product(as_, f)
    dz = dz + at * pulled[-1:] - mt[None] * pulled[:-1]
    return dz, dq


def _tile_backward(profile, t, at, s, as_, same):
    zt, zs, f, slope, w = _cotangent_weights(profile, t, at, s, as_, same)
    here = _spread(dot, zt, zs, at, t.m, as_, s.m, f, slope, w)
    there = _spread(dot_across, zs, zt, as_, s.m, at, t.m, f, slope, w)
    return here, jax.tree.map(lambda part: jnp.where(same, 0, part), there)


# ------------------------------------------------------------------- near: blocks of particles


def _in_chunks(step, start, index_lists, chunk, spare):
    """Runs `step(carry, chunk of each list)` over index lists, padded with the spare block."""
    count = index_lists[0].shape[0]
    chunk = max(1, min(chunk, count))
    whole = -(-count // chunk)
    padding = whole * chunk - count
    lists = [
        jnp.pad(jnp.asarray(rows), (0, padding), constant_values=spare).reshape(whole, chunk)
        for rows in index_lists
    ]
    return lax.scan(lambda carry, rows: (step(carry, rows), None), start, lists)[0]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def near_sum(
    profile: RadialKernel, chunk: int, points: Points, first, second
) -> Float[Array, "blocks d slots"]:
    """The sums over listed pairs of blocks, without each particle's own term.

    Args:
        profile: the kernel's `profile`.
        chunk: pairs of blocks evaluated at a time.
        points: all blocks; the last one must be empty.
        first, second: blocks of each unordered pair, (pairs,).

    Each pair is evaluated once for both of its sides. Once for each side, which needs one scatter less,
    took as long or up to 2.1 times as long (two CPU cores, blocks of 8 to 64, d = 1 to 8, forward and
    with gradients), but for blocks of 8 in one dimension: 22 ms beside 26 at n = 50,000, where blocks
    of 16 take 8.7.

    Cost: 0.55 ns (float32, two CPU cores, d = 3) for each directed pair of slots; memory of one chunk.
    """
    tile = jax.vmap(partial(_tile_both, profile))

    def step(total, rows):
        a, b = rows
        here, there = tile(_at(points, a), _at(points, b), a == b)
        return total.at[a].add(here).at[b].add(there)

    spare = points.m.shape[0] - 1
    return _in_chunks(step, jnp.zeros_like(points.z), (first, second), chunk, spare)


def _at(points, index):
    return jax.tree.map(lambda leaf: take_rows(leaf, index), points)


def _near_forward(profile, chunk, points, first, second):
    out = near_sum(profile, chunk, points, first, second)
    return out, (profile, points, first, second)


def _near_backward(chunk, residuals, cotangent):
    profile, points, first, second = residuals
    tile = jax.vmap(partial(_tile_backward, profile))

    def step(total, rows):
        a, b = rows
        out = tile(
            _at(points, a), take_rows(cotangent, a), _at(points, b), take_rows(cotangent, b), a == b
        )
        for index, part in zip((a, b), out, strict=True):
            total = jax.tree.map(lambda t, p, i=index: t.at[i].add(p), total, part)
        return total

    start = (jnp.zeros_like(points.z), jnp.zeros_like(points.q))
    spare = points.m.shape[0] - 1
    dz, dq = _in_chunks(step, start, (first, second), chunk, spare)
    d_profile = profile
    if jax.tree.leaves(profile):

        def shape_step(total, rows):
            a, b = rows
            ends = (_at(points, a), _at(points, b), a == b)
            arriving = (take_rows(cotangent, a), take_rows(cotangent, b))
            tile = lambda profile: jax.vmap(partial(_tile_both, profile))(*ends)  # noqa: E731
            (part,) = jax.vjp(tile, profile)[1](arriving)
            return jax.tree.map(jnp.add, total, part)

        start = jax.tree.map(jnp.zeros_like, profile)
        d_profile = _in_chunks(shape_step, start, (first, second), chunk, spare)
    return d_profile, Points(dz, dq, jnp.zeros_like(points.m)), None, None


near_sum.defvjp(_near_forward, _near_backward)


# ------------------------------------------------------------------- far: blocks against nodes


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def far_sum(
    profile: RadialKernel, chunk: int, points: Points, nodes: Points, block, group
) -> Float[Array, "blocks d slots"]:
    """The sums at particles over far nodes, each a point at its centre with its count and score.

    Args:
        profile: the kernel's `profile`.
        chunk: entries evaluated at a time.
        points: the targets; the last block must be empty.
        nodes: all nodes as one block, (1, d, nodes); the last must be empty.
        block: target block of each entry, (entries,).
        group: nodes of each entry, (entries, nodes of an entry), padded with the last node.
    """
    tile = jax.vmap(partial(_tile_forward, profile))

    def step(total, rows):
        a, g = rows[0], jnp.stack(rows[1:], 1)
        out = tile(_at(points, a), _nodes_at(nodes, g), jnp.zeros(a.shape, bool))
        return total.at[a].add(out)

    lists = (block, *jnp.moveaxis(jnp.asarray(group), 1, 0))
    return _far_chunks(step, jnp.zeros_like(points.z), lists, chunk, points, nodes)


def _far_chunks(step, start, lists, chunk, points, nodes):
    count = lists[0].shape[0]
    padding = -count % max(1, min(chunk, count))
    spare_block, spare_node = points.m.shape[0] - 1, nodes.m.shape[1] - 1
    padded = [jnp.pad(jnp.asarray(lists[0]), (0, padding), constant_values=spare_block)]
    padded += [jnp.pad(rows, (0, padding), constant_values=spare_node) for rows in lists[1:]]
    return _in_chunks(step, start, padded, chunk, spare_block)


def _nodes_at(nodes, group):
    z = jnp.moveaxis(take_rows(nodes.z[0].T, group), 2, 1)
    q = jnp.moveaxis(take_rows(nodes.q[0].T, group), 2, 1)
    return Points(z, q, take_rows(nodes.m[0], group))


def _far_forward(profile, chunk, points, nodes, block, group):
    out = far_sum(profile, chunk, points, nodes, block, group)
    return out, (profile, points, nodes, block, group)


def _far_backward(chunk, residuals, cotangent):
    profile, points, nodes, block, group = residuals

    def one(t, at, s):
        forward = partial(_tile_forward, same=jnp.array(False))
        return jax.vjp(forward, profile, t, s)[1](at)

    tile = jax.vmap(one)

    def step(total, rows):
        a, g = rows[0], jnp.stack(rows[1:], 1)
        d_profile, dt, ds = tile(_at(points, a), take_rows(cotangent, a), _nodes_at(nodes, g))
        dz, node_z, node_q, shape = total
        dz = dz.at[a].add(dt.z)
        node_z = node_z.at[g.reshape(-1)].add(jnp.swapaxes(ds.z, 1, 2).reshape(-1, dz.shape[1]))
        node_q = node_q.at[g.reshape(-1)].add(jnp.swapaxes(ds.q, 1, 2).reshape(-1, dz.shape[1]))
        shape = jax.tree.map(lambda t, p: t + jnp.sum(p, axis=0), shape, d_profile)
        return dz, node_z, node_q, shape

    lists = (block, *jnp.moveaxis(jnp.asarray(group), 1, 0))
    start = (jnp.zeros_like(points.z), jnp.zeros_like(nodes.z[0].T), jnp.zeros_like(nodes.q[0].T))
    start = (*start, jax.tree.map(jnp.zeros_like, profile))
    dz, node_z, node_q, d_profile = _far_chunks(step, start, lists, chunk, points, nodes)
    d_points = Points(dz, jnp.zeros_like(points.q), jnp.zeros_like(points.m))
    d_nodes = Points(node_z.T[None], node_q.T[None], jnp.zeros_like(nodes.m))
    return d_profile, d_points, d_nodes, None, None


far_sum.defvjp(_far_forward, _far_backward)

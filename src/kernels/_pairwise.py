"""Sums over all pairs of particles in bounded memory, with closed-form derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from kernels._circle import Circle
from kernels._profiles import RadialKernel
from kernels._tiles import (
    MAX_UNROLLED,
    Block,
    as_rows,
    backward_both,
    backward_tile,
    forward_both,
    forward_tile,
)
from kernels._weights import Profile, shape_cotangent
from kernels._wide import wide_cotangents, wide_shape_cotangent, wide_sum
from memory import checked_floats, checked_integer, map_concat, map_sum

# Targets and sources of one tile. Up to MAX_UNROLLED dimensions tiles are square, and of the pairs of
# all particles with all each is evaluated once for both sides; nanoseconds a pair, d = 3, n = 10,000,
# two CPU cores, forward and value with gradient:
#     float32   344: 0.44  1.14     384: 0.43  1.21     512: 0.52  1.32     720: 0.47  1.27
#     float64   344: 0.67  1.83     384: 0.66  1.96     512: 0.77  2.17     720: 0.73  2.13
# (A power of two puts the rows of a tile where they evict each other. The gradient reads two tiles at
# once, which 2 MiB of level 2 cache hold up to 360 particles in float64.)
# Above, matrix products are the cost, and long rows of sources suit them: d = 1000, n = 4096,
# forward, 512 x 4096  0.25 s, 1024 x 1024  0.27 s. The sizes for accelerators are not measured.
DEFAULT_TILES = {
    "cpu": ((344, 344), (512, 4096)),
    "accelerator": ((4096, 4096), (4096, 4096)),
}

# Up to so many particles in few dimensions one tile holds all pairs: milliseconds, d = 3, float32, two
# CPU cores, forward and value with gradient, in one tile and in tiles of 384:
#     n = 1000  1.2  1.6 (2.2  4.8)     n = 2000  2.3  5.8 (3.4  8.2)     n = 2500  10.4  19.8 (4.9  11.9)
ONE_TILE = 2048

# Particles of a block in the backward pass above MAX_UNROLLED dimensions.
WIDE_BLOCK = 512


def kernel_sum(
    kernel: RadialKernel,
    particles: ArrayLike,
    charges: ArrayLike,
    *,
    targets: ArrayLike | None = None,
    tile: tuple[int, int] | None = None,
) -> Float[Array, "n_or_m c"]:
    """y_i = sum_j k(x_i, x_j) q_j over all pairs, tile by tile.

    Without `targets` the sum is over the particles themselves and has a closed-form custom VJP
    (reverse mode, to any order; forward mode raises). A particle's own term is f(0) q_i exactly.
    With `targets` it is differentiated by recomputing tiles, in either mode.

    Args:
        kernel: a radial kernel; differentiable in its bandwidth or metric.
        particles: (n, d).
        charges: (n, c), in the dtype of the particles.
        targets: (m, d), where to evaluate the sum; the particles when None.
        tile: static (targets, sources) of one tile; the default is measured per backend. Without
            `targets`, in up to 8 dimensions, tiles are square, and the number of targets counts.

    Returns:
        (n, c), or (m, c) with targets.

    Raises:
        ValueError: on shapes that do not match.

    Cost:
        O(n m (d + c)) operations; memory of the inputs, the output and a few tiles.
    """
    particles, charges = checked_floats("particles", particles), checked_floats("charges", charges)
    _check_rows("charges", charges, particles)
    if targets is None:
        sizes = tile_sizes(particles.shape[1], tile, count=particles.shape[0])
        return charges + _sum_over_others(kernel, False, sizes, particles, charges)
    sizes = tile_sizes(particles.shape[1], tile)
    targets = checked_floats("targets", targets, ("m", particles.shape[1]))
    return _sum_over_targets(kernel, sizes, particles, charges, targets)


def stein_sum(
    kernel: RadialKernel,
    particles: ArrayLike,
    scores: ArrayLike,
    *,
    tile: tuple[int, int] | None = None,
) -> Float[Array, "n d"]:
    """n times the Stein update: sum_j [ k(x_j, x_i) s_j + grad_{x_j} k(x_j, x_i) ].

    In scaled coordinates z = x L with scores s L^-T it is sum_j f s_j - 2 f' (z_i - z_j), and one
    tile evaluates both terms from one profile. A particle's own term is its score, exactly. The
    custom VJP (reverse mode, to any order; forward mode raises) is another sum over tiles:

        ds_i = sum_j f a_j
        dz_i = sum_j { 2 f' (a_i.s_j + a_j.s_i) - 4 f'' (a_i - a_j).(z_i - z_j) } (z_i - z_j)
                     - 2 f' (a_i - a_j)

    Args:
        kernel: a radial kernel; differentiable in its bandwidth or metric.
        particles: (n, d).
        scores: (n, d), gradients of the log-density at the particles, in their dtype.
        tile: static (targets, sources) of one tile; the default is measured per backend. In up to 8
            dimensions tiles are square, and the number of targets counts.

    Returns:
        (n, d), in the dtype of the particles.

    Raises:
        ValueError: on shapes that do not match.

    Cost:
        O(n^2 d) operations, the backward pass about twice the forward; memory of the inputs, the
        output and a few tiles.

    Source:
        Liu and Wang, Stein variational gradient descent, 2016, equation 8.
    """
    particles, scores = checked_floats("particles", particles), checked_floats("scores", scores)
    if scores.shape != particles.shape:
        raise ValueError(
            f"scores must have the shape of the particles {particles.shape}, got {scores.shape}"
        )
    _check_rows("scores", scores, particles)
    scaled = kernel.scale_gradient(scores)
    sizes = tile_sizes(particles.shape[1], tile, count=particles.shape[0])
    # A particle's own score stays unscaled: scaled and back, it would leave rounding in the kernel's
    # gradient, which is all there is where the particles hardly see each other.
    others = _sum_over_others(kernel, True, sizes, particles, scaled)
    return scores + kernel.unscale_gradient(others)


def tile_sizes(
    dimension: int, tile: tuple[int, int] | None = None, count: int | None = None
) -> tuple[int, int]:
    """The (targets, sources) of a tile: as given, or the default of the backend.

    With `count`, for sums of so many particles over themselves.
    """
    if tile is not None:
        if not isinstance(tile, tuple | list) or len(tile) != 2:
            raise ValueError(f"tile must be two positive sizes (targets, sources), got {tile!r}")
        return checked_integer("tile[0]", tile[0], 1), checked_integer("tile[1]", tile[1], 1)
    narrow, wide = DEFAULT_TILES["cpu" if jax.default_backend() == "cpu" else "accelerator"]
    if dimension > MAX_UNROLLED:
        return wide
    return (count, count) if count is not None and count <= ONE_TILE else narrow


# Compiled here too, or a call outside of jit would trace and compile its loops every time.
@partial(jax.jit, static_argnums=(1, 2))
def _sum_over_others(kernel, repel, sizes, particles, charges):
    x, rate = _coordinates(kernel, particles)
    return _others_sum(kernel.profile, repel, sizes, x, rate, charges)


@partial(jax.jit, static_argnums=(1,))
def _sum_over_targets(kernel, sizes, particles, charges, targets):
    x, rate = _coordinates(kernel, particles)
    y, _ = _coordinates(kernel, targets, origin=particles)

    if x.shape[1] > MAX_UNROLLED:
        return wide_sum(kernel.profile, False, sizes, x, rate, charges, targets=y)

    def sum_at(rows):
        # Sources carry places 0, 1, ...; a target carries one that none of them has.
        nowhere = jnp.full(rows.shape[:1], particles.shape[0], jnp.int32)
        none = jnp.zeros((charges.shape[1], rows.shape[0]), rows.dtype)
        block = Block(as_rows(rows), none, None, nowhere)

        def from_sources(rows):
            sources = Block(as_rows(rows[0]), as_rows(rows[1]), None, rows[2])
            return forward_tile(kernel.profile, False, block, sources, rate)

        rows = (x, charges, _places(x))
        return map_sum(from_sources, rows, chunk_size=sizes[1], checkpoint=True).T

    return map_concat(sum_at, y, chunk_size=sizes[0], checkpoint=True)


def _coordinates(kernel, points, origin=None):
    """Coordinates x and rates such that z = x * rate, with as little rounding as can be had.

    With a bandwidth the points stay as they are: their differences are taken before they are
    scaled. A metric mixes the axes, so the points are centred first, on the particle nearest their
    mean: a point of the bulk, exactly representable, whatever the outliers.
    """
    if kernel.metric is None:
        return points, kernel.rates(points.shape[1], points.dtype)
    origin = lax.stop_gradient(points if origin is None else origin)
    distance = jnp.sum((origin - jnp.mean(origin, axis=0, keepdims=True)) ** 2, axis=1)
    centre = origin[jnp.argmin(distance)]
    return kernel.scale(points - centre[None, :]), jnp.ones(points.shape[1], points.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _others_sum(profile: Profile, repel: bool, sizes: tuple[int, int], x, rate, charges):
    """y_i = sum_{j != i} f q_j + [repel] (-2 f') (z_i - z_j), z = x * rate."""
    if x.shape[1] > MAX_UNROLLED:
        return wide_sum(profile, repel, sizes, x, rate, charges)
    tiles = _on_blocks(profile, repel, rate, x.shape[0], forward_tile, forward_both)
    return Circle(x.shape[0], sizes[0], axis=-1).sum((x.T, charges.T, None), *tiles).T


def _on_blocks(profile, repel, rate, count, tile, both):
    """The functions of one tile, as `Circle` calls them."""

    def block(rows):
        x, q, a, places = rows
        return Block(x, q, a, places, (places < count).astype(x.dtype))

    def own(here):
        return tile(profile, repel, block(here), block(here), rate)

    def pair(here, there):
        return both(profile, repel, block(here), block(there), rate)

    return own, pair


def _others_sum_forward(profile, repel, sizes, x, rate, charges):
    return _others_sum(profile, repel, sizes, x, rate, charges), (profile, x, rate, charges)


def _others_sum_backward(repel, sizes, residuals, a):
    profile, x, rate, charges = residuals
    if x.shape[1] > MAX_UNROLLED:
        dz, dq = wide_cotangents(profile, repel, WIDE_BLOCK, x, rate, charges, a)
        d_profile = wide_shape_cotangent(profile, repel, sizes, x, rate, charges, a)
    else:
        tiles = _on_blocks(profile, repel, rate, x.shape[0], backward_tile, backward_both)
        rows = (x.T, charges.T, a.T)
        dz, dq = jax.tree.map(
            jnp.transpose, Circle(x.shape[0], sizes[0], axis=-1).sum(rows, *tiles)
        )
        rows = (x, charges, a, _places(x))
        loss = partial(tile_loss, repel, rate)
        d_profile = shape_cotangent(profile, loss, rows, rows, sizes)
    # z = x * rate; the dz sum to zero, so any centre serves, and one in the bulk keeps digits.
    offset = x - x[:1]
    return d_profile, dz * rate[None, :], jnp.sum(dz * offset, axis=0), dq


def tile_loss(repel, rate, profile, targets, sources):
    """The sums at targets (x, charges, cotangents, places) over such sources, under their cotangents."""
    here, there = (
        Block(as_rows(x), as_rows(q), None, place) for x, q, _, place in (targets, sources)
    )
    return jnp.sum(targets[2].T * forward_tile(profile, repel, here, there, rate))


_others_sum.defvjp(_others_sum_forward, _others_sum_backward)


def _places(x) -> Array:
    return jnp.arange(x.shape[0], dtype=jnp.int32)


def _check_rows(name: str, value: Array, particles: Array) -> None:
    if particles.ndim != 2 or particles.shape[0] == 0:
        raise ValueError(
            f"particles must have shape (n, d) with n >= 1, got {particles.shape}; one particle "
            "is particles[None, :], one dimension particles[:, None]"
        )
    if value.ndim != 2 or value.shape[0] != particles.shape[0]:
        raise ValueError(
            f"{name} must have one row for each of the {particles.shape[0]} particles, got shape "
            f"{value.shape}"
        )
    if value.dtype != particles.dtype:
        raise ValueError(
            f"{name} have dtype {value.dtype} but the particles {particles.dtype}: cast one of them"
        )

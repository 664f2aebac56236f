"""Sums over all pairs of particles in bounded memory, with closed-form derivatives."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from kernels._profiles import RadialKernel
from kernels._tiles import MAX_UNROLLED, Block, as_rows, backward_tile, forward_tile
from kernels._wide import wide_cotangents, wide_sum
from memory import map_concat, map_sum

# Targets and sources of one tile. Nanoseconds a pair, d = 3, float32, two CPU cores, forward and value
# with gradient:
#     512 x 512   0.44  1.33      1024 x 256  0.45  1.32      512 x 256  0.50  1.51
#     256 x 512   0.53  1.52      256 x 256   0.55  1.52
# Above MAX_UNROLLED dimensions matrix products are the cost, and long rows of sources suit them:
# d = 1000, n = 4096, forward, 512 x 4096  0.25 s, 1024 x 1024  0.27 s.
# The sizes for accelerators are not measured.
DEFAULT_TILES = {
    "cpu": ((512, 512), (512, 4096)),
    "accelerator": ((4096, 4096), (4096, 4096)),
}

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
        tile: static (targets, sources) of one tile; the default is measured per backend.

    Returns:
        (n, c), or (m, c) with targets.

    Raises:
        ValueError: on shapes that do not match.

    Cost:
        O(n m (d + c)) operations; memory of the inputs, the output and a few tiles.
    """
    particles, charges = jnp.asarray(particles), jnp.asarray(charges)
    _check_rows("charges", charges, particles)
    sizes = tile_sizes(particles.shape[1], tile)
    if targets is None:
        return _sum_over_self(kernel, False, sizes, particles, charges)
    targets = jnp.asarray(targets)
    if targets.ndim != 2 or targets.shape[1] != particles.shape[1]:
        raise ValueError(
            f"targets must have shape (m, {particles.shape[1]}) like particles of shape "
            f"{particles.shape}, got {targets.shape}"
        )
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
        tile: static (targets, sources) of one tile; the default is measured per backend.

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
    particles, scores = jnp.asarray(particles), jnp.asarray(scores)
    if scores.shape != particles.shape:
        raise ValueError(
            f"scores must have the shape of the particles {particles.shape}, got {scores.shape}"
        )
    _check_rows("scores", scores, particles)
    scaled = kernel.scale_gradient(scores)
    sizes = tile_sizes(particles.shape[1], tile)
    return kernel.unscale_gradient(_sum_over_self(kernel, True, sizes, particles, scaled))


def tile_sizes(dimension: int, tile: tuple[int, int] | None = None) -> tuple[int, int]:
    """The (targets, sources) of a tile: as given, or the default of the backend."""
    if tile is not None:
        if len(tile) != 2 or any(int(size) < 1 for size in tile):
            raise ValueError(f"tile must be two positive sizes (targets, sources), got {tile}")
        return int(tile[0]), int(tile[1])
    narrow, wide = DEFAULT_TILES["cpu" if jax.default_backend() == "cpu" else "accelerator"]
    return narrow if dimension <= MAX_UNROLLED else wide


# Compiled here too, or a call outside of jit would trace and compile its loops every time.
@partial(jax.jit, static_argnums=(1, 2))
def _sum_over_self(kernel, repel, sizes, particles, charges):
    x, rate = _coordinates(kernel, particles)
    return _self_sum(type(kernel).weights, repel, sizes, x, rate, charges)


@partial(jax.jit, static_argnums=(1,))
def _sum_over_targets(kernel, sizes, particles, charges, targets):
    x, rate = _coordinates(kernel, particles)
    y, _ = _coordinates(kernel, targets, origin=particles)

    if x.shape[1] > MAX_UNROLLED:
        return wide_sum(type(kernel).weights, False, sizes, x, rate, charges, targets=y)

    def sum_at(rows):
        # Sources carry places 0, 1, ...; a target carries one that none of them has.
        nowhere = jnp.full(rows.shape[:1], particles.shape[0], jnp.int32)
        none = jnp.zeros((charges.shape[1], rows.shape[0]), rows.dtype)
        block = Block(as_rows(rows), none, None, nowhere)

        def from_sources(rows):
            sources = Block(as_rows(rows[0]), as_rows(rows[1]), None, rows[2])
            return forward_tile(type(kernel).weights, False, block, sources, rate)

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


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _self_sum(weights: Callable, repel: bool, sizes: tuple[int, int], x, rate, charges):
    """y_i = sum_j f q_j + [repel] (-2 f') (z_i - z_j) over all particles, z = x * rate."""
    # The tiles leave out every particle's pair with itself; its part is f(0) q_i = q_i.
    if x.shape[1] > MAX_UNROLLED:
        return charges + wide_sum(weights, repel, sizes, x, rate, charges)

    def sum_at(rows):
        targets = _block(rows)

        def from_sources(rows):
            return forward_tile(weights, repel, targets, _block(rows), rate)

        return map_sum(from_sources, everything, chunk_size=sizes[1], checkpoint=True).T

    everything = (x, charges, None, _places(x))
    return charges + map_concat(sum_at, everything, chunk_size=sizes[0], checkpoint=True)


def _self_sum_forward(weights, repel, sizes, x, rate, charges):
    return _self_sum(weights, repel, sizes, x, rate, charges), (x, rate, charges)


def _self_sum_backward(weights, repel, sizes, residuals, a):
    x, rate, charges = residuals
    if x.shape[1] > MAX_UNROLLED:
        dz, dq = wide_cotangents(weights, repel, WIDE_BLOCK, x, rate, charges, a)
    else:
        everything = (x, charges, a, _places(x))

        def sum_at(rows):
            targets = _block(rows)

            def from_sources(rows):
                return backward_tile(weights, repel, targets, _block(rows), rate)

            sums = map_sum(from_sources, everything, chunk_size=sizes[1], checkpoint=True)
            return jax.tree.map(jnp.transpose, sums)

        dz, dq = map_concat(sum_at, everything, chunk_size=sizes[0], checkpoint=True)
    # z = x * rate; the dz sum to zero, so any centre serves, and one in the bulk keeps digits.
    offset = x - x[:1]
    return dz * rate[None, :], jnp.sum(dz * offset, axis=0), dq + a


_self_sum.defvjp(_self_sum_forward, _self_sum_backward)


def _block(rows) -> Block:
    x, q, a, places = rows
    return Block(as_rows(x), as_rows(q), None if a is None else as_rows(a), as_rows(places))


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

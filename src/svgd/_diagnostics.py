"""How far particles are from a distribution: kernel Stein discrepancy, maximum mean discrepancy."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

import kernels
from memory import map_sum
from svgd._run.layout import lay_out_alike

# Elements of one (targets, sources, d) tile of differences.
_TILE_ELEMENTS = 1 << 18


def ksd(particles: PyTree, scores: PyTree, kernel: kernels.RadialKernel) -> Float[Array, ""]:
    """The kernel Stein discrepancy, the square root of the V-statistic of `ksd_squared`."""
    return jnp.sqrt(jnp.maximum(ksd_squared(particles, scores, kernel), 0))


def ksd_squared(
    particles: PyTree,
    scores: PyTree,
    kernel: kernels.RadialKernel,
    *,
    statistic: Literal["V", "U"] = "V",
) -> Float[Array, ""]:
    """The squared kernel Stein discrepancy of particles to the distribution of a score.

    The mean over pairs of

        u(x, y) = k s(x).s(y) + s(x).grad_y k + s(y).grad_x k + trace(grad_x grad_y k)

    (Liu, Lee and Jordan, 2016; Chwialkowski, Strathmann and Gretton, 2016). With a Gaussian kernel
    it may stay small for samples that do not converge in more than two dimensions; with the inverse
    multiquadric it does not (Gorham and Mackey, 2017).

    Args:
        particles: an array (n, d) or a pytree of arrays with leading axis n, as `SVGD.run` returns;
            its leaves are ravelled in order to d coordinates.
        scores: gradient of the log-density at each particle, in the form of the particles.
        kernel: `kernels.InverseMultiquadric` or `kernels.Gaussian`. A bandwidth for each dimension,
            or a metric, is of the ravelled coordinates.
        statistic: "V" takes all n^2 pairs, is not negative, and is biased by about E[u(x, x)] / n;
            "U" leaves the n equal pairs out, is unbiased, and may be negative.

    Returns:
        A scalar, differentiable (in reverse mode) in particles, scores and kernel parameters.

    Raises:
        ValueError: on shapes, structures or dtypes that do not match, no particles, values that are
            not finite where they are concrete, one particle under "U".

    Cost:
        O(n^2 d); memory of the inputs and a tile of 2^18 elements, forward and backward.
    """
    _, particles, scores = lay_out_alike(particles, scores, ("particles", "scores"))
    if scores.shape != particles.shape:
        raise ValueError(
            f"scores have shape {scores.shape} for particles of shape {particles.shape}: "
            "give one score per particle"
        )
    n, d = particles.shape
    _check_statistic(statistic, n)
    # Distances do not change, and smaller numbers cancel less.
    z = kernel.scale(particles - jnp.mean(particles, axis=0)[None, :])
    # v = M x with the metric M = L L^T, so that grad_x k = 2 f' (v_x - v_y).
    v = kernel.unscale_gradient(z)
    trace = jnp.sum(kernel.unscale_gradient(kernel.scale(jnp.eye(d, dtype=z.dtype))).diagonal())

    def tile(a, b):
        (za, va, sa), (zb, vb, sb) = a, b
        r2 = jnp.sum((za[:, None, :] - zb[None, :, :]) ** 2, axis=-1)
        dv = va[:, None, :] - vb[None, :, :]
        ds = sa[:, None, :] - sb[None, :, :]
        f, slope, curvature = kernel.derivatives(r2)
        products = jnp.matmul(sa, sb.T, precision=jax.lax.Precision.HIGHEST)
        crossed = jnp.sum(dv * ds, axis=-1)
        squared = jnp.sum(dv * dv, axis=-1)
        return jnp.sum(f * products - 2 * slope * (crossed + trace) - 4 * curvature * squared)

    total = _sum_over_pairs(tile, (z, v, scores), (z, v, scores), d)
    if statistic == "V":
        return total / (n * n)
    f, slope, _ = kernel.derivatives(jnp.zeros((), z.dtype))
    own = jnp.sum(f * jnp.sum(scores * scores, axis=1) - 2 * slope * trace)
    return (total - own) / (n * (n - 1))


def mmd_squared(
    x: PyTree,
    y: PyTree,
    kernel: kernels.RadialKernel,
    *,
    statistic: Literal["V", "U"] = "V",
) -> Float[Array, ""]:
    """The squared maximum mean discrepancy between two samples (Gretton et al., 2012).

        mean k(x, x') + mean k(y, y') - 2 mean k(x, y)

    Args:
        x: an array (n, d) or a pytree of arrays with leading axis n, as `SVGD.run` returns; its
            leaves are ravelled in order to d coordinates.
        y: m points in the same form.
        kernel: a radial kernel. A bandwidth for each dimension, or a metric, is of the ravelled
            coordinates.
        statistic: "V" takes all pairs and is not negative; "U" leaves a point's pair with itself
            out, is unbiased and may be negative.

    Returns:
        A scalar, differentiable in both samples and the kernel's parameters.

    Raises:
        ValueError: on samples that cannot be compared, too few, or not finite where their values are
            concrete.

    Cost:
        O((n + m)^2 d); memory of the inputs and a few tiles, forward and backward.
    """
    _, x, y = lay_out_alike(x, y, ("first sample's points", "second sample's points"))
    n, m = len(x), len(y)
    _check_statistic(statistic, min(n, m))
    center = jnp.mean(y, axis=0)[None, :]
    x, y = x - center, y - center
    ones_x, ones_y = jnp.ones((n, 1), x.dtype), jnp.ones((m, 1), x.dtype)
    within_x = jnp.sum(kernels.kernel_sum(kernel, x, ones_x))
    within_y = jnp.sum(kernels.kernel_sum(kernel, y, ones_y))
    across = jnp.sum(kernels.kernel_sum(kernel, y, ones_y, targets=x)) / (n * m)
    if statistic == "V":
        return within_x / (n * n) + within_y / (m * m) - 2 * across
    # f(0) = 1 is a point's pair with itself.
    return (within_x - n) / (n * (n - 1)) + (within_y - m) / (m * (m - 1)) - 2 * across


def _sum_over_pairs(tile, a, b, d: int) -> Array:
    """The sum of `tile` over all pairs of rows of a and b, one tile live at a time."""
    side = max(1, int((_TILE_ELEMENTS / d) ** 0.5))

    def row_of_tiles(rows):
        return map_sum(lambda columns: tile(rows, columns), b, chunk_size=side, checkpoint=True)

    return map_sum(row_of_tiles, a, chunk_size=side, checkpoint=True)


def _check_statistic(statistic: str, count: int) -> None:
    if statistic not in ("U", "V"):
        raise ValueError(f'statistic must be "U" or "V", got {statistic!r}')
    if statistic == "U" and count < 2:
        raise ValueError("a U-statistic needs at least two points, got one")

"""How wide the kernel is: a rule for whitened particles, the median heuristic, and learning it."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import kernels
from memory import map_concat
from svgd._diagnostics import mmd_squared
from svgd._run.layout import lay_out, lay_out_alike
from svgd._run.target import as_target

# Elements of one (rows, points, d) block of differences.
_BLOCK_ELEMENTS = 1 << 21


def whitened_bandwidth(num_particles: int, dimension: int) -> float:
    """The default bandwidth of a Gaussian kernel for particles of unit covariance.

    A finite set of particles underestimates the variance: a particle's own term pulls it towards the
    mode and pushes it nowhere. What counts against it is the kernel mass around a particle, for a
    standard normal target K = E k(x, y) = (1 + 2/h^2)^(-d/2): while d / (n K) is small, the variance
    comes out short by 0.3 to 0.7 of it. The rule sets d / (n K) to 0.5 %, that is, K = 200 d / n,
    bounded by

    * K <= 1/2: beyond that the loss hardly falls, and a wide kernel is slow to see shape;
    * h >= 1: with less, particles of a poor start lose touch with each other.

    Measured, standard normal target: bandwidth, and how much of the variance is lost.

          d     n   rule             h = 1            median
          1   250   1.00    0.3 %    1.00    0.3 %    0.31    1.5 %
          1  1000   1.00    0.1 %    1.00    0.1 %    0.27    0.5 %
          3   250   1.85    0.7 %    1.00    2.8 %    0.69    7.1 %
          3  1000   1.85    0.3 %    1.00    1.0 %    0.59    3.5 %
          6   250   2.77    1.4 %    1.00   21.2 %    1.01   21.3 %
          6  1000   2.77    0.5 %    1.00    9.7 %    0.90   13.0 %
         20  1000   5.28    2.4 %    1.00   63.8 %    1.69   30.4 %
         50  1000   8.43    1.9 %    1.00   85.9 %    2.69   38.4 %

    Args:
        num_particles: n.
        dimension: d.

    Returns:
        h, in standard deviations.
    """
    if num_particles < 1 or dimension < 1:
        raise ValueError(
            f"need at least one particle and one dimension, got {num_particles} and {dimension}"
        )
    mass = min(0.5, 200 * dimension / num_particles)
    return max(1.0, (2 / (mass ** (-2 / dimension) - 1)) ** 0.5)


def median_bandwidth(
    particles: PyTree, max_points: int = 1024, *, key: PRNGKeyArray | None = None
) -> Float[Array, ""]:
    """The median heuristic: h = median_(i<j) |x_i - x_j| / sqrt(2 log(n + 1)).

    The median of distances, not of their squares, over unordered pairs of distinct particles; with
    an even number of pairs the mean of the two middle ones. The divisor makes a particle's row of
    the Gaussian kernel exp(-r^2 / (2 h^2)) sum to about 1 (Liu and Wang, 2016, section 5). For the
    particles 0, 1, 3, 7 it is 3.5 / sqrt(2 log 5) = 1.951.

    In whitened coordinates and more than a few dimensions it is too small: see `whitened_bandwidth`.

    Args:
        particles: an array (n, d) or a pytree of arrays with leading axis n, as `SVGD.run` returns,
            whose leaves are ravelled.
        max_points: above this many particles, a random subset of this size stands for all in the
            median (n in the divisor stays what it is). At 1024 the median is within about 3 %.
        key: of the subset. None takes a fixed one.

    Returns:
        A positive scalar in the dtype of the particles. Where most particles coincide, so that the
        median is 0, the root mean square distance takes its place; where all do, or n = 1, 1.
        Constant under differentiation.

    Raises:
        ValueError: on another rank, no particles, non-finite values, or max_points < 2.

    Cost:
        min(n, max_points)^2 (d + a sort); a few megabytes and the distances.
    """
    if max_points < 2:
        raise ValueError(f"max_points must be at least 2, got {max_points}")
    _, particles = lay_out(particles)
    n = particles.shape[0]
    points = lax.stop_gradient(particles)
    if n > max_points:
        key = jax.random.key(0) if key is None else key
        points = points[jax.random.choice(key, n, (max_points,), replace=False)]
    return _median_of_distances(points) / np.sqrt(2 * np.log(n + 1)).astype(points.dtype).item()


@jax.jit
def _median_of_distances(points):
    m, d = points.shape
    if m == 1:
        # Undone by the divisor sqrt(2 log 2), so that the bandwidth is 1.
        return jnp.full((), np.sqrt(2 * np.log(2)), points.dtype)

    def squares(rows):
        return jnp.sum((rows[:, None, :] - points[None, :, :]) ** 2, axis=-1)

    rows = max(1, _BLOCK_ELEMENTS // (m * d))
    r2 = map_concat(squares, points, chunk_size=rows)[jnp.triu_indices(m, k=1)]
    median = jnp.median(jnp.sqrt(r2))
    mean = jnp.sqrt(jnp.mean(r2))
    one = jnp.ones((), points.dtype)
    return jnp.where(median > 0, median, jnp.where(mean > 0, mean, one))


class LearnedBandwidth(NamedTuple):
    """What `learn_bandwidth` found.

    Attributes:
        kernel: with the learned bandwidth.
        losses: squared MMD before each iteration.
    """

    kernel: kernels.RadialKernel
    losses: Float[Array, " iterations"]


def learn_bandwidth(
    log_density: Callable,
    particles: PyTree,
    samples: PyTree,
    *,
    kernel: kernels.RadialKernel | None = None,
    num_steps: int = 50,
    step_size: float = 0.3,
    num_iterations: int = 60,
    optimizer: optax.GradientTransformation | None = None,
) -> LearnedBandwidth:
    """Learns a kernel's bandwidth by back-propagation through a run of SVGD.

    The loss is the squared maximum mean discrepancy (V-statistic, Gaussian kernel with the median
    distance of the samples as bandwidth) between the samples and the particles after `num_steps`
    steps x <- x + step_size phi(x). Useful where the same kind of run is made many times, with a
    budget of steps that is known.

    Args:
        log_density: log-density or score of one particle, as in `SVGD.run`.
        particles: where each run starts, an array (n, d) or a pytree of arrays with leading axis n.
        samples: m held-out samples of the target in the same form.
        kernel: where to start; a Gaussian of `median_bandwidth(particles)` when None. All of its
            parameters are learned (scalar, one bandwidth per dimension, or a metric).
        num_steps: steps in a run.
        step_size: of a run, in units of phi.
        num_iterations: runs to make.
        optimizer: of the kernel's parameters; Adam at 0.1 when None.

    Returns:
        The learned kernel and the losses on the way.

    Cost:
        `num_iterations` times four runs of `num_steps`; memory of `num_steps` particle sets.
    """
    from svgd._update import SteinUpdate

    layout, points, samples = lay_out_alike(particles, samples, ("particles", "samples"))
    for name, value, least in (("num_steps", num_steps, 1), ("num_iterations", num_iterations, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    target = as_target(log_density, layout, points, None, batched=False)
    kernel = kernels.Gaussian(median_bandwidth(points)) if kernel is None else kernel
    optimizer = optax.adam(0.1) if optimizer is None else optimizer
    spread = median_bandwidth(samples) * np.sqrt(2 * np.log(len(samples) + 1)).item()
    judge = kernels.Gaussian(spread)

    def loss(kernel):
        update = SteinUpdate(kernel, method="exact")

        @jax.checkpoint
        def step(points, _):
            return points + step_size * update(points, target.score(points, None)), None

        final, _ = lax.scan(step, points, None, length=num_steps)
        return mmd_squared(final, samples, judge)

    @eqx.filter_jit
    def iterate(kernel, opt_state):
        value, gradient = eqx.filter_value_and_grad(loss)(kernel)
        # Optimisers mix their counters with floats, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            change, opt_state = optimizer.update(gradient, opt_state, kernel)
        return eqx.apply_updates(kernel, change), opt_state, value

    opt_state = optimizer.init(eqx.filter(kernel, eqx.is_inexact_array))
    losses = []
    for _ in range(num_iterations):
        kernel, opt_state, value = iterate(kernel, opt_state)
        losses.append(value)
    return LearnedBandwidth(kernel, jnp.stack(losses) if losses else jnp.zeros(0, points.dtype))

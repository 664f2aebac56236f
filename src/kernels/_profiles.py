"""Radial kernels with a trainable bandwidth, and the profiles of one scale."""

import abc
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from kernels._exponential import half_square_exp
from kernels._mixtures import power_rates, power_weights
from kernels._tiles import dot
from memory import checked_floats, working_dtype


class RadialKernel(eqx.Module):
    """A kernel k(x, y) = f(r^2) of the scaled distance r between two points, with f(0) = 1.

    The scaled coordinates are z = x L: L = 1/h for one bandwidth h, diag(1/h_1, ..., 1/h_d) for one
    per dimension, and the Cholesky factor of the metric M = L L^T, so that
    r^2 = (x - y)^T M (x - y), when a metric takes the bandwidth's place.

    The bandwidth is kept as its logarithm, so that an optimiser can move it freely and it stays
    positive. All arithmetic runs in the dtype of the points; the parameters are cast to it.

    Attributes:
        log_bandwidth: shape () or (d,), or None when a metric is given. Trainable.
        metric: shape (d, d), symmetric positive definite, or None. Trainable.
    """

    log_bandwidth: Float[Array, "..."] | None
    metric: Float[Array, "d d"] | None

    def __init__(
        self,
        bandwidth: ArrayLike | Sequence[float] | None = None,
        *,
        metric: ArrayLike | None = None,
    ):
        """
        Args:
            bandwidth: positive, shape () or (d,), in the units of the points. May be traced.
            metric: symmetric positive definite, shape (d, d), in inverse squared units.

        Raises:
            ValueError: if both or neither are given, on another shape, and, when the values are
                concrete, on a bandwidth that is not positive and finite or a metric that is not
                symmetric positive definite.
        """
        if (bandwidth is None) == (metric is None):
            given = "neither" if bandwidth is None else "both"
            raise ValueError(
                f"{type(self).__name__} takes either a bandwidth or a metric, got {given}"
            )
        if bandwidth is not None:
            self.log_bandwidth = jnp.log(_checked_bandwidth(bandwidth, type(self).__name__))
            self.metric = None
        else:
            self.log_bandwidth = None
            self.metric = _checked_metric(metric, type(self).__name__)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "weights" in cls.__dict__:
            # What is known of the parent's profile does not hold for another one.
            for name in ("quartering", "mixture", "mixture_weights", "cutoff"):
                if name not in cls.__dict__:
                    setattr(cls, name, RadialKernel.__dict__[name])

    @abc.abstractmethod
    def weights(self, r2: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
        """The profile and its derivatives in r^2, as pair sums use them: (f, -2 f', 4 f'').

        The first weighs scores, the second differences of points, the third appears in the
        derivative of the second. Where two of them are equal functions the same array is returned
        twice, and sums that use both share their work.

        It may read floating fields of the kernel, shape parameters: pair sums are differentiable in
        them. The bandwidth and the metric are not there to be read: they scale the points.
        """

    def quartering(
        self, r2: Float[Array, "*shape"], count: int
    ) -> list[tuple[Array, Array, Array]]:
        """The weights at r^2, 4 r^2, 16 r^2, ...: of `count` kernels, each half as wide as the last."""
        return [self.weights(4.0**k * r2) for k in range(count)]

    def mixture(self, tolerance: float, radius: float) -> tuple[float, ...] | None:
        """The rates a of Gaussians of which the profile is a positive sum, for sums over cells.

            |sum_i w_i exp(-a_i r^2 / 2) - f(r^2)| <= tolerance    for 0 <= r <= radius

        Eager: the kernel is concrete. A class that has its own `weights` and not its own `mixture`
        has none, whatever its parent has.

        Args:
            tolerance: bound on the error; 0 asks for a sum that is exact.
            radius: the largest scaled distance of two points.

        Returns:
            The rates, or None where there is no such sum, or none that is known: sums are then over
            all pairs, or over near ones and nodes.
        """
        return None

    def mixture_weights(self, rates: tuple[float, ...] | Float[Array, " g"]) -> Float[Array, " g"]:
        """The weights w of Gaussians of these rates, from `mixture`; they add up to 1.

        May be traced, and is differentiable in the shape parameters.
        """
        raise NotImplementedError(f"{type(self).__name__} has no mixture of Gaussians")

    def cutoff(self, tolerance: float) -> float:
        """The scaled distance beyond which f is below `tolerance`.

        Infinite where f falls so slowly that nothing is gained by dropping far pairs.
        """
        return math.inf

    @property
    def profile(self) -> "RadialKernel":
        """The kernel without bandwidth and metric: its `weights`, and shape parameters if any."""
        where = lambda kernel: (kernel.log_bandwidth, kernel.metric)  # noqa: E731
        return eqx.tree_at(where, self, (None, None), is_leaf=lambda leaf: leaf is None)

    def value(self, r2: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The profile f(r^2)."""
        return self.weights(r2)[0]

    def derivatives(self, r2: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
        """f, f' and f'', the derivatives taken in r^2."""
        f, slope, curvature = self.weights(r2)
        return f, -slope / 2, curvature / 4

    @property
    def bandwidth(self) -> Float[Array, "..."] | None:
        """The bandwidth, shape () or (d,), or None when a metric takes its place."""
        return None if self.log_bandwidth is None else jnp.exp(self.log_bandwidth)

    def rates(self, dimension: int, dtype) -> Float[Array, " d"]:
        """1/h for each dimension, in `dtype`; only for a kernel with a bandwidth."""
        if self.log_bandwidth is None:
            raise ValueError("a kernel with a metric has no rates; use scale()")
        shape = self.log_bandwidth.shape
        if shape not in ((), (dimension,)):
            raise ValueError(
                f"the bandwidth has shape {shape}, but the points have {dimension} dimensions: "
                f"give a scalar or shape ({dimension},)"
            )
        return jnp.broadcast_to(jnp.exp(-self.log_bandwidth).astype(dtype), (dimension,))

    def factor(self, dimension: int, dtype) -> Float[Array, "d d"]:
        """The Cholesky factor L of the metric, in `dtype`; only for a kernel with a metric."""
        if self.metric is None:
            raise ValueError("a kernel with a bandwidth has no factor; use scale()")
        if self.metric.shape != (dimension, dimension):
            raise ValueError(
                f"the metric has shape {self.metric.shape}, but the points have {dimension} "
                f"dimensions: give shape ({dimension}, {dimension})"
            )
        return jnp.linalg.cholesky(self.metric.astype(working_dtype(self.metric.dtype))).astype(
            dtype
        )

    def scale(self, points: Float[Array | np.ndarray, "n d"]) -> Float[Array, "n d"]:
        """Scaled coordinates z = x L, in which the kernel is a function of the plain distance."""
        points = checked_floats("points", points, ("n", "d"))
        if self.metric is None:
            return points * self.rates(points.shape[1], points.dtype)[None, :]
        return dot(points, self.factor(points.shape[1], points.dtype))

    def unscale_gradient(self, vectors: Float[Array | np.ndarray, "n d"]) -> Float[Array, "n d"]:
        """v L^T: a gradient or an update direction, from scaled coordinates to the points' own."""
        vectors = checked_floats("vectors", vectors, ("n", "d"))
        if self.metric is None:
            return vectors * self.rates(vectors.shape[1], vectors.dtype)[None, :]
        return dot(vectors, self.factor(vectors.shape[1], vectors.dtype).T)

    def scale_gradient(self, vectors: Float[Array | np.ndarray, "n d"]) -> Float[Array, "n d"]:
        """s L^-T: a score, from the points' own coordinates to scaled ones."""
        vectors = checked_floats("vectors", vectors, ("n", "d"))
        if self.metric is None:
            return vectors / self.rates(vectors.shape[1], vectors.dtype)[None, :]
        dtype = working_dtype(vectors.dtype)
        factor, columns = self.factor(vectors.shape[1], dtype), vectors.astype(dtype).T
        solved = jax.scipy.linalg.solve_triangular(factor, columns, lower=True)
        return solved.T.astype(vectors.dtype)

    def __call__(
        self, x: Float[Array | np.ndarray, "n d"], y: Float[Array | np.ndarray, "m d"]
    ) -> Float[Array, "n m"]:
        """The dense kernel matrix. Memory n m d: for checks and small sizes."""
        x = checked_floats("x", x, ("n", "d"))
        y = checked_floats("y", y, ("m", x.shape[1]))
        difference = x[:, None, :] - y[None, :, :]
        z = self.scale(difference.reshape(-1, x.shape[1])).reshape(difference.shape)
        return self.value(jnp.sum(z**2, axis=-1))


class Gaussian(RadialKernel):
    """k(x, y) = exp(-|x - y|^2 / (2 h^2))."""

    def weights(self, r2: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
        f = half_square_exp(r2)
        return f, f, f

    def quartering(
        self, r2: Float[Array, "*shape"], count: int
    ) -> list[tuple[Array, Array, Array]]:
        # Squared in one program, XLA would make an exponential of every square.
        values = [lax.optimization_barrier(half_square_exp(r2))]
        for _ in range(count - 1):
            square = values[-1] * values[-1]
            values.append(square * square)
        return [(f, f, f) for f in values]

    def mixture(self, tolerance: float, radius: float) -> tuple[float, ...]:
        return (1.0,)

    def mixture_weights(self, rates: tuple[float, ...] | Float[Array, " g"]) -> Float[Array, " g"]:
        # As a value, which compiles nothing.
        return jax.device_put(np.ones(1, jnp.result_type(float)))

    def cutoff(self, tolerance: float) -> float:
        return math.sqrt(2 * math.log(1 / tolerance))


class InverseMultiquadric(RadialKernel):
    """k(x, y) = (1 + |x - y|^2 / (2 h^2))^(-1/2).

    Its tails keep far particles in touch, and the kernel Stein discrepancy under it detects
    non-convergence, which the Gaussian's does not (Gorham and Mackey, Measuring sample quality with
    kernels, 2017). The factor 1/2 gives it the Gaussian's curvature at 0.
    """

    def weights(self, r2: Float[Array, "*shape"]) -> tuple[Array, Array, Array]:
        u = 1 / (1 + 0.5 * r2)
        f = jnp.sqrt(u)
        slope = 0.5 * u * f
        return f, slope, 1.5 * u * slope

    def mixture(self, tolerance: float, radius: float) -> tuple[float, ...] | None:
        return power_rates(0.5, 1.0, tolerance, radius)

    def mixture_weights(self, rates: tuple[float, ...] | Float[Array, " g"]) -> Float[Array, " g"]:
        return power_weights(rates, jnp.asarray(0.5), jnp.asarray(1.0))


def _checked_bandwidth(bandwidth: ArrayLike | Sequence[float], owner: str) -> Array:
    if isinstance(bandwidth, str):
        raise ValueError(
            f"the bandwidth of {owner} must be numbers, got {bandwidth!r}: rules are functions, as in "
            f"{owner}(svgd.median_bandwidth(particles))"
        )
    bandwidth = checked_floats(f"the bandwidth of {owner}", bandwidth)
    if bandwidth.ndim > 1:
        raise ValueError(
            f"the bandwidth of {owner} has shape {bandwidth.shape}: give a scalar, or one value "
            "per dimension with shape (d,); a matrix goes into metric="
        )
    if not isinstance(bandwidth, jax.core.Tracer):
        values = np.asarray(bandwidth)
        if not (np.all(np.isfinite(values)) and np.all(values > 0)):
            raise ValueError(
                f"the bandwidth of {owner} must be positive and finite, got {values.tolist()}"
            )
    return bandwidth


def _checked_metric(metric: ArrayLike | None, owner: str) -> Array:
    metric = checked_floats(f"the metric of {owner}", metric)
    if metric.ndim != 2 or metric.shape[0] != metric.shape[1]:
        raise ValueError(f"the metric of {owner} must have shape (d, d), got {metric.shape}")
    if not isinstance(metric, jax.core.Tracer):
        values = np.asarray(metric, np.float64)
        symmetric = np.allclose(values, values.T, rtol=1e-5, atol=1e-6 * np.abs(values).max())
        if not (np.all(np.isfinite(values)) and symmetric):
            raise ValueError(f"the metric of {owner} must be finite and symmetric, got {values}")
        smallest = np.linalg.eigvalsh(values).min()
        if smallest <= 0:
            raise ValueError(
                f"the metric of {owner} must be positive definite, its smallest eigenvalue is "
                f"{smallest:.3g}"
            )
    return metric

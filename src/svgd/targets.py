"""Distributions with a known density, score and exact sampler, to try samplers on."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from memory import checked_floats, working_dtype

__all__ = ["Banana", "GaussianMixture", "banana", "gaussian", "gaussian_mixture"]


class Distribution(eqx.Module):
    """A density on R^d; `log_density` and `score` take one point, shape (d,)."""

    @abc.abstractmethod
    def log_density(self, point: ArrayLike) -> Float[Array, ""]:
        """Normalised."""

    @abc.abstractmethod
    def score(self, point: ArrayLike) -> Float[Array, " d"]:
        """Gradient of the log-density."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "n d"]:
        """Independent draws."""


class GaussianMixture(Distribution):
    """sum_k weight_k N(mean_k, factor_k factor_k^T).

    Attributes:
        log_weights: (k,), normalised.
        means: (k, d).
        factors: (k, d, d), lower triangular.
    """

    log_weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    factors: Float[Array, "k d d"]

    def log_density(self, point: ArrayLike) -> Float[Array, ""]:
        return logsumexp(self._components(point)[0])

    def score(self, point: ArrayLike) -> Float[Array, " d"]:
        logs, scores = self._components(point)
        return jax.nn.softmax(logs) @ scores

    def sample(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "n d"]:
        which, noise = jax.random.split(key)
        index = jax.random.categorical(which, self.log_weights, shape=(num_samples,))
        standard = jax.random.normal(noise, (num_samples, self.means.shape[1]), self.means.dtype)
        return self.means[index] + jnp.einsum("nij,nj->ni", self.factors[index], standard)

    def _components(self, point: ArrayLike) -> tuple[Array, Array]:
        """Log of each weighted component's density, and its score."""
        d = self.means.shape[1]
        point = checked_floats("point", point, (d,)).astype(self.means.dtype)

        def component(log_weight, mean, factor):
            standard = solve_triangular(factor, point - mean, lower=True)
            log_volume = jnp.sum(jnp.log(jnp.diagonal(factor)))
            constant = 0.5 * d * np.log(2 * np.pi).item()
            log_density = -0.5 * standard @ standard - log_volume - constant
            return log_weight + log_density, -solve_triangular(
                factor, standard, lower=True, trans=1
            )

        return jax.vmap(component)(self.log_weights, self.means, self.factors)


class Banana(Distribution):
    """x_1 ~ N(0, scale^2), x_2 ~ N(curvature (x_1^2 - scale^2), 1), the others N(0, 1).

    Mean 0, and x_2 has variance 1 + 2 curvature^2 scale^4 (Haario, Saksman and Tamminen, 1999).
    """

    curvature: Float[Array, ""]
    scale: Float[Array, ""]
    dimension: int = eqx.field(static=True)

    def log_density(self, point: ArrayLike) -> Float[Array, ""]:
        straight, _ = self._straighten(point)
        constant = 0.5 * self.dimension * np.log(2 * np.pi).item()
        return -0.5 * straight @ straight - jnp.log(self.scale) - constant

    def score(self, point: ArrayLike) -> Float[Array, " d"]:
        straight, first = self._straighten(point)
        bend = 2 * self.curvature * first * straight[1]
        return (-straight).at[0].set(-straight[0] / self.scale + bend)

    def sample(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "n d"]:
        straight = jax.random.normal(key, (num_samples, self.dimension), self.scale.dtype)
        first = self.scale * straight[:, 0]
        second = straight[:, 1] + self.curvature * (first**2 - self.scale**2)
        return straight.at[:, 0].set(first).at[:, 1].set(second)

    def _straighten(self, point: ArrayLike) -> tuple[Array, Array]:
        """The independent standard normals behind a point, and its first coordinate."""
        point = checked_floats("point", point, (self.dimension,)).astype(self.scale.dtype)
        first = point[0]
        second = point[1] - self.curvature * (first**2 - self.scale**2)
        return point.at[0].set(first / self.scale).at[1].set(second), first


def gaussian(mean: ArrayLike, covariance: ArrayLike) -> GaussianMixture:
    """N(mean, covariance).

    Args:
        mean: (d,).
        covariance: (d, d).
    """
    mean, covariance = _floats("mean", mean), _floats("covariance", covariance)
    if mean.ndim != 1:
        raise ValueError(f"mean must have shape (d,), got {mean.shape}")
    return gaussian_mixture(jnp.ones(1, mean.dtype), mean[None], covariance[None])


def gaussian_mixture(
    weights: ArrayLike, means: ArrayLike, covariances: ArrayLike
) -> GaussianMixture:
    """A mixture of Gaussians.

    Args:
        weights: (k,), positive; normalised here.
        means: (k, d).
        covariances: (k, d, d), symmetric positive definite.

    Raises:
        ValueError: on shapes that do not match, and, when concrete, weights that are not positive
            or covariances that are not positive definite.
    """
    weights, means = _floats("weights", weights), _floats("means", means)
    covariances = _floats("covariances", covariances)
    if means.ndim != 2 or weights.shape != means.shape[:1]:
        raise ValueError(
            f"expected weights (k,) and means (k, d), got {weights.shape} and {means.shape}"
        )
    k, d = means.shape
    if covariances.shape != (k, d, d):
        raise ValueError(f"expected covariances of shape {(k, d, d)}, got {covariances.shape}")
    factors = jnp.linalg.cholesky(covariances)
    turned = jnp.swapaxes(covariances, 1, 2)
    for value, good, text in (
        (weights, lambda: bool(jnp.all(weights > 0)), "weights must be positive"),
        (factors, lambda: bool(jnp.all(jnp.isfinite(factors))), "covariances must be definite"),
        (turned, lambda: np.allclose(covariances, turned), "covariances must be symmetric"),
    ):
        if not isinstance(value, jax.core.Tracer) and not good():
            raise ValueError(text)
    return GaussianMixture(jnp.log(weights / jnp.sum(weights)), means, factors)


def banana(curvature: ArrayLike = 0.5, scale: ArrayLike = 2.0, dimension: int = 2) -> Banana:
    """A banana-shaped density: see `Banana`.

    Args:
        curvature: how much it bends; 0 is a Gaussian.
        scale: standard deviation of the first coordinate.
        dimension: at least 2.

    Raises:
        ValueError: on other shapes, and, when concrete, a scale that is not positive.
    """
    if dimension < 2:
        raise ValueError(f"a banana needs at least two dimensions, got {dimension}")
    scale = _floats("scale", scale, ())
    if not isinstance(scale, jax.core.Tracer) and not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}")
    return Banana(_floats("curvature", curvature, ()), scale, dimension)


def _floats(name: str, value: ArrayLike, shape: tuple[int, ...] | None = None) -> Array:
    array = checked_floats(name, value, shape)
    # Half precision has no Cholesky factors; a weak type would change with what it meets.
    return jnp.asarray(array, working_dtype(array.dtype))

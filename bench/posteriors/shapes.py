"""Posteriors made of known distributions: each shape is one difficulty, and has exact draws."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from bench.posteriors.posterior import Posterior, indexed, register


def _banana():
    width, bend, noise = 1.5, 0.5, 0.5

    def log_density(p):
        middle = bend * (p[0] ** 2 - width**2)
        return -0.5 * (p[0] / width) ** 2 - 0.5 * ((p[1] - middle) / noise) ** 2

    def draws(rng, n):
        x = width * rng.standard_normal(n)
        return np.stack([x, bend * (x**2 - width**2) + noise * rng.standard_normal(n)], 1)

    about = "x ~ N(0, 1.5²), y ~ N((x² - 1.5²) / 2, 0.5²)"
    return Posterior("banana", about, ("x", "y"), log_density, draws)


def _skewed():
    d = 5

    def log_density(p):
        return jnp.sum(p - jnp.exp(p))

    about = "five logarithms of exponential variables"
    return Posterior(
        "log-gamma",
        about,
        indexed("x", d),
        log_density,
        lambda rng, n: np.log(rng.standard_exponential((n, d))),
    )


def _student():
    d, freedom, correlation = 3, 4, 0.8
    scale = correlation + (1 - correlation) * np.eye(d)
    precision, factor = np.linalg.inv(scale), np.linalg.cholesky(scale)

    def log_density(p):
        square = p @ jnp.asarray(precision, p.dtype) @ p
        return -0.5 * (freedom + d) * jnp.log1p(square / freedom)

    def draws(rng, n):
        radius = np.sqrt(rng.chisquare(freedom, n) / freedom)
        return rng.standard_normal((n, d)) @ factor.T / radius[:, None]

    about = "Student's t, 4 degrees of freedom, three dimensions, correlation 0.8"
    exact = (2**0.5,) * d
    return Posterior("student", about, indexed("x", d), log_density, draws, deviations=exact)


def _ridge():
    d, width, noise = 10, 2.0, 0.4
    phase = 2 * np.pi * np.arange(1, d) / (d - 1)

    def log_density(p):
        curve = jnp.sin(0.7 * p[0] + jnp.asarray(phase, p.dtype))
        return -0.5 * (p[0] / width) ** 2 - 0.5 * jnp.sum(((p[1:] - curve) / noise) ** 2)

    def draws(rng, n):
        x = width * rng.standard_normal((n, 1))
        others = np.sin(0.7 * x + phase) + noise * rng.standard_normal((n, d - 1))
        return np.concatenate([x, others], axis=1)

    about = "x ~ N(0, 2²), nine others within 0.4 of a curve sin(0.7 x + phase)"
    return Posterior("ridge", about, ("x", *indexed("y", d - 1)), log_density, draws)


def _mixture():
    d, shift, weights = 10, 3.0, np.array([0.7, 0.3])
    means = shift * np.array([[1.0], [-1.0]]) * np.eye(1, d)

    def log_density(p):
        squares = jnp.sum((p[None, :] - jnp.asarray(means, p.dtype)) ** 2, axis=1)
        return logsumexp(jnp.asarray(np.log(weights), p.dtype) - 0.5 * squares)

    def draws(rng, n):
        which = (rng.random(n) < weights[1]).astype(int)
        return means[which] + rng.standard_normal((n, d))

    about = "weights 0.7 and 0.3, six standard deviations apart, ten dimensions"
    return Posterior("two modes", about, indexed("x", d), log_density, draws, "many")


def _funnel():
    d, width = 10, 3.0

    def log_density(p):
        v, x = p[0], p[1:]
        return -0.5 * (v / width) ** 2 - 0.5 * (d - 1) * v - 0.5 * jnp.sum(x**2) * jnp.exp(-v)

    def draws(rng, n):
        v = width * rng.standard_normal((n, 1))
        return np.concatenate([v, np.exp(v / 2) * rng.standard_normal((n, d - 1))], axis=1)

    about = "Neal's: v ~ N(0, 3²), nine x ~ N(0, exp(v))"
    exact = (width, *(float(np.exp(width**2 / 4)),) * (d - 1))
    names = ("v", *indexed("x", d - 1))
    return Posterior("funnel", about, names, log_density, draws, "neck", exact)


def _normal():
    d = 50
    scales = np.geomspace(0.01, 100, d)
    places = np.arange(d)
    covariance = 0.9 ** np.abs(places[:, None] - places) * scales[:, None] * scales
    factor = np.linalg.cholesky(covariance)
    # Whitens: precise in float32, where the precision's own entries would cancel.
    inverse = np.linalg.inv(factor / scales[:, None])

    def log_density(p):
        standard = jnp.asarray(inverse, p.dtype) @ (p / jnp.asarray(scales, p.dtype))
        return -0.5 * standard @ standard

    about = "50 dimensions, scales 0.01 to 100, neighbours correlated by 0.9"
    return Posterior(
        "normal",
        about,
        indexed("x", d),
        log_density,
        lambda rng, n: rng.standard_normal((n, d)) @ factor.T,
    )


for _make in (_banana, _skewed, _student, _ridge, _normal, _mixture, _funnel):
    register(_make())

"""A target and particles to start from, for tests of runs."""

import jax
import jax.numpy as jnp
import numpy as np


def standard_normal(x):
    return -0.5 * jnp.sum(x**2)


def start(n=200, d=2, dtype=np.float64, seed=0):
    return jax.random.normal(jax.random.key(seed), (n, d), dtype)

"""The Gaussian's profile beside NumPy's exponential."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels._exponential import half_square_exp


@pytest.mark.parametrize("largest", [1.0, 50.0, 1400.0])
def test_it_is_the_exponential(dtype, largest):
    r2 = jnp.linspace(0, largest, 10_001).astype(dtype)
    value = np.asarray(jax.jit(half_square_exp)(r2), np.float64)
    expected = np.exp(-0.5 * np.asarray(r2, np.float64))
    # Rounding of r2 itself moves the weight by r2 / 2 in relative terms; the sums see absolute errors.
    eps = float(jnp.finfo(dtype).eps)
    tiny = float(jnp.finfo(dtype).tiny)
    assert np.all(np.abs(value - expected) <= eps * (2 + 0.5 * largest) * expected + tiny)
    assert np.max(np.abs(value - expected)) <= 2 * eps


@pytest.mark.parametrize(
    ("r2", "expected"), [(0.0, 1.0), (1e5, 0.0), (1e308, 0.0), (np.inf, 0.0), (np.nan, np.nan)]
)
def test_its_ends(dtype, r2, expected):
    with np.errstate(over="ignore"):
        r2 = jnp.asarray(np.asarray(r2, dtype))
    np.testing.assert_array_equal(half_square_exp(r2), expected)


def test_its_derivatives_are_its_own(dtype):
    r2 = jnp.asarray(0.7, dtype)
    value = half_square_exp(r2)
    first, second = jax.grad(half_square_exp), jax.grad(jax.grad(half_square_exp))
    np.testing.assert_allclose(first(r2), -0.5 * value, rtol=1e-6)
    np.testing.assert_allclose(second(r2), 0.25 * value, rtol=1e-6)

"""Truncated series against NumPy's polynomials."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t3._sampling import jets as _jets

# Sums of at most ten products.
TOLERANCE = {"float32": 1e-5, "float64": 1e-14}


def convolved(a, b):
    """Coefficients of the product of two scalar series, cut to their length."""
    return np.polynomial.polynomial.polymul(a, b)[: len(a)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_multiply_and_correlate(count, dtype, rng, relative_error):
    jet = rng.standard_normal((3, count, 2))
    affine = rng.standard_normal((3, 2))
    degree = min(count - 1, 1)

    @jax.jit
    def run(jet, affine):
        blocks = affine[:, : degree + 1]
        forward = jnp.einsum("wtkr,wk->wtr", _jets.affine_rows(jet, degree), blocks)
        adjoint = jnp.einsum("wtkr,wk->wtr", _jets.affine_adjoint_rows(jet, degree), blocks)
        return forward, adjoint

    forward, adjoint = run(jnp.asarray(jet, dtype), jnp.asarray(affine, dtype))
    assert forward.dtype == dtype
    expected = (
        np.stack(
            [
                np.stack([convolved(jet[w, :, r], affine[w])[:count] for r in range(2)], axis=1)
                for w in range(3)
            ]
        )
        if count > 1
        else jet * affine[:, :1, None]
    )
    assert relative_error(forward, expected) < TOLERANCE[dtype.name]
    # The adjoint of multiplication: <other, a jet> = <a^T other, jet>.
    other = rng.standard_normal(jet.shape)
    left = np.sum(other * expected)
    again, back = run(jnp.asarray(other, dtype), jnp.asarray(affine, dtype))
    del again
    right = np.sum(np.asarray(back, np.float64) * jet)
    assert abs(left - right) < 20 * TOLERANCE[dtype.name] * max(1.0, abs(left))
    del adjoint


@pytest.mark.parametrize("count", [1, 2, 5])
def test_outer_products(count, dtype, rng, relative_error):
    a, b = rng.standard_normal((2, count, 3)), rng.standard_normal((2, count, 4))
    degree = min(count - 1, 1)

    @jax.jit
    def run(a, b):
        rows = _jets.correlation_rows(a)
        return (
            jnp.stack(_jets.convolution_outer(a, b)),
            jnp.stack(_jets.correlation_outer(a, b, degree)),
            jnp.einsum("wstr,wtr->ws", rows, b[:, :, :3]),
        )

    product, correlation, rowwise = run(jnp.asarray(a, dtype), jnp.asarray(b, dtype))
    for i in range(3):
        for j in range(4):
            for w in range(2):
                expected = convolved(a[w, :, i], b[w, :, j])
                assert relative_error(product[:, w, i, j], expected) < TOLERANCE[dtype.name]
    for u in range(degree + 1):
        expected = np.einsum("wqi,wqj->wij", a[:, : count - u], b[:, u:])
        assert relative_error(correlation[u], expected) < TOLERANCE[dtype.name]
    expected = np.array(
        [
            [sum(a[w, t - s] @ b[w, t, :3] for t in range(s, count)) for s in range(count)]
            for w in range(2)
        ]
    )
    assert relative_error(rowwise, expected) < 10 * TOLERANCE[dtype.name]


def test_factorials_beyond_integers():
    values = _jets.factorials(15, np.float32)
    assert values.dtype == np.float32
    assert values[14] == np.float32(math.factorial(14))

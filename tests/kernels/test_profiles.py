"""Kernel profiles against autodiff, and the parameters they accept."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import Gaussian, InverseMultiquadric, Multiscale, RationalQuadratic

KERNELS = [Gaussian, InverseMultiquadric, RationalQuadratic, Multiscale]


@pytest.mark.parametrize("kernel", KERNELS)
def test_derivatives_equal_autodiff(kernel, dtype):
    r2 = jnp.asarray([0.0, 1e-3, 0.5, 2.0, 30.0], dtype)
    k = kernel(1.0)
    first = jax.grad(k.value)
    expected = k.value(r2), jax.vmap(first)(r2), jax.vmap(jax.grad(first))(r2)
    tolerance = {"float32": 2e-6, "float64": 1e-14}[dtype.name]  # a few roundings of each
    if kernel is Multiscale:
        tolerance *= 4**4  # squared eight times
    for value, reference in zip(k.derivatives(r2), expected, strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(value, reference, rtol=tolerance)
    np.testing.assert_allclose(k.value(jnp.zeros((), dtype)), 1, rtol=2 * jnp.finfo(dtype).eps)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", ["scalar", "ard", "metric"])
def test_scaling_is_the_kernels_distance(kernel, form, dtype, rng):
    x = jnp.asarray(rng.normal(size=(5, 3)), dtype)
    root = rng.normal(size=(3, 3))
    metric = root @ root.T + np.eye(3)
    k, matrix = {
        "scalar": (kernel(0.7), np.eye(3) / 0.7**2),
        "ard": (kernel([0.5, 1.0, 2.0]), np.diag([4.0, 1.0, 0.25])),
        "metric": (kernel(metric=metric), metric),
    }[form]
    difference = np.asarray(x, np.float64)[:, None] - np.asarray(x, np.float64)[None]
    r2 = np.einsum("ijk,kl,ijl->ij", difference, matrix, difference)
    tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype.name]
    np.testing.assert_allclose(k(x, x), k.value(jnp.asarray(r2)), rtol=tolerance, atol=tolerance)
    z = k.scale(x)
    assert z.dtype == dtype
    np.testing.assert_allclose(
        jnp.sum((z[:, None] - z[None]) ** 2, -1), r2, rtol=tolerance, atol=tolerance
    )
    # Gradients scale the other way: scale_gradient undoes unscale_gradient.
    np.testing.assert_allclose(
        k.scale_gradient(k.unscale_gradient(x)), x, rtol=10 * tolerance, atol=10 * tolerance
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"bandwidth": 0.0}, "positive and finite"),
        ({"bandwidth": -1.0}, "positive and finite"),
        ({"bandwidth": float("nan")}, "positive and finite"),
        ({"bandwidth": float("inf")}, "positive and finite"),
        ({"bandwidth": [1.0, -2.0]}, "positive and finite"),
        ({"bandwidth": np.ones((2, 2))}, "metric="),
        ({"metric": np.ones((2, 3))}, r"\(2, 3\)"),
        ({"metric": np.array([[1.0, 2.0], [0.0, 1.0]])}, "symmetric"),
        ({"metric": -np.eye(2)}, "positive definite"),
        ({}, "neither"),
        ({"bandwidth": 1.0, "metric": np.eye(2)}, "both"),
    ],
)
def test_bad_parameters_are_refused(kernel, arguments, message):
    with pytest.raises(ValueError, match=message):
        kernel(**arguments)


def test_parameters_must_fit_the_points():
    x = jnp.ones((4, 3))
    with pytest.raises(ValueError, match=r"shape \(2,\).*3 dimensions"):
        Gaussian([1.0, 2.0]).scale(x)
    with pytest.raises(ValueError, match=r"shape \(2, 2\).*3 dimensions"):
        Gaussian(metric=np.eye(2)).scale(x)


def test_bandwidth_may_be_traced_and_is_trainable(dtype):
    x = jnp.asarray([[0.0], [1.0]], dtype)

    def loss(h):
        return Gaussian(h)(x, x)[0, 1]

    h = jnp.asarray(0.8, dtype)
    # d/dh exp(-1 / (2 h^2)) = k / h^3
    expected = np.exp(-0.5 / 0.8**2) / 0.8**3
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(h), expected, rtol=1e-5)
    parameters = jax.tree.leaves(eqx.filter(Gaussian(0.5), eqx.is_inexact_array))
    assert len(parameters) == 1
    np.testing.assert_allclose(Gaussian(0.5).bandwidth, 0.5, rtol=1e-6)

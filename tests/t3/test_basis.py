"""Bases of modes: values, derivatives and integrals against formulas; a tensor between its nodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

KINDS = {
    "chebyshev": t3.basis.chebyshev,
    "legendre": t3.basis.legendre,
    "fourier": t3.basis.fourier,
    "linear": t3.basis.linear,
}
LOW, HIGH = -0.5, 2.0
WAVE = 2 * np.pi / (HIGH - LOW)
# Functions that each basis holds exactly, with derivative and integral.
HELD = {
    "chebyshev": (lambda x: x**4 - x, lambda x: 4 * x**3 - 1, (32 + 0.5**5) / 5 - (4 - 0.25) / 2),
    "fourier": (
        lambda x: 1 + np.sin(2 * WAVE * x),
        lambda x: 2 * WAVE * np.cos(2 * WAVE * x),
        HIGH - LOW,
    ),
    "linear": (lambda x: 3 - 2 * x, lambda x: -2 + 0 * x, 3 * 2.5 - (4 - 0.25)),
}
HELD["legendre"] = HELD["chebyshev"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 7])
def test_each_function_is_one_at_its_node_alone(kind, size, dtype):
    basis = KINDS[kind](size, LOW, HIGH)
    values = basis(jnp.asarray(basis.nodes, dtype))
    assert values.dtype == dtype and basis.nodes.shape == basis.weights.shape == (size,)
    assert np.all(np.diff(basis.nodes) > 0)
    np.testing.assert_allclose(values, np.eye(size), atol=30 * size * np.finfo(dtype).eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [6, 21])
def test_what_a_basis_holds_is_exact(kind, size, dtype):
    function, slope, integral = HELD[kind]
    basis = KINDS[kind](size, LOW, HIGH)
    held = function(basis.nodes)
    points = np.linspace(LOW, HIGH, 23).reshape(1, 23)
    # Rounding of n terms, differentiated: times n^2.
    loose = 50 * size * np.finfo(dtype).eps
    values = basis(jnp.asarray(points, dtype))
    assert values.shape == (1, 23, size)
    np.testing.assert_allclose(values @ held.astype(dtype), function(points), atol=20 * loose)
    slopes = basis.derivative(jnp.asarray(points, dtype)) @ held.astype(dtype)
    np.testing.assert_allclose(slopes, slope(points), atol=20 * size**2 * loose)
    np.testing.assert_allclose(basis.weights @ held, integral, rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_the_values(kind):
    basis = KINDS[kind](7, LOW, HIGH)
    inner = jnp.asarray([0.11, 1.7])
    by_jax = jax.vmap(jax.jacfwd(basis))(inner)
    np.testing.assert_allclose(basis.derivative(inner), by_jax, atol=1e-11)
    np.testing.assert_allclose(
        basis.derivative(inner, 2), jax.vmap(jax.jacfwd(jax.jacfwd(basis)))(inner), atol=1e-9
    )


def test_gauss_integrates_twice_the_degree():
    basis = t3.basis.legendre(5, LOW, HIGH)
    np.testing.assert_allclose(
        basis.weights @ basis.nodes**9, (HIGH**10 - LOW**10) / 10, rtol=1e-13
    )


def test_one_node_is_a_constant():
    for make in (t3.basis.chebyshev, t3.basis.legendre, t3.basis.fourier):
        basis = make(1, 0.0, 3.0)
        np.testing.assert_allclose(basis(jnp.asarray([0.1, 2.9])), np.ones((2, 1)))
        np.testing.assert_allclose(basis.weights, [3.0])
        np.testing.assert_allclose(basis.derivative(jnp.asarray(1.0)), [0.0])


def test_a_tensor_between_its_nodes(key):
    def function(points):
        x, y, z = points.T
        return np.exp(-x * y) * np.cos(z) + y

    bases = [
        t3.basis.chebyshev(12, 0.0, 1.0),
        t3.basis.legendre(11, 0.0, 2.0),
        t3.basis.fourier(9, 0.0, 2 * np.pi),
    ]
    found = t3.cross(t3.basis.at_nodes(function, bases), (12, 11, 9), tolerance=1e-10, key=key)
    rng = np.random.default_rng(0)
    points = rng.uniform([0, 0, 0], [1, 2, 2 * np.pi], (50, 3))
    ww = t3.basis.vectors(bases, points)
    np.testing.assert_allclose(found.x.apply(ww), function(points), atol=1e-8)
    # A probe leaves one mode open: with the slopes of its functions it is a partial derivative.
    slopes = [basis.derivative(points[:, i]) for i, basis in enumerate(bases)]
    gradient = [jnp.sum(p * s, -1) for p, s in zip(found.x.probe(ww), slopes, strict=True)]
    x, y, z = points.T
    np.testing.assert_allclose(gradient[0], -y * np.exp(-x * y) * np.cos(z), atol=1e-6)
    by_jax = jax.vmap(jax.grad(lambda p: found.x.apply(t3.basis.vectors(bases, p))))(points)
    np.testing.assert_allclose(jnp.stack(gradient, 1), by_jax, atol=1e-9)
    # Along a direction, by the jets.
    along = found.x.apply_derivatives(ww, slopes, 1)[1]
    np.testing.assert_allclose(along, by_jax.sum(1), atol=1e-9)
    integral = found.x.apply([basis.weights for basis in bases])
    np.testing.assert_allclose(integral, 2 * 2 * np.pi, rtol=1e-9)  # the mean of cos is 0


def test_what_makes_no_sense_is_refused():
    for make, given, text in (
        (t3.basis.chebyshev, (0, 0.0, 1.0), "at least 1"),
        (t3.basis.linear, (1, 0.0, 1.0), "at least 2"),
        (t3.basis.fourier, (4, 1.0, 1.0), "low < high"),
        (t3.basis.legendre, (4, 0.0, np.inf), "low < high"),
    ):
        with pytest.raises(ValueError, match=text):
            make(*given)
    basis = t3.basis.linear(3, 0.0, 1.0)
    with pytest.raises(ValueError, match="order"):
        basis.derivative(0.5, -1)
    with pytest.raises(ValueError, match="last axis"):
        t3.basis.vectors([basis] * 2, np.zeros((4, 3)))

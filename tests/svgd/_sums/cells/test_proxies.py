"""Chebyshev proxies against the Gaussians that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from svgd._sums.cells import proxies as proxies

ROUNDING = {"float32": 2e-5, "float64": 1e-13}


def test_chebyshev_matches_numpy(dtype, rng):
    t = rng.uniform(-1, 1, (3, 5)).astype(dtype)
    expected = np.polynomial.chebyshev.chebvander(t.astype(np.float64), 9)
    found = proxies.chebyshev(jnp.asarray(t), 10)
    assert found.dtype == dtype
    # T_9 amplifies the rounding of t by its slope, up to 81.
    np.testing.assert_allclose(found, expected, atol=ROUNDING[dtype.name])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_chebyshev_slopes_are_the_derivative(count, rng):
    t = jnp.asarray(rng.uniform(-1, 1, 7))
    jacobian = jax.vmap(jax.jacfwd(lambda s: proxies.chebyshev(s, count)))(t)
    np.testing.assert_allclose(proxies.chebyshev_slopes(t, count), jacobian, atol=1e-12)


@pytest.mark.parametrize(
    ("rate", "half_width", "reach", "count", "weight"),
    [(1.0, 0.7, 2, 4, 0.25), (1.0, 1.9, 1, 8, 0.25), (3.0, 0.4, 2, 5, 0.0), (1.0, 0.5, 0, 3, 0.25)],
)
def test_translations_carry_the_profile_and_its_slope(rng, rate, half_width, reach, count, weight):
    values, slopes = proxies.translations(rate, half_width, reach, count, weight)
    bound = proxies.axis_error(rate, half_width, reach, count, weight)
    u, v = rng.uniform(-half_width, half_width, (2, 200))

    def basis(x):
        polynomials = np.polynomial.chebyshev.chebvander(x / half_width, count - 1)
        return polynomials * np.exp(-weight * rate * x**2)[:, None]

    for step in range(-reach, reach + 1):
        # The source's box lies `step` boxes further along.
        gap = u[:, None] - (v[None, :] + 2 * half_width * step)
        found = basis(u) @ values[step + reach].T @ basis(v).T
        exact = np.exp(-0.5 * rate * gap**2)
        assert np.abs(found - exact).max() <= bound
        slope = basis(u) @ slopes[step + reach].T @ basis(v).T
        # The slope's error is the profile's times a wave number of order p / kappa.
        assert np.abs(slope - rate * gap * exact).max() <= 4 * count / half_width * bound


def test_axis_error_falls_with_the_count_and_grows_with_the_width():
    errors = [proxies.axis_error(1.0, 1.0, 2, count, 0.25) for count in range(2, 9)]
    assert all(a > b for a, b in zip(errors, errors[1:], strict=False))
    widths = [proxies.axis_error(1.0, width, 1, 5, 0.25) for width in (0.3, 0.6, 1.2, 2.4)]
    assert all(a < b for a, b in zip(widths, widths[1:], strict=False))


@pytest.mark.parametrize("error", [1e-3, 0.1])
@pytest.mark.parametrize("dimension", [1, 3, 6])
def test_product_error_bounds_products(rng, error, dimension):
    factors = rng.uniform(0, 1, (500, dimension))
    off = factors + error * rng.choice([-1, 1], factors.shape)
    worst = np.abs(off.prod(1) - factors.prod(1)).max()
    assert worst <= proxies.product_error(error, dimension) * (1 + 1e-12)


def test_support_radius_is_where_the_gaussian_falls_below():
    radius = proxies.support_radius(1e-3)
    assert np.exp(-0.5 * radius**2) == pytest.approx(1e-3)

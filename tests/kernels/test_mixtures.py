"""Mixtures of Gaussians against the profiles that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import svgd
from kernels import Gaussian, InverseMultiquadric, Multiscale, RadialKernel, RationalQuadratic


@pytest.mark.parametrize(
    "kernel",
    [
        Gaussian(1.0),
        InverseMultiquadric(1.0),
        *(RationalQuadratic(1.0, alpha) for alpha in (0.3, 2.0, 300.0)),
        Multiscale(1.0),
        Multiscale(InverseMultiquadric(1.0), bottom=0, top=1),
    ],
    ids=["gaussian", "imq", "rq 0.3", "rq 2", "rq 300", "scales", "scales of imq"],
)
@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("radius", [0.0, 1.0, 40.0, 3e3])
def test_a_mixture_is_its_profile(kernel, tolerance, radius):
    rates = kernel.mixture(tolerance, radius)
    weights = np.asarray(kernel.mixture_weights(rates))
    assert weights.sum() == pytest.approx(1.0)
    assert weights.min() > 0 and len(rates) <= 90 and weights.shape == (len(rates),)
    r2 = np.linspace(0, radius, 4001) ** 2
    found = np.exp(-0.5 * np.outer(r2, rates)) @ weights
    assert np.abs(found - np.asarray(kernel.value(jnp.asarray(r2)))).max() <= tolerance


def test_what_a_mixture_cannot_reach_is_none():
    assert InverseMultiquadric(1.0).mixture(1e-18, 10.0) is None
    assert InverseMultiquadric(1.0).mixture(0.0, 10.0) is None
    assert Gaussian(1.0).mixture(0.0, 10.0) == (1.0,)


@pytest.mark.parametrize("alpha", [0.4, 3.0])
def test_weights_follow_a_shape_parameter(alpha):
    kernel = RationalQuadratic(1.0, alpha)
    rates = kernel.mixture(1e-4, 20.0)
    r2 = jnp.linspace(0, 20.0, 50) ** 2

    def by_mixture(kernel):
        return jnp.exp(-0.5 * r2[:, None] * jnp.asarray(rates)[None, :]) @ kernel.mixture_weights(
            rates
        )

    found = jax.jacrev(by_mixture)(kernel).log_alpha
    exact = jax.jacrev(lambda kernel: kernel.value(r2))(kernel).log_alpha
    # The first rate, of all that are flat, stays where it is.
    np.testing.assert_allclose(found, exact, atol=2e-3)


@pytest.mark.parametrize("kernel", [Gaussian(1.0), RationalQuadratic(1.0, 20.0)])
def test_a_cutoff_is_where_the_profile_falls_below(kernel):
    radius = kernel.cutoff(1e-3)
    np.testing.assert_allclose(kernel.value(jnp.asarray(radius**2)), 1e-3, rtol=1e-6)


def test_slow_profiles_have_no_cutoff():
    assert InverseMultiquadric(1.0).cutoff(1e-3) == np.inf
    assert RationalQuadratic(1.0, 0.01).cutoff(1e-9) == np.inf


class Wide(Gaussian):
    """A subclass with weights of its own, exp(-r^2 / 50), and nothing else."""

    def weights(self, r2):
        f = jnp.exp(-r2 / 50)
        return f, f / 25, f / 625


def test_a_subclass_with_other_weights_has_no_far_field_of_its_parent(rng, relative_error):
    kernel = Wide(1.0)
    assert kernel.mixture(1e-3, 10.0) is None and kernel.cutoff(1e-3) == np.inf
    assert type(kernel).mixture is RadialKernel.mixture
    x = rng.normal(size=(2000, 2))
    update = svgd.SteinUpdate(kernel, method="tree")
    exact = svgd.SteinUpdate(Gaussian(5.0), method="exact")(x, -x)
    assert relative_error(update(x, -x), exact) < 1e-12

"""Moves of all particles: they keep the posterior, lead to it, and say how they went."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import svgd

TARGET = svgd.targets.banana(jnp.asarray(0.3), jnp.asarray(1.5))
DEVIATION = np.array([1.5, (1 + 2 * 0.3**2 * 1.5**4) ** 0.5])
COUNT = 2000


def log_density(point):
    return TARGET.log_density(point).astype(point.dtype)


def moments_are_right(x):
    # Four standard errors of independent draws; the fourth moment of the bent axis is about 9.
    assert np.all(np.abs(x.mean(0)) < 4 * DEVIATION / COUNT**0.5)
    assert np.all(np.abs(x.std(0) / DEVIATION - 1) < 4 * (8 / 4 / COUNT) ** 0.5)


def test_draws_of_the_posterior_stay_draws_of_it(dtype):
    draws = np.asarray(TARGET.sample(jax.random.key(0), COUNT), dtype)
    found = svgd.refine(log_density, draws, jax.random.key(1), 5)
    assert found.particles.dtype == dtype and found.state is None
    moments_are_right(np.asarray(found.particles, np.float64))
    # The step is still on its way to an acceptance of 0.8 after five moves.
    assert 0.5 < found.acceptance <= 1 and found.unmoved < COUNT // 50
    assert np.mean(np.any(np.asarray(found.particles) != draws, axis=1)) > 0.9
    assert "2,000 particles: acceptance 0." in str(found)


def test_short_tails_are_filled():
    draws = np.asarray(TARGET.sample(jax.random.key(0), 2 * COUNT))
    near = draws[np.abs(draws[:, 0]) < 1.5][:COUNT]
    assert len(near) == COUNT and near[:, 1].std() < 0.8 * DEVIATION[1]
    moments_are_right(np.asarray(svgd.refine(log_density, near, jax.random.key(1), 80).particles))


def test_a_state_goes_on_with_its_own_coordinates_and_structure():
    start = {"x": jax.random.normal(jax.random.key(0), (50,)), "y": jnp.zeros((50,))}

    def of_tree(p):
        return log_density(jnp.stack([p["x"], p["y"]]))

    state = svgd.SVGD().run(of_tree, start, 5)
    found = svgd.refine(of_tree, state, jax.random.key(1), 3)
    assert found.state is not None
    for name in ("x", "y"):
        np.testing.assert_allclose(found.state.particles[name], found.particles[name], atol=1e-10)
    assert int(svgd.SVGD().run(of_tree, found.state, 2).step) == 7


def test_particles_that_cannot_move_stay_where_they_are_to_the_bit():
    def needle(point):
        return -0.5 * jnp.sum((1e12 * (point - 0.1)) ** 2)

    start = jax.random.normal(jax.random.key(0), (50, 2))
    found = svgd.refine(needle, start, jax.random.key(1), 1)
    assert found.unmoved == 50 and found.acceptance == 0
    np.testing.assert_array_equal(found.particles, start)


def test_what_cannot_be_refined_says_so():
    x = np.zeros((4, 2))
    with pytest.raises(ValueError, match="got a score"):
        svgd.refine(lambda p: -p, x, jax.random.key(0), kind="score")
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        svgd.refine(log_density, x, jax.random.key(0), 0)

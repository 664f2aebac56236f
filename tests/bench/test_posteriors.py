"""The posteriors of the table: each log-density against its exact draws, draws against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import posteriors

EXACT = [name for name, one in posteriors.POSTERIORS.items() if one.draws is not None]


@pytest.mark.parametrize("name", EXACT)
def test_the_scores_of_exact_draws_satisfy_steins_identities(name):
    posterior = posteriors.POSTERIORS[name]
    draws = posteriors.draws(posterior, np.random.default_rng(3), 20_000)
    scores = np.asarray(jax.vmap(jax.grad(posterior.log_density))(jnp.asarray(draws)))
    deviation = draws.std(0)
    z, s = (draws - draws.mean(0)) / deviation, scores * deviation
    # E s = 0 and E z s = -1 of each parameter, within five standard errors.
    for values in (s, z * s + 1):
        error = values.std(0) / np.sqrt(len(values))
        assert np.all(np.abs(values.mean(0)) < 5 * error)


@pytest.mark.parametrize("name", EXACT)
def test_exact_draws_are_as_far_from_the_reference_as_independent_draws_are(name):
    draws = posteriors.draws(posteriors.POSTERIORS[name], np.random.default_rng(4), 4_000)
    found = posteriors.evaluate(name, draws)
    # Kolmogorov's 1e-6 point of a marginal.
    assert found.distance < 2.7 / np.sqrt(4_000)
    assert found.mean < 0.1
    # Shifted, they are told.
    moved = posteriors.evaluate(name, draws + 0.2 * draws.std(0))
    assert moved.mean > 0.1 and moved.wrong


def test_the_stored_quantiles_are_those_of_the_draws():
    known = posteriors.reference("banana")
    deviation = (2 * (0.5 * 1.5**2) ** 2 + 0.5**2) ** 0.5
    np.testing.assert_allclose(known.deviation, [1.5, deviation], rtol=3e-3)
    np.testing.assert_allclose(known.mean, 0, atol=5e-3)
    copula = known.draws(np.random.default_rng(5), 20_000)
    assert posteriors.evaluate("banana", copula).distance < 0.02


def test_particles_of_another_dimension_are_refused():
    with pytest.raises(ValueError, match="particles have 3 parameters; expected 2"):
        posteriors.evaluate("banana", np.zeros((4, 3)))

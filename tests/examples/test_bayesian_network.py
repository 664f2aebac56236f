import jax
import numpy as np
import pytest
import scipy.stats
from example_scripts import load


@pytest.fixture(autouse=True)
def _as_users_have_it():
    """JAX's own rules of promotion, which a model may rely on."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def test_the_example_runs_and_draws(tmp_path, capsys):
    figure = tmp_path / "figures" / "bayesian_network.png"
    arguments = ["--steps", "200", "--splits", "1", "--figure", str(figure)]
    assert load("bayesian_network").main(arguments) in (0, 1)
    out = capsys.readouterr().out
    assert "deep ensemble" in out and "one network" in out
    assert figure.stat().st_size > 20_000


def test_the_judgement_is_that_of_a_mixture_of_normals():
    network = load("bayesian_network")
    (_, _), (x, y) = network.load_data(0)
    networks = network.start(jax.random.key(0), 3, x.shape[1])
    found = network.judge(networks, x, y)
    means, log_sigmas = jax.vmap(network.predict, in_axes=(0, None))(networks, x)
    normal = scipy.stats.norm(means, np.exp(np.asarray(log_sigmas))[:, None])
    assert np.isclose(found["log-likelihood"], np.log(normal.pdf(y).mean(0)).mean(), rtol=1e-4)
    assert np.allclose(found["below"], normal.cdf(y).mean(0), atol=1e-5)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from svgd import targets

MEAN = np.array([1.0, -2.0])
COVARIANCE = np.array([[2.0, 0.7], [0.7, 0.5]])
WEIGHTS, MEANS = np.array([1.0, 3.0]), np.array([[-3.0, 0.0], [2.0, 1.0]])
COVARIANCES = np.stack([COVARIANCE, np.eye(2)])


def build(name, dtype=np.float64):
    if name == "gaussian":
        return targets.gaussian(MEAN.astype(dtype), COVARIANCE.astype(dtype))
    if name == "mixture":
        return targets.gaussian_mixture(
            WEIGHTS.astype(dtype), MEANS.astype(dtype), COVARIANCES.astype(dtype)
        )
    return targets.banana(np.asarray(0.3, dtype), np.asarray(1.5, dtype))


def density(name, x):
    """From scipy."""
    if name == "gaussian":
        return stats.multivariate_normal(MEAN, COVARIANCE).pdf(x)
    if name == "mixture":
        parts = [
            w / 4 * stats.multivariate_normal(m, c).pdf(x)
            for w, m, c in zip(WEIGHTS, MEANS, COVARIANCES, strict=True)
        ]
        return sum(parts)
    first = stats.norm(0, 1.5).pdf(x[:, 0])
    return first * stats.norm(0.3 * (x[:, 0] ** 2 - 1.5**2), 1).pdf(x[:, 1])


NAMES = ["gaussian", "mixture", "banana"]


@pytest.mark.parametrize("name", NAMES)
def test_density_and_score(name, dtype, rng, relative_error):
    x = 2 * rng.normal(size=(50, 2))
    target = build(name, dtype)
    logs = jax.jit(jax.vmap(target.log_density))(x.astype(dtype))
    scores = jax.jit(jax.vmap(target.score))(x.astype(dtype))
    assert logs.dtype == scores.dtype == dtype
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype.name]
    assert relative_error(logs, np.log(density(name, x))) < tolerance
    autodiff = jax.jit(jax.vmap(jax.grad(build(name).log_density)))(x)
    assert relative_error(scores, autodiff) < tolerance


@pytest.mark.parametrize("name", NAMES)
def test_samples_have_the_density(name, key):
    samples = np.asarray(build(name).sample(key, 40_000))
    assert samples.shape == (40_000, 2)
    edges = np.linspace(-6, 6, 13)
    counts, _, _ = np.histogram2d(*samples.T, bins=[edges, edges])
    # Each cell's probability by a fine midpoint rule.
    fine = 20
    step = 12 / (12 * fine)
    middle = -6 + step * (np.arange(12 * fine) + 0.5)
    grid = np.stack(np.meshgrid(middle, middle, indexing="ij"), -1).reshape(-1, 2)
    mass = density(name, grid).reshape(12, fine, 12, fine).sum((1, 3)) * step**2
    # Five standard deviations of a count, in each of 144 cells.
    assert np.all(np.abs(counts - 40_000 * mass) < 5 * np.sqrt(40_000 * mass) + 5)


def test_a_banana_has_the_stated_moments_in_any_dimension(key):
    samples = np.asarray(targets.banana(0.5, 2.0, 4).sample(key, 100_000))
    variance = np.array([4.0, 1 + 2 * 0.25 * 16, 1, 1])
    assert np.all(np.abs(samples.mean(0)) < 5 * np.sqrt(variance / 100_000))
    assert np.allclose(samples.var(0), variance, rtol=0.05)
    point = jnp.asarray([1.0, 2.0, 0.5, -1.0])
    target = targets.banana(0.5, 2.0, 4)
    assert np.allclose(target.score(point), jax.grad(target.log_density)(point))


BAD = {
    "shapes": (lambda: targets.gaussian(np.zeros(2), np.eye(3)), r"\(1, 2, 2\).*\(1, 3, 3\)"),
    "weights": (
        lambda: targets.gaussian_mixture(np.array([1.0, -1.0]), MEANS, COVARIANCES),
        "positive",
    ),
    "count": (
        lambda: targets.gaussian_mixture(np.ones(3), MEANS, COVARIANCES),
        r"\(3,\) and \(2, 2\)",
    ),
    "indefinite": (lambda: targets.gaussian(np.zeros(2), -np.eye(2)), "definite"),
    "line": (lambda: targets.banana(dimension=1), "at least two"),
    "batch": (lambda: targets.banana().log_density(np.zeros((5, 2))), "vmap"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kernels
import memory
import svgd


def test_the_convention_of_the_median(dtype):
    particles = np.array([[0], [1], [3], [7]], dtype)
    # Distances 1 2 3 4 6 7.
    expected = 3.5 / np.sqrt(2 * np.log(5))
    value = svgd.median_bandwidth(particles)
    assert value.dtype == dtype and value.shape == ()
    assert np.allclose(value, expected, rtol=1e-6)
    assert np.allclose(svgd.median_bandwidth(np.array([[0], [1], [3], [7]])), expected)


def test_the_median_is_over_all_pairs(rng):
    particles = rng.normal(size=(61, 3))
    difference = particles[:, None] - particles[None]
    distances = np.sqrt((difference**2).sum(-1))[np.triu_indices(61, k=1)]
    expected = np.median(distances) / np.sqrt(2 * np.log(62))
    assert np.allclose(svgd.median_bandwidth(particles), expected, rtol=1e-12)


def test_a_million_particles(rng):
    particles = jnp.asarray(rng.normal(size=(1_000_000, 2)).astype(np.float32))
    # Distances of standard normal pairs: sqrt(2) times a Rayleigh variable.
    expected = np.sqrt(2) * np.sqrt(2 * np.log(2)) / np.sqrt(2 * np.log(1e6 + 1))
    value = svgd.median_bandwidth(particles)
    assert abs(float(value) / expected - 1) < 0.05
    other = svgd.median_bandwidth(particles, key=jax.random.key(5))
    assert other != value and abs(float(other) / expected - 1) < 0.05


DEGENERATE = {
    "one": np.full((1, 3), 5.0),
    "equal": np.full((40, 3), 5.0),
    "mostly equal": np.concatenate([np.full((39, 3), 5.0), np.full((1, 3), 6.0)]),
    "tiny": 1e-12 * np.arange(6.0)[:, None],
    "huge": 1e12 * np.arange(6.0)[:, None],
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_particles(name, dtype):
    value = float(svgd.median_bandwidth(DEGENERATE[name].astype(dtype)))
    assert np.isfinite(value) and value > 0
    if name == "mostly equal":
        mean_square = 3 * 39 / (40 * 39 / 2)
        assert np.isclose(value, np.sqrt(mean_square) / np.sqrt(2 * np.log(41)), rtol=1e-5)
    if name == "one":
        assert np.isclose(value, 1)


def test_the_rule_for_whitened_particles():
    for d in (1, 2, 3, 6, 20, 100):
        widths = [svgd.whitened_bandwidth(n, d) for n in (10, 1000, 10**5, 10**7)]
        assert widths == sorted(widths, reverse=True) and min(widths) >= 1
        mass = (1 + 2 / np.square(widths)) ** (-d / 2)
        # One dimension cannot have both: there h = 1 has mass 0.58.
        assert np.all(mass <= 0.5 + 0.1 * (d == 1) + 1e-9)
    h = svgd.whitened_bandwidth(6000, 6)
    assert np.isclose((1 + 2 / h**2) ** -3, 0.2)


def test_the_rule_keeps_the_variance_that_the_median_loses(key):
    begin = jax.random.normal(key, (250, 6))

    def deviation(h):
        update = svgd.SteinUpdate(kernels.Gaussian(h))
        state = svgd.SVGD(update).run(lambda x: -x, begin, 300, whiten=None)
        return float(jnp.sqrt(jnp.mean(jnp.var(state.particles, axis=0))))

    # 13 and 1 % of the variance lost; the test leaves room for the optimiser's last digits.
    assert deviation(svgd.median_bandwidth(begin)) < 0.91
    assert deviation(svgd.whitened_bandwidth(250, 6)) > 0.98


def test_learning_beats_the_median(key):
    """Target N(0, diag(1, 9)), whose wide axis the median heuristic does not fill in forty steps."""
    begin_key, sample_key = jax.random.split(key)
    target = svgd.targets.gaussian(np.zeros(2), np.diag([1.0, 9.0]))
    begin = 0.5 * jax.random.normal(begin_key, (300, 2))
    arguments = {"num_steps": 40, "step_size": 0.5}
    learned = svgd.learn_bandwidth(
        target.score, begin, target.sample(sample_key, 300), num_iterations=25, **arguments
    )

    def spread(kernel):
        sampler = svgd.SVGD(svgd.SteinUpdate(kernel), optax.sgd(arguments["step_size"]))
        state = sampler.run(target.score, begin, arguments["num_steps"], whiten=None)
        return np.asarray(state.particles).std(axis=0)

    median = svgd.median_bandwidth(begin)
    assert float(learned.kernel.bandwidth) > 3 * float(median)
    assert spread(kernels.Gaussian(median))[1] < 1.1
    assert spread(learned.kernel)[1] > 1.7
    assert learned.losses.shape == (25,) and learned.losses[-1] < 0.5 * learned.losses[0]


def test_learning_from_a_given_kernel_with_one_bandwidth_per_axis(key):
    target = svgd.targets.gaussian(np.zeros(2), np.diag([1.0, 9.0]))
    begin = 0.4 * jax.random.normal(key, (60, 2))
    kernel = kernels.InverseMultiquadric(np.array([0.3, 0.3]))
    learned = svgd.learn_bandwidth(
        target.log_density,
        begin,
        target.sample(key, 60),
        kernel=kernel,
        num_steps=10,
        num_iterations=5,
    )
    assert isinstance(learned.kernel, kernels.InverseMultiquadric)
    assert learned.kernel.bandwidth.shape == (2,)
    assert np.all(np.asarray(learned.kernel.bandwidth) != 0.3)
    assert learned.losses[-1] < learned.losses[0]


def test_learning_over_pytrees(key):
    target = svgd.targets.gaussian(np.zeros(2), np.diag([1.0, 9.0]))
    begin, samples = 0.4 * jax.random.normal(key, (40, 2)), target.sample(key, 40)
    arguments = {"num_steps": 5, "num_iterations": 2}
    flat = svgd.learn_bandwidth(target.log_density, begin, samples, **arguments)
    trees = svgd.learn_bandwidth(
        lambda p: target.log_density(jnp.stack([p["a"], p["b"]])),
        *({"a": rows[:, 0], "b": rows[:, 1]} for rows in (begin, samples)),
        **arguments,
    )
    assert np.allclose(trees.losses, flat.losses, rtol=1e-12)


BAD = {
    "rank": (lambda: svgd.median_bandwidth(np.zeros(3)), r"\(n, d\), got \(3,\)"),
    "empty": (lambda: svgd.median_bandwidth(np.zeros((0, 2))), "no particles"),
    "nan": (lambda: svgd.median_bandwidth(np.array([[np.nan], [1.0]])), "1 of 2"),
    "max_points": (lambda: svgd.median_bandwidth(np.zeros((5, 2)), max_points=1), "at least 2"),
    "rule": (lambda: svgd.whitened_bandwidth(0, 2), "at least one"),
    "learn": (
        lambda: svgd.learn_bandwidth(lambda x: -x, np.zeros((4, 2)), np.zeros((4, 3))),
        r"\(3,\).*\(2,\)",
    ),
    "learn steps": (
        lambda: svgd.learn_bandwidth(lambda x: -x, np.zeros((4, 2)), np.zeros((4, 2)), num_steps=0),
        "num_steps must be at least 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_the_median_needs_no_square_of_a_million():
    particles = jax.ShapeDtypeStruct((1_000_000, 3), np.float32)
    assert memory.compiled_memory(svgd.median_bandwidth, particles).temp_bytes < 64e6

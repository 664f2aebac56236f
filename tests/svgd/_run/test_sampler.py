"""Runs and steps of the sampler: against the algorithm by hand, and what their arguments do."""

import logging
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from normal_start import standard_normal, start

import kernels
import svgd


def steps_by_hand(points, score, optimizer, bandwidth, count):
    """The algorithm as in the paper, in NumPy but for the optimiser: the reference for `run`."""
    state = optimizer.init(points)
    for _ in range(count):
        x = np.asarray(points, np.float64)
        difference = x[:, None, :] - x[None, :, :]
        kernel = np.exp(-(difference**2).sum(-1) / (2 * bandwidth**2))
        repulsion = (kernel[:, :, None] * difference).sum(1) / bandwidth**2
        phi = jnp.asarray((kernel @ score(x) + repulsion) / len(x), points.dtype)
        with jax.numpy_dtype_promotion("standard"):
            change, state = optimizer.update(-phi, state, points)
        points = optax.apply_updates(points, change)
    return points


def test_run_is_the_algorithm(dtype, relative_error):
    update = svgd.SteinUpdate(kernels.Gaussian(np.full((), 0.8, dtype)))
    optimizer = optax.adagrad(0.3)
    points = 2 + start(50, 3, dtype)
    expected = steps_by_hand(points, lambda x: -x, optimizer, 0.8, 12)
    state = svgd.SVGD(update, optimizer).run(standard_normal, points, 12, whiten=None)
    # Rounding in another order, amplified by twelve steps.
    assert (
        relative_error(state.particles, expected) < {"float32": 1e-5, "float64": 1e-13}[dtype.name]
    )
    assert state.particles.dtype == dtype and int(state.step) == 12


def test_defaults_sample_a_correlated_posterior_from_a_poor_start(dtype):
    # Particles of unit scale at 0; the posterior is at 30 and narrow, and sheared.
    factor = np.array([[0.1, 0.0], [3.0, 0.01]], dtype)
    target = svgd.targets.gaussian(np.array([30.0, -7.0], dtype), factor @ factor.T)
    state = svgd.SVGD().run(target.log_density, start(300, 2, dtype))
    z = np.linalg.solve(
        factor.astype(np.float64), (np.asarray(state.particles, np.float64) - [30, -7]).T
    )
    assert state.whitening.kind == "laplace" and state.whitening.moved
    assert state.particles.dtype == dtype
    # The finite set loses up to 1 % of a standard deviation; float32 resolves the mean, 30 against
    # a width of 0.1, to a few 1e-5 of it.
    assert np.abs(z.mean(axis=1)).max() < 0.02
    assert np.abs(z.std(axis=1) - 1).max() < 0.02


def test_minibatches(key):
    data = 3 + jax.random.normal(key, (2000,))

    def log_density(mean, key):
        batch = data[jax.random.randint(key, (50,), 0, 2000)]
        return -0.5 * jnp.sum((batch - mean) ** 2) * (2000 / 50)

    state = svgd.SVGD().run(log_density, start(200, 1), 400, key=key)
    assert state.whitening.kind == "particles"
    # Exact mean of 2000 observations; the minibatch noise is 6 posterior standard deviations a step.
    assert abs(float(state.particles.mean() - data.mean())) < 3 / np.sqrt(2000)
    again = svgd.SVGD().run(log_density, start(200, 1), 400, key=key)
    other = svgd.SVGD().run(log_density, start(200, 1), 400, key=jax.random.key(9))
    assert np.array_equal(again.particles, state.particles)
    assert not np.array_equal(other.particles, state.particles)


def test_one_program_serves_every_number_of_steps(caplog):
    sampler, begin = svgd.SVGD(), start(30, 2)
    state = sampler.run(standard_normal, begin, 1, whiten=None)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for count in (2, 7, 131):
            state = sampler.run(standard_normal, state, count)
    compiled = [
        r.getMessage() for r in caplog.records if "Finished XLA compilation" in r.getMessage()
    ]
    assert not compiled
    assert int(state.step) == 141


def test_zero_steps_return_the_particles():
    begin = start()
    state = svgd.SVGD().run(standard_normal, begin, 0, whiten=None)
    assert np.array_equal(state.particles, begin) and int(state.step) == 0


def test_step_is_the_step_of_run_and_can_be_jitted():
    sampler, begin = svgd.SVGD(), 1 + start()
    state = sampler.init(standard_normal, begin, whiten="particles")
    step = eqx.filter_jit(lambda state: sampler.step(standard_normal, state))
    for _ in range(12):
        state = step(state)
    run = sampler.run(standard_normal, begin, 12, whiten="particles")
    assert np.allclose(state.particles, run.particles, rtol=1e-12)


def test_callback_sees_states_and_may_end_the_run():
    seen = []

    def callback(state):
        seen.append(int(state.step))
        return state.step >= 20

    state = svgd.SVGD().run(standard_normal, start(), 100, callback=callback, callback_every=8)
    assert seen == [8, 16, 24] and int(state.step) == 24
    seen.clear()
    svgd.SVGD().run(standard_normal, start(), 17, callback=seen.append, callback_every=8)
    assert [int(state.step) for state in seen] == [8, 16, 17]


def test_progress_bar(capsys):
    svgd.SVGD().run(standard_normal, start(), 60, progress=True)
    assert "60/60" in capsys.readouterr().err
    svgd.SVGD().run(standard_normal, start(), 60)
    assert capsys.readouterr().err == ""


BAD = {
    "negative steps": (
        lambda: svgd.SVGD().run(standard_normal, start(), -1),
        "num_steps must be an integer of at least 0, got -1",
    ),
    "rebuild": (
        lambda: svgd.SVGD().run(standard_normal, start(), rebuild_every=0),
        "rebuild_every must be an integer of at least 1",
    ),
    "callback's array": (
        lambda: svgd.SVGD().run(standard_normal, start(), 2, callback=lambda state: state.points),
        "callback must return True .* got an array of shape",
    ),
    "lists": (
        lambda: svgd.SVGD().run(standard_normal, [[1.0, 2.0], [3.0, 4.0]]),
        r"pytree of 4 numbers.*numpy.asarray\(particles\)",
    ),
    "functions among particles": (
        lambda: svgd.SVGD().run(standard_normal, {"a": start(), "f": len}),
        "equinox.partition",
    ),
    "half precision": (
        lambda: svgd.SVGD().run(standard_normal, start().astype(jnp.bfloat16)),
        "bfloat16.*cast them to float32",
    ),
    "keys": (
        lambda: svgd.SVGD().run(
            standard_normal, start(), key=jax.random.split(jax.random.key(0), 3)
        ),
        r"one key, got \(3,\)",
    ),
    "another optimiser's state": (
        lambda: svgd.SVGD(optimizer=optax.sgd(0.1)).run(
            standard_normal, svgd.SVGD().init(standard_normal, start())
        ),
        "ScaleByAdamState.*give SVGD the optimizer that the run began with",
    ),
    "another optimiser's state, step": (
        lambda: svgd.SVGD(optimizer=optax.sgd(0.1)).step(
            standard_normal, svgd.SVGD().init(standard_normal, start())
        ),
        "ScaleByAdamState",
    ),
    "key with a state": (
        lambda: svgd.SVGD().run(
            standard_normal, svgd.SVGD().init(standard_normal, start()), whiten=None
        ),
        "goes on from a state",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def under(transform):
    return lambda: transform(lambda x: svgd.SVGD().run(standard_normal, x, 3).points)(start())


WRONG_TYPE = {
    "jit": (under(jax.jit), "a run decides from values.*transform `step`"),
    "vmap": (under(lambda f: lambda x: jax.vmap(f)(x[None])), "transform `step`"),
    "grad of a search": (
        lambda: jax.grad(lambda x: svgd.SVGD().init(standard_normal, x).points.sum())(start()),
        "the search for a mode decides from values",
    ),
    "grad by a parameter": (
        lambda: jax.grad(
            lambda a: svgd.SVGD().run(lambda x: a * standard_normal(x), start(), 3).points.sum()
        )(1.0),
        "decides from values",
    ),
    "line search": (
        lambda: svgd.SVGD(optimizer=optax.lbfgs()).run(standard_normal, start(), 3),
        "more than a direction.*optax.adam",
    ),
    "learning rate": (
        lambda: svgd.SVGD(learning_rate=0.1),
        r"got learning_rate.*optimizer=optax.adam",
    ),
}


@pytest.mark.parametrize("name", WRONG_TYPE)
def test_wrong_type(name):
    call, message = WRONG_TYPE[name]
    with pytest.raises(TypeError, match=message):
        call()


def test_the_callback_is_called_at_the_end_of_no_steps_too():
    steps = []
    svgd.SVGD().run(standard_normal, start(), 0, callback=lambda state: steps.append(state.step))
    assert steps == [0]


def test_interrupted_it_gives_the_state_that_it_had_reached():
    def interrupt(state):
        if state.step == 20:
            raise KeyboardInterrupt

    with pytest.warns(svgd.RunWarning, match="interrupted: its state is that after step 20"):
        state = svgd.SVGD().run(standard_normal, start(), 50, callback=interrupt, callback_every=10)
    whole = svgd.SVGD().run(standard_normal, start(), 20)
    assert np.array_equal(state.points, whole.points)


@pytest.mark.parametrize("kind", ["auto", "score"])
def test_an_array_for_an_array_is_a_score_with_a_warning_unless_said(kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        svgd.SVGD().run(lambda x: -x, start(), 2, kind=kind)
    texts = [str(w.message) for w in caught if w.category is svgd.RunWarning]
    assert len(texts) == (1 if kind == "auto" else 0)
    assert all('say kind="score"' in text for text in texts)


def test_particles_that_start_in_one_place_warn():
    with pytest.warns(svgd.RunWarning, match="all 5 particles start in one place"):
        svgd.SVGD().run(standard_normal, np.ones((5, 2)), 2)


UNITS = {"tiny": (1.38e-23, 1e-25), "large": (1e21, 1e19), "around zero": (0.0, 1e-22)}


@pytest.mark.parametrize("whiten", ["auto", "particles"])
@pytest.mark.parametrize("name", UNITS)
def test_units_do_not_matter(name, whiten):
    # Squares of these are out of the range of float32; the other parameter is of size one.
    mean, sd = UNITS[name]
    begin = 2 * np.asarray(start(200, 2, np.float32))

    def sample(mean, sd):
        scales, means = np.array([sd, 1], np.float32), np.array([mean, 0], np.float32)

        def log_density(x):
            return -0.5 * jnp.sum(((x - means) / scales) ** 2)

        state = svgd.SVGD().run(log_density, means + scales * begin, whiten=whiten)
        return (np.asarray(state.particles, np.float64) - means) / scales

    # XLA may fold two divisions by 1e-25 into one by 0, so that the search finds no mode: the run is then
    # that of the particles' own covariance, whose answer differs by what 200 particles can tell.
    np.testing.assert_allclose(np.mean(sample(mean, sd), 0), [0, 0], atol=0.02)
    np.testing.assert_allclose(np.std(sample(mean, sd), 0), [1, 1], atol=0.05)


def test_what_is_printed_says_what_is_in_force():
    assert "adam" in str(svgd.SVGD()) and "whitened_bandwidth" in str(svgd.SVGD())
    state = svgd.SVGD().run(lambda x: standard_normal(x["a"]), {"a": start(30, 2)}, 2)
    text = str(state)
    assert "30 particles of 2 parameters" in text and "after 2 steps" in text
    assert "Laplace" in text and "a[1]: mean" in text
    assert "is a score" in str(svgd.SVGD().init(lambda x: -x, start(), kind="score").origin)
    far = svgd.SVGD().init(standard_normal, start() + 1e3)
    assert "mapped onto" in str(far.origin)
    improper = svgd.SVGD().init(lambda x: jnp.sum(x), start())
    assert "not negative definite" in str(improper.origin)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_particles(n):
    state = svgd.SVGD().run(standard_normal, 2 + start(n, 3), 300)
    assert np.all(np.isfinite(state.particles))
    assert np.abs(np.asarray(state.particles).mean(0)).max() < 0.05


def test_the_kernel_bandwidth_may_be_traced():
    def spread(bandwidth):
        update = svgd.SteinUpdate(kernels.Gaussian(bandwidth))
        sampler = svgd.SVGD(update, optax.sgd(0.1))
        state = sampler.init(lambda x: -x, start(20, 2), whiten=None)
        return jnp.sum(sampler.step(lambda x: -x, state).points ** 2)

    gradient = jax.grad(spread)(1.0)
    numeric = (spread(1.001) - spread(0.999)) / 0.002
    assert np.allclose(gradient, numeric, rtol=1e-4)

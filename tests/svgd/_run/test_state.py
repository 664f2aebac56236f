"""States that are saved and restored, and the error that carries the last finite one."""

import copy
import io
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from normal_start import standard_normal, start

import kernels
import svgd

RESTORED = [
    pytest.param({"whiten": None}, None, id="plain"),
    pytest.param({"whiten": "particles"}, None, id="whitened"),
    pytest.param({"whiten": "particles"}, 3, id="stochastic"),
]


@pytest.mark.parametrize("arguments, seed", RESTORED)
def test_a_restored_run_continues_bit_for_bit(arguments, seed, dtype):
    key = None if seed is None else jax.random.key(seed)

    def log_density(x, key=None):
        noise = 0 if key is None else jax.random.normal(key, x.shape, x.dtype) @ x
        return standard_normal(x) + noise

    sampler = svgd.SVGD()
    begin = 3 + start(60, 2, dtype)
    whole = sampler.run(log_density, begin, 37, key=key, **arguments)
    half = sampler.run(log_density, begin, 17, key=key, **arguments)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, half)
    file.seek(0)
    like = sampler.init(log_density, begin, key=key, **arguments)
    restored = eqx.tree_deserialise_leaves(file, like)
    rest = sampler.run(log_density, restored, 20)
    assert int(rest.step) == 37
    assert np.array_equal(rest.points, whole.points)
    assert np.array_equal(rest.particles, whole.particles)
    assert eqx.tree_equal(rest.opt_state, whole.opt_state)


WHITENED = {
    "none": None,
    "particles": "particles",
    "laplace": "laplace",
    "factor": np.array([1.0, 2.0]),
}


@pytest.mark.parametrize("saved", WHITENED)
@pytest.mark.parametrize("other", WHITENED)
def test_a_state_read_into_one_that_whitens_otherwise_is_refused(saved, other):
    sampler = svgd.SVGD()
    # Few particles, whose covariance is diagonal, or many: the arrays' shapes are often the same.
    for n in (6, 60):
        begin = start(n, 2)
        state = sampler.run(standard_normal, begin, 2, whiten=WHITENED[saved])
        like = sampler.init(standard_normal, begin, whiten=WHITENED[other])
        if like.whitening.factor.shape != state.whitening.factor.shape:
            continue
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, state)
        file.seek(0)
        restored = eqx.tree_deserialise_leaves(file, like)
        if saved == other:
            sampler.step(standard_normal, sampler.run(standard_normal, restored, 2))
            continue
        for go_on in (sampler.run, sampler.step):
            with pytest.raises(ValueError, match=f'is "{saved}", .* is "{other}".*whiten='):
                go_on(standard_normal, restored)


def test_non_finite_particles_stop_the_run_and_the_last_finite_ones_are_kept():
    # sqrt has no derivative left of 0, which the particles reach on their way to -3.
    def log_density(x):
        return -0.5 * jnp.sum((x + 3) ** 2) + jnp.sum(jnp.sqrt(x))

    begin = 1 + 0.1 * start(40, 1)
    optimizer = optax.sgd(0.05)
    sampler = svgd.SVGD(optimizer=optimizer)
    with pytest.raises(
        svgd.NonFiniteError, match=r"in step (\d+) \d+ of 40 particles left"
    ) as caught:
        sampler.run(log_density, begin, 100, whiten=None)
    error = caught.value
    assert str(error.step) in str(error) and 1 < error.step <= 100
    assert np.all(np.isfinite(error.particles)) and error.particles.shape == (40, 1)
    good = sampler.run(log_density, begin, error.step - 1, whiten=None)
    assert np.array_equal(good.particles, error.particles)


@pytest.mark.parametrize("batched", [False, True])
def test_a_log_density_that_becomes_nan_stops_the_run(batched):
    # Its derivative is 0 there: the particles themselves would stay finite, and rest.
    def log_density(x):
        near = jnp.max(x, axis=-1) < 4
        return jnp.where(near, -0.5 * jnp.sum((x - 8) ** 2, axis=-1), jnp.nan)

    with pytest.raises(svgd.NonFiniteError, match="where it is nan") as caught:
        svgd.SVGD().run(log_density, start(40, 1), 200, whiten=None, batched=batched)
    assert 3 < np.max(caught.value.particles) < 8


def test_an_overflowing_step_is_told_from_a_bad_score():
    sampler = svgd.SVGD(optimizer=optax.sgd(1e200))
    with pytest.raises(svgd.NonFiniteError, match="smaller learning rate"):
        sampler.run(lambda x: -0.5 * jnp.sum(x**2), start(), 10, whiten=None)


def test_a_score_that_is_not_finite_stops_the_run_and_is_counted():
    # Without derivative from 4 on, which the particles reach on their way to 8.
    def score(x):
        return jnp.where(x < 4, 8 - x, jnp.nan)

    sampler = svgd.SVGD()
    with pytest.raises(svgd.NonFiniteError, match=r"score of \d+ of 40 particles") as caught:
        sampler.run(score, start(40, 1), 200, whiten=None, kind="score")
    assert 4 < np.max(caught.value.particles) < 8
    # The state that it carries is the one without a score: there is no going on from it.
    with pytest.raises(svgd.NonFiniteError, match=r"score of \d+ of 40 particles"):
        sampler.run(score, caught.value.state, 1, kind="score")


def test_a_state_outside_of_the_support_is_told():
    def narrower(x):
        return jnp.where(jnp.abs(x[0]) < 0.5, standard_normal(x), -jnp.inf)

    state = svgd.SVGD().run(standard_normal, start(), 2)
    with pytest.raises(svgd.NonFiniteError, match="in the state to go on from") as caught:
        svgd.SVGD().run(narrower, state, 2)
    assert caught.value.state is not None and caught.value.step == 2


HALF_LINE = {
    "one block": {},
    "blocks of one": {"callback": lambda state: None, "callback_every": 1},
    "a tree": {"rebuild_every": 2},
    "batched": {"batched": True},
}


@pytest.mark.parametrize("name", HALF_LINE)
def test_particles_that_leave_the_support_stop_the_run_with_the_last_state_inside(name):
    def log_density(x):
        p = x[..., 0]
        return jnp.where(p > 0, -p, -jnp.inf)

    begin = jax.random.exponential(jax.random.key(1), (200, 1))
    update = svgd.SteinUpdate(kernels.Gaussian(0.5), method="tree") if name == "a tree" else None
    sampler = svgd.SVGD(update)
    with pytest.raises(svgd.NonFiniteError, match="left the support of the log-density") as caught:
        sampler.run(log_density, begin, **HALF_LINE[name])
    error = caught.value
    assert np.all(error.particles > 0) and int(error.state.step) == error.step - 1
    # The very step leads out.
    with pytest.raises(svgd.NonFiniteError) as again:
        sampler.run(log_density, error.state, 1, **HALF_LINE[name])
    assert again.value.step == error.step and np.array_equal(again.value.particles, error.particles)
    # A step by hand shows it in the step after it.
    batched = HALF_LINE[name].get("batched", False)
    if name != "a tree":
        state = sampler.step(log_density, error.state, batched=batched)
        assert np.all(np.isnan(sampler.step(log_density, state, batched=batched).points))


def test_its_error_can_be_pickled_and_copied():
    state = svgd.SVGD().init(standard_normal, start())
    error = svgd.NonFiniteError("text", 3, state)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert str(other) == "text" and other.step == 3
        assert np.array_equal(other.particles, error.particles)

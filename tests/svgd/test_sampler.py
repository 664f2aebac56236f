import io
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kernels
import svgd
from svgd import _particles, _sampler


def standard_normal(x):
    return -0.5 * jnp.sum(x**2)


def start(n=200, d=2, dtype=np.float64, seed=0):
    return jax.random.normal(jax.random.key(seed), (n, d), dtype)


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


KINDS = {
    "log-density": (standard_normal, False),
    "score": (lambda x: -x, False),
    "batched log-density": (lambda x: -0.5 * jnp.sum(x**2, axis=-1), True),
    "batched score": (lambda x: -x, True),
}


def test_log_density_and_score_each_and_batched_agree(relative_error):
    runs = {
        name: svgd.SVGD().run(fn, 1 + start(), 10, whiten=None, batched=batched).particles
        for name, (fn, batched) in KINDS.items()
    }
    for name, (fn, batched) in KINDS.items():
        kind = "score" if "score" in name else "log_density"
        options = {"batched": batched, "kind": kind}
        runs[f"said to be a {name}"] = (
            svgd.SVGD().run(fn, 1 + start(), 10, whiten=None, **options).particles
        )
    for name, particles in runs.items():
        assert relative_error(particles, runs["score"]) < 1e-13, name


def test_pytrees_come_back_in_kind(dtype):
    def log_density(p):
        return -0.5 * jnp.sum((p["w"] - 1) ** 2) - 0.5 * (p["nested"][0] + 2) ** 2

    flat = start(300, 5, dtype)
    particles = {"w": np.asarray(flat[:, :4]).reshape(300, 2, 2), "nested": (flat[:, 4],)}
    state = svgd.SVGD().run(log_density, particles, 100)
    out = state.particles
    assert jax.tree.structure(out) == jax.tree.structure(particles)
    assert out["w"].shape == (300, 2, 2) and out["nested"][0].shape == (300,)
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == dtype for leaf in jax.tree.leaves(out))
    assert np.allclose(out["w"].mean(0), 1, atol=0.02)
    assert np.allclose(out["nested"][0].mean(), -2, atol=0.02)

    scored = svgd.SVGD().run(jax.grad(log_density), particles, 10, whiten=None).particles
    same = svgd.SVGD().run(log_density, particles, 10, whiten=None).particles
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: np.allclose(a, b), scored, same)))


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


def test_every_particle_of_a_step_sees_the_same_key(key):
    def score(x, key):
        return jax.random.normal(key, (1,)) + 0 * x

    state = svgd.SVGD(optimizer=optax.sgd(0.1)).init(score, start(5, 1), key=key, whiten=None)
    target_scores = jax.vmap(lambda x: score(x, jax.random.split(key)[1]))(state.points)
    assert np.ptp(np.asarray(target_scores)) == 0
    new = svgd.SVGD(svgd.SteinUpdate(kernels.Gaussian(1e6)), optax.sgd(0.1)).step(score, state)
    moves = np.asarray(new.points - state.points)
    assert np.allclose(moves, 0.1 * np.asarray(target_scores), rtol=1e-6)


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


def test_non_finite_particles_stop_the_run_and_the_last_finite_ones_are_kept():
    # sqrt has no derivative left of 0, which the particles reach on their way to -3.
    def log_density(x):
        return -0.5 * jnp.sum((x + 3) ** 2) + jnp.sum(jnp.sqrt(x))

    begin = 1 + 0.1 * start(40, 1)
    optimizer = optax.sgd(0.5)
    sampler = svgd.SVGD(optimizer=optimizer)
    with pytest.raises(svgd.NonFiniteError, match=r"in step (\d+).*score of \d+ of 40") as caught:
        sampler.run(log_density, begin, 100, whiten=None)
    error = caught.value
    assert str(error.step) in str(error) and 1 < error.step <= 100
    assert np.all(np.isfinite(error.particles)) and error.particles.shape == (40, 1)
    good = sampler.run(log_density, begin, error.step - 1, whiten=None)
    assert np.array_equal(good.particles, error.particles)


def test_an_overflowing_step_is_told_from_a_bad_score():
    sampler = svgd.SVGD(optimizer=optax.sgd(1e200))
    with pytest.raises(svgd.NonFiniteError, match="smaller learning rate"):
        sampler.run(lambda x: -0.5 * jnp.sum(x**2), start(), 10, whiten=None)


BAD = {
    "negative steps": (
        lambda: svgd.SVGD().run(standard_normal, start(), -1),
        "num_steps must be at least 0, got -1",
    ),
    "fractional steps": (
        lambda: _sampler._count(2.5, "num_steps", 0),
        "num_steps must be an integer",
    ),
    "rebuild": (
        lambda: svgd.SVGD().run(standard_normal, start(), rebuild_every=0),
        "rebuild_every must be at least 1",
    ),
    "empty": (lambda: svgd.SVGD().run(standard_normal, np.zeros((0, 2))), "no particles"),
    "no columns": (lambda: svgd.SVGD().run(standard_normal, np.zeros((3, 0))), "no particles"),
    "no leaves": (lambda: svgd.SVGD().run(standard_normal, {}), "no array"),
    "rank": (lambda: svgd.SVGD().run(standard_normal, np.zeros(3)), r"\(n, 1\)"),
    "scalar": (lambda: svgd.SVGD().run(standard_normal, 1.0), r"\(n, d\), got \(\)"),
    "ragged": (
        lambda: svgd.SVGD().run(standard_normal, {"a": np.zeros((3, 2)), "b": np.zeros(4)}),
        r"\(3, 2\), \(4,\)",
    ),
    "mixed dtypes": (
        lambda: svgd.SVGD().run(
            standard_normal, {"a": np.zeros((3, 2)), "b": np.zeros(3, np.float32)}
        ),
        "float32.*float64",
    ),
    "nan": (
        lambda: svgd.SVGD().run(standard_normal, np.array([[0.0], [np.nan], [np.inf]])),
        "2 of 3 particles",
    ),
    "complex": (lambda: svgd.SVGD().run(standard_normal, np.zeros((3, 2), complex)), "complex"),
    "score shape": (
        lambda: svgd.SVGD().run(lambda x: jnp.concatenate([x, x]), start(4, 2)),
        r"\(4,\).*expected shape \(\).*\(2,\)",
    ),
    "score structure": (
        lambda: svgd.SVGD().run(lambda p: {"b": p["a"]}, {"a": start(4, 2)}),
        "expected shape",
    ),
    "batched as single": (
        lambda: svgd.SVGD().run(lambda x: jnp.sum(x, axis=0), start(4, 2), batched=True),
        r"\(2,\).*\(4, 2\)",
    ),
    "forgotten sum": (
        lambda: svgd.SVGD().run(lambda x: -0.5 * x**2, start(4, 2), kind="log_density"),
        r"returns \(2,\).*expected shape \(\) \(a log-density\)\. Was a sum",
    ),
    "forgotten sum, batched": (
        lambda: svgd.SVGD().init(lambda x: -(x**2), start(4, 2), kind="log_density", batched=True),
        r"returns \(4, 2\).*expected shape \(4,\) \(a log-density\)\. Was a sum",
    ),
    "forgotten sum, pytree": (
        lambda: svgd.SVGD().run(lambda p: {"a": -p["a"]}, {"a": start(4, 2)}, kind="log_density"),
        r"expected shape \(\) \(a log-density\)\. Was a sum",
    ),
    "log-density as score": (
        lambda: svgd.SVGD().run(standard_normal, start(4, 2), kind="score"),
        r"returns \(\).*expected shape \(2,\) \(a score\)",
    ),
    "score in a step": (
        lambda: svgd.SVGD().step(
            lambda x: -x, svgd.SVGD().init(standard_normal, start(4, 2)), kind="log_density"
        ),
        "a log-density",
    ),
    "kind": (lambda: svgd.SVGD().run(standard_normal, start(4, 2), kind="logp"), "logp"),
    "score dtype": (
        lambda: svgd.SVGD().run(lambda x: -x.astype(np.float32), start(4, 2)),
        "float32.*float64",
    ),
    "key with a state": (
        lambda: svgd.SVGD().run(
            standard_normal, svgd.SVGD().init(standard_normal, start()), whiten=None
        ),
        "goes on from a state",
    ),
    "whiten name": (lambda: svgd.SVGD().run(standard_normal, start(), whiten="pca"), "pca"),
    "whiten shape": (
        lambda: svgd.SVGD().run(standard_normal, start(), whiten=np.eye(3)),
        r"\(3, 3\).*\(2, 2\)",
    ),
    "whiten singular": (
        lambda: svgd.SVGD().run(standard_normal, start(), whiten=np.diag([1.0, 0.0])),
        "singular",
    ),
    "whiten nan": (
        lambda: svgd.SVGD().run(standard_normal, start(), whiten=np.array([1, np.nan])),
        "not finite",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def positive(x):
    """An exponential density, whose gradient is 0 where it has no support."""
    return jnp.sum(jnp.where(x > 0, -x, -jnp.inf))


OUTSIDE = {
    "one by one": (positive, {}),
    "batched": (lambda x: jax.vmap(positive)(x), {"batched": True}),
    "stochastic": (lambda x, key: positive(x), {"key": jax.random.key(0)}),
    "laplace": (lambda x: positive(x) - 0.5 * jnp.sum((x - 3) ** 2), {"whiten": "auto"}),
    "nan": (lambda x: jnp.sum(jnp.log(x)), {}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_start_outside_of_the_support_is_refused(name, dtype):
    fn, options = OUTSIDE[name]
    begin = np.linspace(1, 4, 24).reshape(12, 2).astype(dtype)
    options = {"whiten": None} | options
    svgd.SVGD().init(fn, begin, **options)
    begin[[5, 7], 1] = -2.5
    with pytest.raises(ValueError, match=r"at 2 of the 12 .*particle 5, \[ 2.3043 -2.5 ") as caught:
        svgd.SVGD().run(fn, begin, **options)
    assert f"where it is {'nan' if name == 'nan' else '-inf'}" in str(caught.value)


def test_particles_that_are_mapped_onto_the_mode_may_come_from_outside_of_the_support():
    def cut_off(mode):
        return lambda x: positive(x) - 0.5 * jnp.sum((x - 1 - mode) ** 2)

    begin = -50 + 0.1 * start(40, 2)
    state = svgd.SVGD().init(cut_off(9.0), begin)
    assert state.whitening.moved and np.all(np.asarray(state.particles) > 0)
    with pytest.raises(ValueError, match='mapped onto the mode; .*or take whiten="particles"'):
        svgd.SVGD().init(cut_off(2.0), begin)


def test_a_start_outside_of_the_support_is_shown_as_the_users_own_particle():
    begin = {"a": np.ones(3), "b": np.array([[1.0], [-1.0], [2.0]])}
    with pytest.raises(ValueError, match=r"particle 1, \{'a': array\(1\.\), 'b': array\(\[-1\.\]"):
        svgd.SVGD().run(lambda p: positive(p["a"]) + positive(p["b"]), begin)


def test_errors_of_the_function_say_how_it_was_called():
    with pytest.raises(TypeError) as caught:
        svgd.SVGD().run(lambda x, key: -0.5 * x @ x, start())
    assert "pass key= to run" in "".join(caught.value.__notes__)
    with pytest.raises(Exception) as caught:
        svgd.SVGD().run(lambda x: x @ jnp.ones((7, 2)), start())
    assert "batched=True" in "".join(caught.value.__notes__)


def test_integer_particles_are_promoted():
    state = svgd.SVGD().run(standard_normal, np.arange(10).reshape(5, 2), 3)
    assert state.particles.dtype == jnp.result_type(float)


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


@pytest.mark.parametrize("in_host_memory", [True, False])
def test_finite_particles_are_told_in_one_pass(in_host_memory, monkeypatch, dtype):
    """Both ways: reading host memory in place, and a sum on the device."""
    monkeypatch.setattr(_particles, "_in_host_memory", lambda rows: in_host_memory)
    rows = jnp.asarray(start(7, 2, dtype))
    assert _particles.sum_is_finite(rows)
    assert not _particles.sum_is_finite(rows.at[3, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="1 of 7 particles"):
        _particles.lay_out(rows.at[3, 1].set(-jnp.inf))
    # Finite entries whose sum is not are looked at one by one.
    huge = jnp.full((7, 2), np.finfo(dtype).max, dtype)
    assert not _particles.sum_is_finite(huge)
    assert _particles.lay_out(huge)[1].shape == (7, 2)
    # At once, even while something else is traced.
    assert jax.jit(lambda x: x if _particles.sum_is_finite(rows) else -x)(1.0) == 1


def test_particles_in_host_memory_are_read_in_place_beside_an_accelerator(monkeypatch):
    rows = start(5, 3)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jnp, "sum", None)
    assert _particles.sum_is_finite(rows)

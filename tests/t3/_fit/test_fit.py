"""Fits: recovery, stopping, restarting, and what happens when things go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

SHAPE, RANKS = (5, 6, 4), ((2, 3, 2), (1, 2, 2, 1))
COUNT = 60


@pytest.fixture(scope="module")
def truth():
    x = t3.TuckerTensorTrain.random(jax.random.key(0), SHAPE, *RANKS)
    return x / x.norm()


@pytest.fixture(scope="module")
def start(truth):
    noise = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    return (truth + noise * (0.3 / noise.norm())).round(ranks=RANKS)


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    ww = tuple(rng.standard_normal((COUNT, n)) for n in SHAPE)
    pp = tuple(rng.standard_normal((COUNT, n)) for n in SHAPE)
    index = np.stack([rng.integers(0, n, 100) for n in SHAPE])
    pe = tuple(rng.standard_normal((100, n)) for n in SHAPE)
    return ww, pp, index, pe


@pytest.fixture(scope="module")
def probes(truth, vectors):
    ww, pp, _, _ = vectors
    return t3.Probe(ww, pp, 1), truth.probe_derivatives(ww, pp, 1)


def error(x, truth):
    return float((x.unpack() - truth).norm() / truth.norm())


@pytest.mark.parametrize(
    "name", ["probe", "apply", "entries", "probe jets", "apply jets", "entries jets"]
)
def test_recovers_an_exact_tensor(name, truth, start, vectors):
    ww, pp, index, pe = vectors
    sampling, data = {
        "probe": lambda: (t3.Probe(ww), truth.probe(ww)),
        "apply": lambda: (t3.Apply(ww), truth.apply(ww)),
        "entries": lambda: (t3.Entries(index), truth.entries(index)),
        "probe jets": lambda: (t3.Probe(ww, pp, 2), truth.probe_derivatives(ww, pp, 2)),
        "apply jets": lambda: (t3.Apply(ww, pp, 2), truth.apply_derivatives(ww, pp, 2)),
        "entries jets": lambda: (
            t3.Entries(index, pe, 1),
            truth.entries_derivatives(index, pe, 1),
        ),
    }[name]()
    # Applies and entries at 60 and 100 numbers are few: near the truth they still pin it down.
    x0 = start if "probe" in name else (start * 0.2 + truth * 0.8).round(ranks=RANKS)
    result = t3.fit(x0, sampling, data, gradient_tolerance=1e-12)
    assert error(result.x, truth) < 1e-8, result.reason
    objectives = [record.objective for record in result.history]
    assert objectives == sorted(objectives, reverse=True)


def test_storage_and_chunks_do_not_matter(truth, start, probes):
    runs = [
        t3.fit(x0, *probes, chunk_size=size, max_steps=4).x.to_dense()
        for x0, size in ((start, None), (start, 4), (start, "auto"), (start.pack(), 4))
    ]
    for run in runs[1:]:
        assert float(jnp.linalg.norm((run - runs[0]).ravel())) < 1e-9


def test_checkpoint_holds_the_last_step(tmp_path, start, probes):
    file = tmp_path / "fit.npz"
    seen = []

    def watch(record, x):
        seen.append(t3.FitResult.load(file).step if file.exists() else 0)

    whole = t3.fit(start, *probes, max_steps=4, callback=watch, checkpoint=file)
    assert seen == [0, 1, 2, 3, 4]
    back = t3.FitResult.load(file)
    assert (back.step, back.reason, len(back.history)) == (4, whole.reason, 5)
    about = lambda r: (r.converged, r.objective, r.relative_misfit)  # noqa: E731
    assert about(back) == about(whole)
    np.testing.assert_array_equal(back.x.to_dense(), whole.x.to_dense())


def test_starts_at_zero_and_above_minimal_ranks(truth, probes):
    zero = t3.TuckerTensorTrain.zeros(SHAPE, *RANKS)
    result = t3.fit(zero, *probes, gradient_tolerance=1e-12)
    assert error(result.x, truth) < 1e-8, result.reason
    slack = t3.TuckerTensorTrain.zeros(SHAPE, (5, 6, 4), (2, 9, 9, 2))
    result = t3.fit(slack, *probes, max_steps=1)
    assert (result.x.tucker_ranks, result.x.tt_ranks) == slack.minimal_ranks


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gradient_descent", {"max_steps": 60}),
        ("mc_sgd", {"max_steps": 200, "batch_size": 30}),
        ("adam", {"max_steps": 400, "batch_size": 30, "learning_rate": 3e-2}),
    ],
)
def test_first_order_methods_descend(method, options, truth, start, probes):
    result = t3.fit(start, *probes, method=method, **options)
    assert error(result.x, truth) < 0.2 * error(start, truth), result.reason
    assert result.history[-1].objective < 0.05 * result.history[0].objective


def test_own_optimizer(truth, start, probes):
    import optax

    result = t3.fit(
        start, *probes, method="adam", optimizer=optax.sgd(1e-3), max_steps=50, batch_size=COUNT
    )
    assert result.history[-1].objective < result.history[0].objective


def test_solved_start_stops_at_once(truth, probes):
    result = t3.fit(truth, *probes)
    assert result.step == 0
    assert result.reason == "residual is zero at the start"
    assert result.converged


@pytest.mark.filterwarnings("ignore::t3.UselessFitWarning")
def test_zero_gradient_stops_at_once(probes):
    # Every core's gradient has a factor of zero.
    zero = t3.TuckerTensorTrain.zeros(SHAPE, *RANKS)
    for method in ("newton_cg", "adam"):
        result = t3.fit(zero, *probes, method=method, geometry="corewise")
        assert (result.step, result.reason) == (0, "gradient is zero at the start")
        assert not result.converged
        assert result.relative_misfit == 1


@pytest.mark.parametrize("method", ["newton_cg", "adam"])
def test_non_finite_objective_raises_with_the_last_good_point(method, start, probes):
    sampling, data = probes
    bad = tuple(np.asarray(a).copy() for a in data)
    bad[0][0, 0, 0] = np.nan
    with pytest.raises(t3.FitError, match="objective is nan") as caught:
        t3.fit(start, sampling, bad, method=method)
    assert caught.value.result.step == 0
    assert bool(jnp.all(jnp.isfinite(caught.value.result.x.to_dense())))


@pytest.mark.parametrize("method", ["newton_cg", "gradient_descent", "mc_sgd"])
def test_noisy_data_converge(method, dtype, start, probes):
    sampling, data = probes
    rng = np.random.default_rng(0)
    noisy = tuple(a + 0.01 * rng.standard_normal(a.shape) for a in data)
    x0 = jax.tree.map(lambda a: a.astype(dtype), start)
    # In single precision the gradient cannot fall by the default 1e-8: rounding ends the fit.
    result = t3.fit(x0, sampling, noisy, method=method, max_steps=400)
    assert result.converged, result.reason
    assert result.objective == min(record.objective for record in result.history)


@pytest.mark.filterwarnings("ignore::t3.UselessFitWarning")
@pytest.mark.parametrize("regularizer", [None, 0.3])
def test_the_misfit_leaves_the_regularizer_out(regularizer, dtype, start, probes):
    sampling, data = probes
    x0 = jax.tree.map(lambda a: a.astype(dtype), start)
    weight = np.asarray([0.5, 2.0])
    result = t3.fit(x0, sampling, data, regularizer=regularizer, weight=weight, max_steps=2)
    assert not result.converged
    stack = lambda jets: np.concatenate(  # noqa: E731
        [(weight[:, None, None] * np.asarray(a, np.float64)).ravel() for a in jets]
    )
    x = jax.tree.map(lambda a: a.astype(jnp.float64), result.x)
    samples = x.probe_derivatives(sampling.ww, sampling.pp, 1)
    size = np.linalg.norm(stack(data))
    expected = np.linalg.norm(stack(samples) - stack(data)) / size
    # The misfit comes from a square of sums, which single precision rounds to 1e-7 of the largest.
    tolerance = {"float32": 1e-3, "float64": 1e-9}[dtype.name]
    np.testing.assert_allclose(result.relative_misfit, expected, rtol=tolerance)
    zero = tuple(np.zeros_like(a) for a in data)
    away = t3.fit(x0, sampling, zero, validation=(sampling, zero), max_steps=1)
    assert (away.relative_misfit, away.history[0].validation) == (np.inf, np.inf)


def test_before_the_first_look_nothing_is_known(start, probes):
    sampling, data = probes
    bad = tuple(np.full_like(a, np.nan) for a in data)
    with pytest.raises(t3.FitError) as caught:
        t3.fit(start, sampling, bad)
    result = caught.value.result
    assert np.isnan(result.objective) and np.isnan(result.relative_misfit)
    assert not result.converged


def test_interrupt_returns_the_best_point(start, probes):
    def interrupt(record, x):
        if record.step == 3:
            raise KeyboardInterrupt

    result = t3.fit(start, *probes, callback=interrupt)
    assert result.reason == "interrupted"
    assert not result.converged
    assert result.history[-1].objective < result.history[0].objective


def test_callback_stops(start, probes):
    result = t3.fit(start, *probes, callback=lambda record, x: record.step == 2)
    assert (result.step, result.reason) == (2, "stopped by the callback")


@pytest.mark.parametrize("method", ["newton_cg", "mc_sgd", "adam"])
def test_restored_fit_continues_as_if_uninterrupted(method, tmp_path, start, probes):
    options = {
        "newton_cg": {"max_steps": 6},
        "mc_sgd": {"max_steps": 40, "check_every": 10, "batch_size": 20},
        "adam": {"max_steps": 40, "check_every": 10, "batch_size": 20},
    }[method]
    whole = t3.fit(start, *probes, method=method, **options)
    half = 3 if method == "newton_cg" else 20
    part = t3.fit(
        start, *probes, method=method, **options, callback=lambda record, x: record.step == half
    )
    assert part.step == half
    part.save(tmp_path / "fit.npz")
    back = t3.FitResult.load(tmp_path / "fit.npz")
    rest = t3.fit(start, *probes, method=method, **options, resume=back)
    assert rest.step == whole.step
    assert [r.step for r in rest.history] == [r.step for r in whole.history]
    for a, b in zip(jax.tree.leaves(rest.x), jax.tree.leaves(whole.x), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_validation_is_recorded_and_stops(truth, start, probes, vectors):
    _ww, _pp, index, _ = vectors
    held_out = (t3.Entries(index), truth.entries(index))
    result = t3.fit(start, *probes, validation=held_out)
    last = result.history[-1]
    expected = np.linalg.norm(result.current.entries(index) - held_out[1])
    expected /= np.linalg.norm(held_out[1])
    np.testing.assert_allclose(last.validation, expected, rtol=1e-6, atol=1e-9)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(index.shape[1]) * float(jnp.std(held_out[1]))
    noisy = (held_out[0], held_out[1] + noise)
    result = t3.fit(start, *noisy, validation=probes, patience=2)
    errors = [record.validation for record in result.history]
    best = int(np.argmin(errors))
    if result.reason == "validation error stopped falling":
        assert len(errors) == best + 3
    assert errors[best] <= errors[0]


def test_weights_and_regularizer(truth, start, probes):
    sampling, data = probes
    # Order 1 is left out by its weight: then its data do not matter.
    spoilt = tuple(np.asarray(a) * np.asarray([1.0, 7.0])[:, None, None] for a in data)
    result = t3.fit(
        start, sampling, spoilt, weight=np.asarray([1.0, 0.0]), gradient_tolerance=1e-12
    )
    assert error(result.x, truth) < 1e-8
    shrunk = t3.fit(start, *probes, regularizer=1e3)
    assert float(shrunk.x.norm()) < 0.9 * float(truth.norm())


def test_single_precision(truth, start, probes):
    low = jax.tree.map(lambda a: a.astype(jnp.float32), start)
    result = t3.fit(low, *probes)
    assert result.x.dtype == jnp.float32
    assert error(jax.tree.map(lambda a: a.astype(jnp.float64), result.x), truth) < 1e-4


def test_inputs_are_checked(start, probes):
    with pytest.raises(ValueError, match="resume"):
        other = t3.fit(start, *probes, method="adam", max_steps=1)
        t3.fit(start, *probes, resume=other)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "newton"}, "newton_cg"),
        ({"geometry": "flat"}, "manifold"),
        ({"method": "adam", "geometry": "manifold"}, "corewise"),
        # What the method does not read.
        ({"batch_size": 4}, "batch_size= is of method mc_sgd and adam"),
        ({"check_every": 4}, "check_every="),
        ({"learning_rate": 0.1}, "learning_rate="),
        ({"optimizer": 0}, "optimizer="),
        ({"method": "mc_sgd", "max_cg_steps": 3}, "max_cg_steps="),
        ({"method": "adam", "gradient_tolerance": 1e-3}, "gradient_tolerance="),
        ({"method": "adam", "optimizer": 0, "learning_rate": 0.1}, "give one of them"),
        ({"patience": 2}, "give validation="),
        # Numbers out of range.
        ({"max_steps": -1}, "max_steps must be an integer from 0 on, got -1"),
        ({"max_cg_steps": 0}, "max_cg_steps"),
        (
            {"gradient_tolerance": np.nan},
            "gradient_tolerance must be a number from 0.0 on, got nan",
        ),
        ({"forcing_power": -1}, "forcing_power"),
        ({"method": "adam", "batch_size": 0}, "batch_size"),
        ({"method": "adam", "check_every": 0}, "check_every"),
        ({"method": "adam", "learning_rate": -1.0}, "learning_rate"),
        ({"regularizer": -1.0}, "not negative, got -1.0"),
        ({"regularizer": np.nan}, "not negative, got nan"),
    ],
)
def test_options_are_checked(options, words, start, probes):
    with pytest.raises(ValueError, match=words):
        t3.fit(start, *probes, **options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sampling, data: (sampling, None), "got None"),
        (lambda sampling, data: (sampling, data[:2]), "data needs 3 arrays"),
        (lambda sampling, data: (sampling, [a[:, :9] for a in data]), "data of mode 0 has shape"),
        (
            lambda sampling, data: (sampling, [np.asarray(a) * 1j for a in data]),
            "data must be real",
        ),
        (lambda sampling, data: (t3.Probe(sampling.ww, sampling.pp), data), "give order="),
        (lambda sampling, data: (t3.Probe(sampling.ww, None, 1), data), "needs directions"),
    ],
)
def test_samples_and_data_are_checked(change, words, start, probes):
    with pytest.raises(ValueError, match=words):
        t3.fit(start, *change(*probes))


@pytest.mark.parametrize(
    ("shape", "ranks"), [((5,), ((1,), (1, 1))), ((1, 1), ((1, 1), (1, 1, 1)))]
)
def test_the_smallest_tensors_are_fitted(shape, ranks, key):
    truth = t3.TuckerTensorTrain.random(key, shape, *ranks)
    ww = tuple(jax.random.normal(key, (6, n)) for n in shape)
    start = t3.TuckerTensorTrain.random(jax.random.key(1), shape, *ranks)
    result = t3.fit(start, t3.Probe(ww), truth.probe(ww))
    assert result.converged, result.reason
    assert error(result.x, truth) < 1e-6

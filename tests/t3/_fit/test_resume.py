"""Going on: with other data, from files that went wrong, and what a result shares."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

SHAPE, RANKS = (4, 4), ((2, 2), (1, 2, 1))


@pytest.fixture(scope="module")
def case():
    truth, start = (t3.TuckerTensorTrain.random(jax.random.key(i), SHAPE, *RANKS) for i in (0, 1))
    rng = np.random.default_rng(0)
    sampling = t3.Apply(tuple(rng.standard_normal((64, n)) for n in SHAPE))
    return start, sampling, truth.apply(sampling.ww)


@pytest.fixture(scope="module")
def stopped(case):
    return t3.fit(*case, callback=lambda record, x: record.step == 2)


def test_what_differs_is_named(case, stopped):
    start, sampling, data = case
    flipped = t3.Apply(tuple(w[::-1] for w in sampling.ww))
    single = jax.tree.map(lambda a: a.astype(jnp.float32), start)
    for parts, options, what in (
        ((start, sampling, 5 * data), {}, "data"),
        ((start, flipped, data), {}, "sampling"),
        ((single, sampling, data), {}, "dtype"),
        (case, {"method": "gradient_descent"}, "method"),
        (case, {"geometry": "corewise"}, "method"),
        (case, {"regularizer": 1.0}, "objective"),
        (case, {"weight": 2.0}, "objective"),
        (case, {"validation": (sampling, data)}, "validation"),
    ):
        with pytest.raises(ValueError, match=f"differs in its .*{what}"):
            t3.fit(*parts, resume=stopped, **options)


def test_no_start_is_needed_to_go_on(case, stopped):
    # More steps, a chunk and another tolerance do not change what is fitted.
    rest = t3.fit(None, *case[1:], resume=stopped, max_steps=40, chunk_size=9)
    assert rest.converged and rest.history[:3] == stopped.history


def test_nothing_is_shared(case, stopped):
    own = [
        x.unsafe_buffer_pointer() for x in jax.tree.leaves((case[0], stopped.x, stopped.current))
    ]
    assert len(set(own)) == len(own)
    seen = []
    result = t3.fit(*case, max_steps=1, callback=lambda record, x: seen.append(x))
    for x in (seen[0], case[0], result.current):
        x.tt_cores[0].delete()
    assert np.isfinite(result.x.to_dense()).all()
    case_again = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    case[0].__dict__.update(case_again.__dict__)


def test_records_errors_and_results_travel(stopped):
    a, b = t3.Record(0, 1.0), t3.Record(1, 2.0)
    a.detail["length"] = 1.0
    assert b.detail == {}
    error = t3.FitError("stopped", stopped)
    for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert str(other) == "stopped"
        assert other.result.reason is stopped.reason and other.result.history == stopped.history
    same = pickle.loads(pickle.dumps(a))
    assert repr(same) == repr(a) and type(same) is t3.Record and same.detail == {"length": 1.0}


def test_reasons_are_texts_with_advice():
    assert t3.StopReason("interrupted") is t3.StopReason.INTERRUPTED == "interrupted"
    assert all(reason.advice and str(reason) == reason.value for reason in t3.StopReason)
    assert pickle.loads(pickle.dumps(t3.StopReason.PLATEAU)) is t3.StopReason.PLATEAU


def test_a_checkpoint_that_cannot_be_written_costs_no_fit(case, tmp_path, monkeypatch):
    file, good = tmp_path / "fit.npz", t3.FitResult.save
    whole, calls = t3.fit(*case, max_steps=4), []

    def full_disk(self, path):
        calls.append(self.step)
        if self.step in fails:
            raise OSError("no space left on device")
        good(self, path)

    monkeypatch.setattr(t3.FitResult, "save", full_disk)
    fails = {2, 3}
    with pytest.warns(RuntimeWarning, match="no space left.*tries again"):
        result = t3.fit(*case, max_steps=4, checkpoint=file)
    assert calls == [1, 2, 3, 4, 4] and result.step == 4
    assert t3.FitResult.load(file).step == 4
    fails = {4}
    with (
        pytest.warns(RuntimeWarning, match="could not be written"),
        pytest.raises(t3.CheckpointError, match="error.result holds it") as caught,
    ):
        t3.fit(*case, max_steps=4, checkpoint=file)
    np.testing.assert_array_equal(caught.value.result.x.to_dense(), whole.x.to_dense())
    assert t3.FitResult.load(file).step == 3

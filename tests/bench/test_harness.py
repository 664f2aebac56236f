"""The benchmark harness: what is timed, and what becomes of a case that fails."""

import json

import jax
import jax.numpy as jnp
import pytest

from bench import harness


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(harness, "_MIN_TOTAL_SECONDS", 0.0)
    monkeypatch.setattr(harness, "_cases", {})


def test_measuring_compiles_apart_and_reads_scratch():
    timing = harness.measure(lambda x: jnp.sort(x @ x, axis=0).sum(), jnp.ones((64, 64)), repeats=3)
    assert timing.runs == 3
    assert timing.compile_seconds > 0
    assert 0 < timing.min_seconds <= timing.median_seconds
    assert timing.spread >= 0
    assert timing.scratch_bytes >= 64 * 64 * 4


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


def test_a_warm_up_is_not_timed_and_alternatives_take_turns(monkeypatch):
    clock, log = Clock(), []
    monkeypatch.setattr(harness, "time", clock)

    def job(name, seconds):
        times = iter([50.0, *seconds])

        def run(x):
            log.append(name)
            clock.now += next(times)
            return x

        return run

    jobs = {"a": job("a", [1.0, 3.0, 2.0]), "b": job("b", [10.0, 10.0, 10.0])}
    timings = harness.paired(jobs, jnp.ones(()), repeats=3, jit=False)
    assert log == ["a", "b"] * 4
    assert (timings["a"].min_seconds, timings["a"].median_seconds) == (1.0, 2.0)
    assert timings["a"].spread == 1.0
    assert timings["a"].compile_seconds == 49.0
    assert timings["a"].scratch_bytes is None
    assert timings["b"].min_seconds == 10.0


def test_short_jobs_run_more_often(monkeypatch):
    monkeypatch.setattr(harness, "_MIN_TOTAL_SECONDS", 1e9)
    assert harness.measure(lambda x: x, jnp.ones(()), repeats=2).runs == harness._MAX_RUNS


def test_every_run_is_waited_for(monkeypatch):
    waited = []
    block = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda x: waited.append(1) or block(x))
    harness.measure(lambda x: x + 1.0, jnp.ones(()), repeats=4)
    assert len(waited) == 5


def test_a_row_is_json():
    timing = harness.measure(lambda x: x, jnp.ones(()), repeats=1)
    line = harness.row(
        n=jnp.int32(3), dtype=jnp.ones(1).dtype, peer="ours", timing=timing, error=jnp.ones(())
    )
    assert json.loads(json.dumps(line))["params"] == {"n": 3, "dtype": "float64"}


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (ModuleNotFoundError("no module named x"), "not installed (no module named x)"),
        (ImportError("file too short"), "failed: ImportError: file too short"),
        (MemoryError(), "out of memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: 5 GB"), "out of memory"),
        (ValueError("two\nlines"), "failed: ValueError: two"),
    ],
)
def test_a_peer_that_fails_is_a_row_that_says_so(error, note):
    def fail():
        raise error

    line = harness.peer_row("peer", fail, n=3)
    assert line["note"] == note
    assert line["timing"] is None
    assert line["params"] == {"n": 3}


def test_a_case_that_raises_keeps_its_rows_and_says_so():
    @harness.case("memory.broken")
    def broken(smoke):
        yield harness.row(peer="ours", n=1)
        raise ValueError("too bad")

    rows = harness.run_case("memory.broken", smoke=False)
    assert [line["note"] for line in rows] == ["", "failed: ValueError: too bad"]
    with pytest.raises(ValueError, match="too bad"):
        harness.run_case("memory.broken", smoke=True)


def test_cases_are_found_by_package_and_by_name():
    for name in ("svgd.exact", "svgd.tree", "t3.transpose", "svgdx.other"):
        harness.case(name)(lambda smoke: iter(()))
    assert list(harness.cases("svgd")) == ["svgd.exact", "svgd.tree"]
    assert list(harness.cases("t3.transpose")) == ["t3.transpose"]
    assert len(harness.cases()) == 4
    assert not harness.cases("nothing")


def test_the_binding_limit_is_the_one_that_is_used_most():
    timing = harness.Timing(0.0, 2.0, 2.0, 0.0, None, 1)
    work = {"matmul_flops": 10, "exponentials": 8}
    line = harness.row(peer="ours", timing=timing, dtype="float32", work=work)
    rates = {"float32": {"matmul_flops": 100.0, "exponentials": 8.0}}
    assert harness.fraction_of_limit(line, rates) == ("exponentials", 0.5)
    assert harness.fraction_of_limit({**line, "work": {}}, rates) is None


def test_limits_and_surroundings():
    limits = harness.limits(smoke=True)
    assert set(limits) == {"float32", "float64"}
    assert all(rate > 0 for rates in limits.values() for rate in rates.values())
    surroundings = harness.environment()
    assert {"versions", "device", "processor", "cores", "commit"} <= set(surroundings)
    json.dumps(surroundings)

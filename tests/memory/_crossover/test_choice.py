"""Choices by a threshold: shipped, calibrated, forced, and the table that shows them."""

import copy
import pickle
import threading

import jax
import pytest

import memory
from memory._crossover import calibration_file as _calibration_file
from memory._crossover import choice as _dispatch
from memory._crossover import timing as _timing


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """An empty registry and an empty cache folder."""
    monkeypatch.setenv("STEINTRAIN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_dispatch, "_registry", {})
    _calibration_file.forget()
    yield
    _calibration_file.forget()


def choice(name="test.choice", threshold=100, **changes):
    given = {"unit": "pairs", "below": "host", "above": "device", "evidence": "a table"}
    return memory.register(memory.Crossover(name, threshold, **{**given, **changes}))


@pytest.mark.parametrize(
    ("size", "side"),
    [(0, "host"), (99, "host"), (99.5, "host"), (100, "device"), (10**12, "device")],
)
def test_the_threshold_decides(size, side):
    assert choice().choose(size) == side


@pytest.mark.parametrize(("threshold", "side"), [(0, "device"), (float("inf"), "host")])
def test_a_threshold_can_rule_one_side_out(threshold, side):
    assert choice(threshold=threshold).choose(5) == side


@pytest.mark.parametrize(
    ("platform", "side"), [("cpu", "host"), ("gpu", "device"), ("cuda", "device"), ("tpu", "host")]
)
def test_thresholds_by_platform(monkeypatch, platform, side):
    crossover = choice(threshold={"cpu": 100, "gpu": 10})
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert crossover.choose(50) == side


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": -1}, "from 0 on"),
        ({"threshold": float("nan")}, "from 0 on"),
        ({"threshold": {"gpu": 1}}, "'cpu' entry"),
        ({"above": "host"}, "both sides"),
    ],
)
def test_a_crossover_that_cannot_choose_raises(changes, message):
    with pytest.raises(ValueError, match=message):
        choice(**changes)


def test_a_size_must_be_a_concrete_count():
    crossover = choice()
    with pytest.raises(ValueError, match="must not be -1"):
        crossover.choose(-1)
    with pytest.raises(ValueError, match="concrete number of pairs"):
        jax.jit(lambda n: crossover.choose.__wrapped__(crossover, n))(3)


def test_forcing_a_side():
    crossover = choice()
    other = choice("test.other")
    with memory.forced("test.choice", "device"):
        assert crossover.choose(0) == "device"
        assert other.choose(0) == "host"
        assert memory.crossovers()["test.choice"].source == "forced: device"
        with memory.forced("test.choice", "host"):
            assert crossover.choose(10**6) == "host"
        assert crossover.choose(0) == "device"
    assert crossover.choose(0) == "host"
    with pytest.raises(ZeroDivisionError), memory.forced("test.choice", "device"):
        1 / 0
    assert crossover.choose(0) == "host"


def test_forcing_does_not_reach_other_threads():
    crossover, seen = choice(), []
    with memory.forced("test.choice", "device"):
        thread = threading.Thread(target=lambda: seen.append(crossover.choose(0)))
        thread.start()
        thread.join()
    assert seen == ["host"]


@pytest.mark.parametrize(
    ("name", "side", "message"),
    [
        ("test.choice", "gpu", "between 'host' and 'device', not 'gpu'"),
        ("test.chioce", "host", "known: test.choice"),
    ],
)
def test_forcing_what_is_not_there_raises(name, side, message):
    choice()
    with pytest.raises(ValueError, match=message), memory.forced(name, side):
        pass


def test_two_choices_of_one_name_raise_but_a_reload_does_not():
    choice(threshold=1)
    assert choice(threshold=2).choose(1) == "host"
    assert len(memory.crossovers()) == 1
    with pytest.raises(ValueError, match="two different crossovers"):
        choice(below="other")


def test_the_table_is_data_and_text():
    assert "no crossovers" in str(memory.crossovers())
    choice("test.b", threshold=2**21)
    choice("test.a", threshold={"cpu": 7})
    table = memory.crossovers()
    assert list(table) == ["test.a", "test.b"]
    assert table["test.b"].threshold == 2**21
    assert table["test.b"].evidence == "a table"
    assert {row.source for row in table.values()} == {"shipped"}
    lines = str(table).splitlines()
    assert lines[2].split() == ["test.b", "host", "2,097,152", "pairs", "device", "shipped"]
    assert len({line.index("device") for line in lines[1:]}) == 1


class Clock:
    """A clock that only jobs move."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def perf_counter(self):
        return self.now

    def workload(self, below, above):
        def make(size):
            def job(side, cost):
                def run():
                    self.log.append(side)
                    self.now += cost(size)
                    return jax.numpy.zeros(())

                return run

            return job("below", below), job("above", above)

        return make


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_timing, "time", clock)
    return clock


@pytest.mark.parametrize("start", [1, 100, 640, 5000, 100_000])
def test_calibration_finds_where_the_times_meet(clock, start):
    # 1 against 500 + n / 4 microseconds: they meet at 666.7.
    work = clock.workload(lambda n: 1e-6 * n, lambda n: 1e-6 * (500 + n / 4))
    crossover = choice(threshold=start, workload=work)
    table = memory.calibrate(seconds=1e9)
    assert table["test.choice"].source == "calibrated"
    # Linear interpolation of the ratio within a doubling.
    assert table["test.choice"].threshold == pytest.approx(666.7, rel=0.05)
    assert crossover.choose(600) == "host"
    assert crossover.choose(750) == "device"
    assert "microsecond" not in table["test.choice"].evidence
    assert "measured on this machine" in table["test.choice"].evidence


def test_calibration_warms_up_takes_turns_and_blocks(clock, monkeypatch):
    waited = []
    block = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda x: waited.append(1) or block(x))
    slow_first = {"below": 100.0, "above": 100.0}

    def cost(side):
        # The first run of a side takes far longer, as compilation does.
        return lambda n: slow_first.pop(side, 1.0 if side == "below" else 2.0)

    below, above = clock.workload(cost("below"), cost("above"))(4)
    assert _timing.paired_minimum_seconds(below, above, 3) == (1.0, 2.0)
    assert clock.log == ["below", "above"] * 4
    assert len(waited) == 8


def test_a_side_that_always_wins_gets_all_sizes_that_were_tried(clock):
    choice("test.never", workload=clock.workload(lambda n: 1.0, lambda n: 2.0))
    choice("test.always", workload=clock.workload(lambda n: 2.0, lambda n: 1.0))
    # A shipped threshold beyond all that was tried stands.
    choice(
        "test.far", threshold=float("inf"), workload=clock.workload(lambda n: 1.0, lambda n: 2.0)
    )
    table = memory.calibrate(seconds=1e9)
    assert table["test.far"].threshold == float("inf")
    assert table["test.never"].threshold == 100 * 2**10 + 1
    assert table["test.always"].threshold == 1


def test_calibration_keeps_to_its_time(clock):
    choice(workload=clock.workload(lambda n: 1.0, lambda n: 2.0))
    memory.calibrate(seconds=30, repeats=5)
    # 18 seconds for each size: the second one ends beyond the limit, and no third begins.
    assert clock.now == pytest.approx(36)


def test_calibration_by_name(clock):
    work = clock.workload(lambda n: 1e-6 * n, lambda n: 1e-4)
    choice("test.a", workload=work)
    choice("test.b", workload=work)
    choice("test.c")
    table = memory.calibrate("test.a")
    assert [table[name].source for name in table] == ["calibrated", "shipped", "shipped"]
    with pytest.raises(ValueError, match="no workload"):
        memory.calibrate(["test.c"])
    with pytest.raises(ValueError, match="known: test.a, test.b, test.c"):
        memory.calibrate(["test.d"])
    with pytest.raises(ValueError, match="repeats"):
        memory.calibrate("test.a", repeats=0)


def test_choosing_reads_no_file(clock, monkeypatch):
    crossover = choice()
    crossover.choose(1)
    monkeypatch.setattr(_calibration_file, "_read", lambda source: pytest.fail("read a file"))
    monkeypatch.setattr(_calibration_file, "path", lambda: pytest.fail("looked for a file"))
    assert crossover.choose(1) == "host"


def _jobs(size):
    return (lambda: size), (lambda: size)


@pytest.mark.parametrize("threshold", [10, {"cpu": 10, "gpu": 20}])
def test_a_choice_can_be_copied_and_sent_to_other_processes(threshold):
    choice = memory.Crossover("test.copied", threshold, "rows", "a", "b", "none", _jobs)
    for other in (copy.deepcopy(choice), pickle.loads(pickle.dumps(choice))):
        assert other == choice and hash(other) == hash(choice)
        assert other.workload is _jobs and other.choose(15) == "b"

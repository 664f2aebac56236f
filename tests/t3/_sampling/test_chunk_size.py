"""How many probes at a time: estimates against what XLA reports, limits, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_devices import run_on_devices
from sampling_cases import error, tangent, vectors

import memory
import t3
from t3._sampling.chunk_size import CACHE, FULL_RATE, resolve_chunk_size

SIZES = {
    "mode_shapes": (20, 30, 20),
    "tucker_ranks": (8, 10, 8),
    "tt_ranks": (1, 8, 8, 1),
    "order": 2,
}


def test_estimate_is_balanced_and_bounded():
    few, many = (t3.estimate_chunk_size(**SIZES, n_probes=n) for n in (50, 50_000))
    assert 1 <= few <= 50 and few <= many <= 50_000
    # Wider tensors of small ranks have more resident, so their chunk may be larger.
    assert t3.estimate_chunk_size(**SIZES, n_probes=1) == 1
    assert t3.estimate_chunk_size(**SIZES, n_probes=50_000, n_shards=10) <= 5_000
    sharded = t3.estimate_chunk_size(**SIZES, n_probes=50_000, n_shards=10)
    assert abs(sharded - t3.estimate_chunk_size(**SIZES, n_probes=5_000)) <= 1
    assert t3.estimate_chunk_size(**SIZES, n_probes=50_000, dtype=np.float64) == pytest.approx(
        many, rel=0.3
    )


def test_budgets_are_for_everything_worked_on_together():
    budget = 4e6
    size = t3.max_chunk_size_within(**SIZES, n_probes=100_000, target_bytes=budget)
    assert 1 < size < 100_000
    assert t3.max_chunk_size_within(**SIZES, n_probes=100, target_bytes=1e12) == 100
    # What the chunks leave over has to fit as well, which costs up to a root of twice their size.
    half = t3.max_chunk_size_within(**SIZES, n_probes=100_000, target_bytes=budget, n_tangent=2)
    assert half == pytest.approx(size / 2, rel=0.15)
    third = t3.max_chunk_size_within(
        **SIZES, n_probes=100_000, target_bytes=budget, stack_shape=(3,)
    )
    assert third == pytest.approx(size / 3, rel=0.15)


# XLA's scratch for the tail of a loop stands beside that of its body, so the largest chunk leaves a
# small one; 40,009 is a prime.
@pytest.mark.parametrize(("count", "budget", "least"), [(40_000, 4e6, 0.9), (40_009, 2e7, 0.9)])
def test_budget_is_used_and_kept_by_the_compiled_program(count, budget, least):
    size = t3.max_chunk_size_within(**SIZES, n_probes=count, target_bytes=budget)
    assert least * budget < scratch(size, count).temp_bytes <= budget


def test_estimate_stays_below_twice_what_is_resident_and_falls_with_the_share():
    size = t3.estimate_chunk_size(**SIZES, n_probes=4099)
    report = scratch(size, 4099)
    assert report.temp_bytes <= report.argument_bytes + report.output_bytes
    assert t3.estimate_chunk_size(**SIZES, n_probes=16_396, n_shards=4) == size
    # Where all scratch is a fraction of a processor's cache, chunks would save nothing.
    small = ((10, 11, 12), (5, 6, 5), (1, 3, 2, 1), 2)
    assert t3.estimate_chunk_size(*small, 50) == 50


def scratch(size, count):
    """What XLA says that the transpose takes."""
    bonds, ranks, modes = SIZES["tt_ranks"], SIZES["tucker_ranks"], SIZES["mode_shapes"]
    array = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)  # noqa: E731
    trains = tuple(array(*s) for s in zip(bonds[:-1], ranks, bonds[1:], strict=True))
    frame = jax.eval_shape(
        t3.T3Frame, tuple(array(n, m) for n, m in zip(ranks, modes, strict=True)), *[trains] * 3
    )
    points = tuple(array(count, m) for m in modes)
    residual = tuple(array(3, count, m) for m in modes)
    run = lambda *args: t3.probe_derivatives_transpose(  # noqa: E731
        *args, 2, sum_over_probes=True, chunk_size=size
    )
    return memory.compiled_memory(run, residual, points, points, frame)


def test_auto_works_inside_jit_and_takes_the_cache_sized_chunk(rng):
    shape, count, order = (3, 2), 200, 1
    v = tangent(rng, shape, (2, 2), (2, 2), (1, 2, 1), (1, 2, 1))
    ww, pp = vectors(rng, shape, (count,)), vectors(rng, shape, (count,))
    residual = v.probe_derivatives(ww, pp, order)
    with memory.forced("t3.chunk", "whole"):
        assert resolve_chunk_size("auto", v.frame, count, 2, form=t3.Probe(None)) is None
    with memory.forced("t3.chunk", "cut"):
        size = resolve_chunk_size("auto", v.frame, 10_000_000, 2, form=t3.Probe(None))
        assert FULL_RATE <= size < 10_000_000
        assert resolve_chunk_size("auto", v.frame, FULL_RATE, 2, form=t3.Probe(None)) is None
        run = jax.jit(
            lambda r: t3.probe_derivatives_transpose(
                r, ww, pp, v.frame, order, sum_over_probes=True
            )
        )
        auto = run(residual)
    dense = t3.probe_derivatives_transpose(
        residual, ww, pp, v.frame, order, sum_over_probes=True, chunk_size=None
    )
    assert error(auto, dense) < 1e-13


def test_crossover_workload_does_the_same_job_both_ways():
    whole, cut = CACHE.workload(2**15)
    for a, b in zip(*map(jax.tree.leaves, (whole(), cut())), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.max(jnp.abs(a))))


SHARDED = """
import json
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import t3
from t3._sampling.chunk_size import resolve_chunk_size
from t3._sampling.probes import index_probes, vector_probes

shape, ranks, bonds, order, count = (20, 30, 20), (8, 10, 8), (1, 8, 8, 1), 2, 40_000
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))

def split(*axes, batch=(count,)):
    place = NamedSharding(mesh, PartitionSpec(*axes))
    return [jax.device_put(np.zeros((*batch, n), np.float32), place) for n in shape]

def estimate(n_shards):
    return t3.estimate_chunk_size(shape, ranks, bonds, order, count, n_shards=n_shards)

x = t3.TuckerTensorTrain.zeros(shape, ranks, bonds)
chosen = {}
for name, ww in {
    "whole": split(), "one axis": split("a"), "two axes": split("a", "b", batch=(200, 200)),
    "not a probe axis": split(None, "b"), "NumPy": [np.zeros((count, n)) for n in shape],
}.items():
    probes = vector_probes(shape, ww, ww, order, order + 1, np.dtype("float32"))
    auto = resolve_chunk_size("auto", x, count, order + 1, form=t3.Probe(None), n_shards=probes.n_shards)
    same = estimate(t3.probe_shards(ww)) == estimate(probes.n_shards)
    chosen[name] = probes.n_shards, same, auto
for name, axes in {"entries": ("a",), "entries, two axes": (("a", "b"),)}.items():
    place = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
    stacked = jax.device_put(np.zeros((3, count), int), place(None, *axes))
    rows = [jax.device_put(np.zeros(count, int), place(*axes)) for _ in shape]
    for index, form in ((stacked, "stacked"), (rows, "rows")):
        probes = index_probes(shape, index, None, 0, 1, np.dtype("float32"))
        auto = resolve_chunk_size("auto", x, count, 1, form=t3.Entries(None), n_shards=probes.n_shards)
        kept = all(row.sharding.is_equivalent_to(place(*axes), 1) for row in probes.points)
        chosen[f"{name}, {form}"] = probes.n_shards, kept, auto
print(json.dumps(chosen))
"""


def test_shards_are_read_from_points_that_are_split_over_devices():
    chosen = run_on_devices(SHARDED, 8)
    shards = {name: row[0] for name, row in chosen.items()}
    assert shards == {
        "whole": 1,
        "one axis": 4,
        "two axes": 8,
        "not a probe axis": 1,
        "NumPy": 1,
        "entries, stacked": 4,
        "entries, rows": 4,
        "entries, two axes, stacked": 8,
        "entries, two axes, rows": 8,
    }
    assert all(row[1] for row in chosen.values())
    assert all(row[2] is None or row[2] <= 40_000 // row[0] for row in chosen.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tucker_ranks": (2, 2)}, ["3 mode_shapes", "3 tucker_ranks", "got 2"]),
        ({"tt_ranks": (1, 2, 1)}, ["4 tt_ranks", "3"]),
        ({"order": -1}, ["order", "-1"]),
        ({"n_shards": 0}, ["n_shards", "0"]),
    ],
)
def test_errors(change, words):
    with pytest.raises(ValueError) as raised:
        t3.estimate_chunk_size(**{**SIZES, "n_probes": 10, **change})
    for word in words:
        assert word in str(raised.value)


def test_budget_below_one_probe_raises():
    with pytest.raises(ValueError, match="budget"):
        t3.max_chunk_size_within(**SIZES, n_probes=10, target_bytes=10)


def test_unknown_word_raises(rng):
    v = tangent(rng, (3,), (2,), (2,), (1, 1), (1, 1))
    # By the library's own check, or by that of the annotations where tests have it switched on.
    with pytest.raises((ValueError, TypeError), match="auto"):
        v.probe([jnp.ones((2, 3))], chunk_size="some")

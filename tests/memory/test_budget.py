"""Memory estimates against programs whose scratch is known, and chunk sizes against arithmetic."""

import types
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memory
from memory import _budget


def sorted_pairs(rows):
    """Needs rows * width * width numbers of scratch: a sort cannot be fused away."""
    return jnp.sum(jnp.sort(rows[:, :, None] - rows[:, None, :], axis=-1) ** 3)


@pytest.fixture
def statistics(monkeypatch):
    """Makes the backend report what a test wants."""

    def report(**values):
        _budget._row_bytes.cache_clear()
        monkeypatch.setattr(
            _budget, "_statistics", lambda compiled: types.SimpleNamespace(**values)
        )

    yield report
    _budget._row_bytes.cache_clear()


@pytest.mark.parametrize("width", [16, 32])
def test_row_bytes_is_the_size_of_the_intermediate(dtype, width):
    measured = memory.row_bytes(sorted_pairs, jnp.ones((5, width), dtype))
    one_copy = width * width * dtype.itemsize
    # XLA keeps one or two copies of the array that is sorted.
    assert 0.9 * one_copy < measured < 3.1 * one_copy
    assert memory.row_bytes(sorted_pairs, jax.ShapeDtypeStruct((99, width), dtype)) == measured


def test_row_bytes_predicts_the_scratch_of_a_chunk(dtype):
    row = memory.row_bytes(sorted_pairs, jnp.ones((5, 16), dtype))
    chunk = memory.chunk_size_within(row, 2**20, 10_000)
    report = memory.compiled_memory(
        lambda r: memory.map_sum(sorted_pairs, r, chunk_size=chunk),
        jax.ShapeDtypeStruct((10_000, 16), dtype),
    )
    assert report.temp_bytes == pytest.approx(2**20, rel=0.1)


def test_row_bytes_compiles_once(monkeypatch):
    compiled = []
    original = _budget._compile
    monkeypatch.setattr(_budget, "_compile", lambda *args: compiled.append(1) or original(*args))
    for _ in range(3):
        memory.row_bytes(lambda r: sorted_pairs(r), jnp.ones((5, 8)), key="test-compiles-once")
    assert len(compiled) == 2
    memory.row_bytes(lambda r: sorted_pairs(r), jnp.ones((5, 9)), key="test-compiles-once")
    assert len(compiled) == 4


def test_row_bytes_leaves_out_what_is_resident(dtype):
    def product(rows, matrix):
        return jnp.sum(jnp.sort(rows @ matrix, axis=-1) ** 3)

    rows, matrix = jnp.ones((3, 8), dtype), jnp.ones((8, 1000), dtype)
    row = memory.row_bytes(product, rows, matrix)
    assert row < 3 * 1000 * dtype.itemsize


@pytest.mark.parametrize("reported", [None, 0, -1])
def test_without_statistics_the_jaxpr_bounds_the_scratch(statistics, dtype, reported):
    statistics(temp_size_in_bytes=reported)
    with pytest.warns(memory.MemoryEstimateWarning, match="upper bound"):
        bound = memory.row_bytes(sorted_pairs, jnp.ones((5, 16), dtype))
    # At least the difference, its sort and its cube; at most a handful more of that size.
    one_copy = 16 * 16 * dtype.itemsize
    assert 3 * one_copy <= bound < 8 * one_copy


def test_scratch_that_is_fused_away_is_explained(dtype):
    _budget._row_bytes.cache_clear()

    def scaled(rows):
        return 2 * rows

    rows = jnp.ones((5, 16), dtype)
    assert memory.compiled_memory(scaled, rows).temp_bytes == 0
    with pytest.warns(memory.MemoryEstimateWarning, match=r"fuses .*scaled into its results"):
        assert memory.row_bytes(scaled, rows) >= 16 * dtype.itemsize
    # Nothing is computed, so there is nothing to warn of.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unchanged = memory.row_bytes(lambda rows: rows, rows)
    assert unchanged == 0
    assert memory.chunk_size_within(unchanged, 1, 100) == 100


def test_without_a_statistics_object_at_all(monkeypatch, dtype):
    _budget._row_bytes.cache_clear()
    monkeypatch.setattr(_budget, "_statistics", lambda compiled: None)
    with pytest.warns(memory.MemoryEstimateWarning):
        assert memory.row_bytes(sorted_pairs, jnp.ones((5, 16), dtype)) > 0
    assert memory.compiled_memory(jnp.sum, jnp.ones(3)) == memory.MemoryReport(None, None, None)
    _budget._row_bytes.cache_clear()


def test_loop_bodies_count_once_in_the_bound(statistics):
    statistics(temp_size_in_bytes=None)

    def looped(rows):
        return jax.lax.fori_loop(0, 1000, lambda _, r: jnp.sin(r), rows)

    with pytest.warns(memory.MemoryEstimateWarning):
        bound = memory.row_bytes(looped, jnp.ones((5, 16), jnp.float32))
    assert bound <= 4 * 16 * 4


def test_a_peak_that_does_not_grow_is_spread_over_the_rows(monkeypatch):
    _budget._row_bytes.cache_clear()
    monkeypatch.setattr(
        _budget, "_statistics", lambda compiled: types.SimpleNamespace(temp_size_in_bytes=4096)
    )
    assert memory.row_bytes(sorted_pairs, jnp.ones((5, 16)), counts=(8, 16)) == 4096 / 16
    _budget._row_bytes.cache_clear()


@pytest.mark.parametrize("counts", [(0, 4), (4, 4), (8, 4)])
def test_counts_must_ascend(counts):
    with pytest.raises(ValueError, match="ascending"):
        memory.row_bytes(sorted_pairs, jnp.ones((5, 16)), counts=counts)


def test_compiled_memory_reads_arguments_and_output(dtype):
    report = memory.compiled_memory(
        lambda x, flag: jnp.outer(x, x) if flag else x, jnp.ones(64, dtype), "any static value"
    )
    assert report.argument_bytes == 64 * dtype.itemsize
    assert report.output_bytes == 64 * 64 * dtype.itemsize
    assert "scratch" in str(report)
    jitted = jax.jit(lambda x: x * 2)
    assert memory.compiled_memory(jitted, np.ones(4, dtype)).output_bytes == 4 * dtype.itemsize


@pytest.mark.parametrize("rows", [np.ones((40, 16)), jax.ShapeDtypeStruct((40, 16), "float64")])
def test_a_filter_jitted_function_is_measured_as_what_it_wraps(rows):
    jitted = eqx.filter_jit(lambda rows, name: (sorted_pairs(rows), name))
    report = memory.compiled_memory(jitted, rows, "static")
    assert report == memory.compiled_memory(sorted_pairs, rows)
    assert report.temp_bytes >= 40 * 16 * 16 * 8


@pytest.mark.parametrize(
    ("row", "resident", "n_rows", "n_shards", "expected"),
    [
        (10, 95, 100, 1, 9),
        (10, 5, 100, 1, 1),  # never below one row: the caller has no smaller chunk to take
        (10, 1e9, 100, 1, 100),
        (10, 1e9, 100, 3, 34),  # a shard's share, rounded up
        (10, 1e9, 2, 8, 1),
        (0, 5, 100, 1, 100),  # no scratch at all: everything at once
        (0.5, 10, 100, 1, 20),
        (10, 1e9, 0, 1, 1),
    ],
)
def test_balanced_chunk_size(row, resident, n_rows, n_shards, expected):
    assert memory.balanced_chunk_size(row, resident, n_rows, n_shards) == expected


@given(
    row=st.floats(0.1, 1e6),
    budget=st.floats(0.0, 1e9),
    n_rows=st.integers(1, 10_000),
    n_shards=st.integers(1, 9),
)
def test_a_budget_is_kept_and_used(row, budget, n_rows, n_shards):
    share = -(-n_rows // n_shards)
    if budget // row < 1:
        with pytest.raises(ValueError, match="one row needs"):
            memory.chunk_size_within(row, budget, n_rows, n_shards)
        return
    size = memory.chunk_size_within(row, budget, n_rows, n_shards)
    assert isinstance(size, int)
    assert 1 <= size <= share
    assert size * row <= budget * (1 + 1e-12)
    assert size == share or (size + 1) * row > budget * (1 - 1e-12)


def test_a_budget_below_one_row_names_both_numbers():
    with pytest.raises(ValueError, match=r"1000 bytes.*4096 bytes"):
        memory.chunk_size_within(4096, 1000, 10)


@pytest.mark.parametrize(
    "arguments", [(-1, 10, 10), (float("nan"), 10, 10), (1, float("inf"), 10), (1, -1, 10)]
)
def test_sizes_that_are_no_byte_counts_raise(arguments):
    with pytest.raises(ValueError, match="finite number of bytes"):
        memory.balanced_chunk_size(*arguments)


@pytest.mark.parametrize(("n_rows", "n_shards"), [(-1, 1), (10, 0)])
def test_counts_that_are_no_counts_raise(n_rows, n_shards):
    with pytest.raises(ValueError, match="n_rows|n_shards"):
        memory.balanced_chunk_size(1, 1, n_rows, n_shards)


def test_bytes_read_well():
    assert [memory.format_bytes(b) for b in (10, 1536, 3 * 2**20, 5 * 2**50)] == [
        "10 B",
        "1.5 KiB",
        "3 MiB",
        "5120 TiB",
    ]

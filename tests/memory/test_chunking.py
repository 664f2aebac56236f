"""Chunked loops against the dense call, for every kind of chunk size, both ways of differentiating."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memory

N = 10
CHUNKS = [None, 1, 3, 7, N - 1, N, N + 1, np.int64(4)]
# The order of the additions differs: a few units in the last place of a sum of ten terms.
TOLERANCE = {"float32": 2e-6, "float64": 4e-15}


def several_leaves(rows):
    """Sums of different shapes and dtypes from leaves of different shapes and dtypes."""
    return {
        "outer": rows["a"].T @ rows["a"],
        "cubic": jnp.sum(jnp.sin(rows["a"]) ** 3),
        "count": jnp.sum(rows["b"], axis=0),
        "none": None,
    }


def example_rows(rng, dtype, n=N):
    return {
        "a": jnp.asarray(rng.normal(size=(n, 3)), dtype),
        "b": jnp.asarray(rng.integers(0, 9, size=(n, 2, 2)), jnp.int32),
    }


def assert_same(value, expected, dtype):
    assert jax.tree.structure(value) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(value), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_allclose(
            got, want, rtol=TOLERANCE[dtype.name], atol=TOLERANCE[dtype.name]
        )


@pytest.mark.parametrize("chunk_size", CHUNKS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_sum_is_the_dense_one(rng, dtype, chunk_size, checkpoint):
    rows = example_rows(rng, dtype)
    total = memory.map_sum(several_leaves, rows, chunk_size=chunk_size, checkpoint=checkpoint)
    assert_same(total, several_leaves(rows), dtype)


@pytest.mark.parametrize("chunk_size", CHUNKS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_concatenation_is_the_dense_one(rng, dtype, chunk_size, checkpoint):
    rows = example_rows(rng, dtype)

    def row_wise(r):
        return (jnp.cumsum(r["a"], axis=1), r["b"][:, 0] * 2)

    result = memory.map_concat(row_wise, rows, chunk_size=chunk_size, checkpoint=checkpoint)
    assert_same(result, row_wise(rows), dtype)


@given(n=st.integers(0, 12), chunk_size=st.one_of(st.none(), st.integers(1, 14)))
def test_any_count_and_any_chunk(n, chunk_size):
    rows = jnp.arange(n * 2, dtype=jnp.int32).reshape(n, 2)
    total = memory.map_sum(lambda r: jnp.sum(r, axis=0), rows, chunk_size=chunk_size)
    np.testing.assert_array_equal(total, np.asarray(rows).sum(0))
    same = memory.map_concat(lambda r: r + 1, rows, chunk_size=chunk_size)
    np.testing.assert_array_equal(same, np.asarray(rows) + 1)


def test_a_remainder_is_neither_repeated_nor_dropped(dtype):
    total = memory.map_sum(lambda r: jnp.sum(r), jnp.ones(10, dtype), chunk_size=4)
    assert total == 10


def test_accumulates_in_the_dtype_of_the_function():
    rows = jnp.full((100, 1), 200, jnp.uint8)
    total = memory.map_sum(lambda r: jnp.sum(r, dtype=jnp.int32), rows, chunk_size=7)
    assert total.dtype == jnp.int32
    assert total == 20_000
    half = memory.map_sum(lambda r: jnp.sum(r, dtype=r.dtype), rows * 0 + 1, chunk_size=7)
    assert half.dtype == jnp.uint8


def test_takes_numpy_lists_and_random_keys(dtype):
    rows = {"x": np.arange(5, dtype=dtype), "key": jax.random.split(jax.random.key(0), 5)}

    def fn(r):
        return jax.vmap(lambda x, key: x + jax.random.normal(key, (), r["x"].dtype))(
            r["x"], r["key"]
        )

    result = memory.map_concat(fn, rows, chunk_size=2)
    assert isinstance(result, jax.Array)
    expected = fn(jax.tree.map(jnp.asarray, rows))
    # A compiled loop may fuse a product and a sum that eager evaluation rounds apart.
    np.testing.assert_allclose(result, expected, rtol=TOLERANCE[dtype.name])


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_zero_rows_give_zeros_of_the_right_shape(dtype, chunk_size):
    rows = example_rows(np.random.default_rng(0), dtype, n=0)
    total = memory.map_sum(several_leaves, rows, chunk_size=chunk_size)
    assert_same(total, several_leaves(rows), dtype)
    # A function that cannot take an empty slice at all.
    largest = memory.map_concat(lambda r: jnp.max(r["a"], axis=1), rows, chunk_size=chunk_size)
    assert (largest.shape, largest.dtype) == ((0,), dtype)
    gradient = jax.grad(
        lambda a: memory.map_sum(lambda r: jnp.sum(r**2), a, chunk_size=chunk_size)
    )(rows["a"])
    assert gradient.shape == (0, 3)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("chunk_size", [None, 1, 4, 5])
def test_gradients_reach_rows_and_closed_over_values(rng, dtype, chunk_size, checkpoint):
    rows = jnp.asarray(rng.normal(size=(N, 3)), dtype)
    scale = jnp.asarray(1.7, dtype)
    options = {"chunk_size": chunk_size, "checkpoint": checkpoint}

    def loss(rows, scale, sum_of, concat_of):
        summed = sum_of(lambda r: jnp.sum(jnp.sin(scale * r) * jnp.cos(r[:, ::-1]), axis=0), rows)
        kept = concat_of(lambda r: jnp.tanh(scale * r) * r[:, :1], rows)
        return jnp.sum(summed**2) + jnp.sum(kept**2)

    def dense(rows, scale):
        return loss(rows, scale, lambda f, r: f(r), lambda f, r: f(r))

    @jax.jit
    def chunked(rows, scale):
        return loss(
            rows,
            scale,
            lambda f, r: memory.map_sum(f, r, **options),
            lambda f, r: memory.map_concat(f, r, **options),
        )

    expected = jax.value_and_grad(dense, (0, 1))(rows, scale)
    value = jax.value_and_grad(chunked, (0, 1))(rows, scale)
    # Sums of thirty products of order one.
    for got, want in zip(jax.tree.leaves(value), jax.tree.leaves(expected), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(
            got, want, rtol=20 * TOLERANCE[dtype.name], atol=20 * TOLERANCE[dtype.name]
        )
    # Forward mode and second derivatives pass through the loop as well.
    direction = jnp.ones_like(rows)
    hvp = jax.jvp(jax.grad(chunked), (rows, scale), (direction, jnp.ones_like(scale)))[1]
    hvp_dense = jax.jvp(jax.grad(dense), (rows, scale), (direction, jnp.ones_like(scale)))[1]
    np.testing.assert_allclose(
        hvp, hvp_dense, rtol=200 * TOLERANCE[dtype.name], atol=200 * TOLERANCE[dtype.name]
    )


def test_works_under_vmap(rng, dtype):
    batch = jnp.asarray(rng.normal(size=(2, N, 3)), dtype)
    total = jax.vmap(lambda r: memory.map_sum(lambda c: c.T @ c, r, chunk_size=4))(batch)
    np.testing.assert_allclose(
        total, jnp.einsum("bij,bik->bjk", batch, batch), rtol=TOLERANCE[dtype.name], atol=1e-5
    )


@pytest.mark.parametrize("chunk_size", [None, 2, 4])
def test_works_inside_shard_map(rng, dtype, chunk_size):
    # One device is enough: the types that shard_map checks do not depend on how many there are.
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = jax.P("rows"), jax.P()

    def loss(rows, scale):
        def local(rows, scale):
            kept = memory.map_concat(lambda r: r * scale, rows, chunk_size=chunk_size)
            total = memory.map_sum(lambda r: jnp.sum(r**2), kept, chunk_size=chunk_size)
            return jax.lax.psum(total, "rows")

        return jax.shard_map(local, mesh=mesh, in_specs=(split, whole), out_specs=whole)(
            rows, scale
        )

    rows = jnp.asarray(rng.normal(size=(N, 3)), dtype)
    scale = jnp.asarray(1.5, dtype)
    value, gradient = jax.jit(jax.value_and_grad(loss))(rows, scale)
    np.testing.assert_allclose(value, jnp.sum((rows * scale) ** 2), rtol=TOLERANCE[dtype.name] * 4)
    np.testing.assert_allclose(gradient, 2 * scale**2 * rows, rtol=TOLERANCE[dtype.name] * 4)


@pytest.mark.parametrize("chunk_size", [0, -1, 2.5, True, "4"])
@pytest.mark.parametrize("chunked", [memory.map_sum, memory.map_concat])
def test_a_chunk_size_that_is_no_count_raises(chunked, chunk_size):
    with pytest.raises(ValueError, match="chunk_size must be"):
        # The annotation check of the tests would speak first on a wrong type.
        chunked.__wrapped__(lambda r: r, jnp.ones(3), chunk_size=chunk_size)


def test_a_traced_chunk_size_raises():
    with pytest.raises(ValueError, match="traced value"):
        jax.jit(lambda c: memory.map_sum.__wrapped__(jnp.sum, jnp.ones(3), chunk_size=c))(2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "holds no array"),
        ({"a": np.ones((3, 2)), "b": np.ones(4)}, r"rows\['a'\]: \(3, 2\), rows\['b'\]: \(4,\)"),
        ({"a": np.ones(3), "b": np.float32(1)}, r"rows\['b'\] is a scalar"),
    ],
)
def test_rows_without_a_shared_axis_raise(rows, message):
    with pytest.raises(ValueError, match=message):
        memory.map_sum(lambda r: r, rows, chunk_size=2)


@pytest.mark.parametrize("n", [0, 4, 5, 9])
def test_concatenating_something_else_than_rows_raises(n):
    with pytest.raises(ValueError, match="use map_sum"):
        memory.map_concat(lambda r: jnp.sum(r), jnp.ones(n), chunk_size=4)


def scratch(fn, n, **options):
    rows = jax.ShapeDtypeStruct((n, 16), jnp.float32)
    return memory.compiled_memory(lambda r: fn(r, **options), rows).temp_bytes


def wide_sum(rows, chunk_size):
    # Sorting forces the (rows, 16, 16) intermediate into memory.
    return memory.map_sum(
        lambda r: jnp.sum(jnp.sort(r[:, :, None] - r[:, None, :], axis=-1) ** 3),
        rows,
        chunk_size=chunk_size,
    )


def wide_concat(rows, chunk_size):
    return memory.map_concat(
        lambda r: jnp.sum(jnp.sort(r[:, :, None] - r[:, None, :], axis=-1) ** 3, axis=-1),
        rows,
        chunk_size=chunk_size,
    )


@pytest.mark.parametrize("fn", [wide_sum, wide_concat])
def test_scratch_is_linear_in_the_chunk_and_flat_in_the_rows(fn):
    small, large = (scratch(fn, 10_003, chunk_size=c) for c in (256, 512))
    assert large / small == pytest.approx(2, rel=0.2)
    # Three times the chunk's intermediate at most, and not the copy of all rows that a remainder
    # could cost.
    assert small < 3 * 256 * 16 * 16 * 4
    longer = scratch(fn, 100_003, chunk_size=256)
    assert longer / small == pytest.approx(1, rel=0.2)


def test_checkpointed_gradient_has_flat_scratch_beyond_one_gradient():
    def gradient_scratch(n):
        rows = jax.ShapeDtypeStruct((n, 16), jnp.float32)

        def loss(r):
            return memory.map_sum(
                lambda c: jnp.sum(jnp.sin(c[:, :, None] - c[:, None, :]) ** 3),
                r,
                chunk_size=256,
                checkpoint=True,
            )

        report = memory.compiled_memory(jax.grad(loss), rows)
        return report.temp_bytes - report.output_bytes

    # The cotangent of the rows is accumulated once beside the result; what remains is a chunk.
    assert gradient_scratch(100_003) / gradient_scratch(10_003) == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_chunks_of_half_precision_are_added_in_more(dtype):
    rows = jnp.full((20_000,), 0.25, dtype)
    total = memory.map_sum(lambda r: jnp.sum(r, dtype=dtype), rows, chunk_size=16)
    assert total.dtype == dtype
    # Added in half precision they come to 5984 and to 256.
    assert float(total) == pytest.approx(5000, rel=float(jnp.finfo(dtype).eps))


def test_sums_in_a_quarter_of_precision_are_refused():
    with pytest.raises(ValueError, match="float8_e4m3fn.*cast them"):
        memory.map_sum(lambda r: jnp.sum(r), jnp.ones(8, jnp.float8_e4m3fn), chunk_size=2)


@pytest.mark.parametrize("loop", [memory.map_sum, memory.map_concat])
def test_places_beyond_32_bits_are_reached_or_refused(loop):
    rows = jax.ShapeDtypeStruct((9 * 2**28 + 1,), np.int8)
    fn = jnp.sum if loop is memory.map_sum else jnp.negative
    traced = jax.make_jaxpr(lambda r: loop(fn, r, chunk_size=2**28))(rows)
    assert "dynamic_slice" in str(traced) and "i64" in str(traced)
    with jax.enable_x64(False), pytest.raises(ValueError, match="2415919105 rows, which 32-bit"):
        jax.make_jaxpr(lambda r: loop(fn, r, chunk_size=2**28))(rows)


@pytest.mark.parametrize("chunk_size", CHUNKS)
def test_nothing_is_moved_from_the_host(chunk_size):
    rows = jnp.ones((N, 2))
    with jax.transfer_guard("disallow"):
        memory.map_sum(lambda r: jnp.sum(r, axis=0), rows, chunk_size=chunk_size)
        memory.map_concat(jnp.sin, rows, chunk_size=chunk_size)

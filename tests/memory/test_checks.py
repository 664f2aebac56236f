"""Whole numbers and keys of random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memory import checked_floats, checked_integer, checked_key


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), jnp.asarray(3), np.asarray(3)])
def test_every_integer_is_one(value):
    number = checked_integer("size", value, 1)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize(
    "value", [True, np.bool_(True), jnp.asarray(True), 3.0, "3", None, [3], np.ones(2, int), 0, -2]
)
def test_all_else_is_refused_by_name(value):
    with pytest.raises(ValueError, match="size must be an integer of at least 1, got .*; a hint"):
        checked_integer("size", value, 1, "a hint")


def test_a_traced_number_is_told_from_others():
    with pytest.raises(ValueError, match="got a traced value: .* outside of jit"):
        jax.jit(lambda size: checked_integer("size", size))(3)


@pytest.mark.parametrize("key", [jax.random.key(1), jax.random.PRNGKey(1)])
def test_one_key_of_either_kind(key):
    assert checked_key(key) is key
    raw = np.asarray(jax.random.key_data(key))
    assert jnp.array_equal(checked_key(raw), raw)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (0, "such as jax.random.key.0., got 0"),
        (None, "got None"),
        (np.zeros(2), r"shape \(2,\)"),
        (jax.random.split(jax.random.key(0), 3), r"one key, got \(3,\) of them"),
    ],
)
def test_seeds_and_batches_are_no_keys(key, words):
    with pytest.raises(ValueError, match=words):
        checked_key(key)


@pytest.mark.parametrize("value", [2, True, [1, 2], np.int8(3), np.arange(3), jnp.arange(3)])
def test_whole_numbers_become_floats(value):
    found = checked_floats("x", value)
    assert isinstance(found, jax.Array) and found.dtype == jnp.result_type(float)
    assert np.array_equal(np.asarray(found), np.asarray(value, float))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_floats_keep_their_dtype(dtype):
    assert checked_floats("x", jnp.ones((2, 3), dtype), (2, "m")).dtype == dtype


@pytest.mark.parametrize(
    ("value", "shape", "words"),
    [
        (1j, None, "x must be real, got complex128"),
        (jnp.ones(2, jnp.float8_e4m3fn), None, "float8_e4m3fn, too short"),
        ("a", None, "array of numbers, got an array of <U1"),
        ([[1.0], [1.0, 2.0]], None, "array of numbers, got list"),
        (np.ma.masked_equal([1, 2], 1), None, "1 masked entries"),
        (np.ones(3), ("n", "d"), r"shape \(n, d\), got \(3,\); one point is x\[None, :\]"),
        (np.ones((2, 3)), ("n", 2), r"shape \(n, 2\), got \(2, 3\)"),
        (np.ones((2, 3)), (3,), r"shape \(3,\), got \(2, 3\)"),
    ],
)
def test_what_is_no_array_of_numbers_is_told(value, shape, words):
    with pytest.raises(ValueError, match=words):
        checked_floats("x", value, shape)

"""Whole numbers and keys of random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memory import checked_integer, checked_key


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

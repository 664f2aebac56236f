"""Cores of particular tensors."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._tensor.ranks import T3Ranks


def checked_sizes(shape: Any, tucker_ranks: Any, tt_ranks: Any) -> T3Ranks:
    """Sizes as plain integers, whatever a caller gave.

    Raises:
        ValueError: wrong numbers of ranks, sizes below 1, or that are no integers.
    """
    try:
        sides = (shape, tucker_ranks, tt_ranks)
        sizes = T3Ranks(*(tuple(operator.index(i) for i in side) for side in sides))
    except TypeError:
        raise ValueError(
            f"Sizes and ranks must be sequences of integers, got shape {shape}, Tucker ranks "
            f"{tucker_ranks} and train ranks {tt_ranks}."
        ) from None
    d = len(sizes.shape)
    if d == 0 or len(sizes.tucker) != d or len(sizes.tt) != d + 1:
        raise ValueError(
            f"d modes need d Tucker ranks and d + 1 train ranks, got shape {sizes.shape}, Tucker "
            f"ranks {sizes.tucker} and train ranks {sizes.tt}."
        )
    if min(*sizes.shape, *sizes.tucker, *sizes.tt) < 1:
        raise ValueError(f"Sizes and ranks must be at least 1, got {sizes}.")
    return sizes


def core_shapes(sizes: T3Ranks) -> tuple[list, list]:
    """Shapes of the Tucker cores and of the train cores."""
    return (
        list(zip(sizes.tucker, sizes.shape, strict=True)),
        list(zip(sizes.tt[:-1], sizes.tucker, sizes.tt[1:], strict=True)),
    )


def random_cores(
    key: Array, sizes: T3Ranks, dtype: Any
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Standard normal cores."""
    tucker, train = core_shapes(sizes)
    keys = iter(jax.random.split(key, len(tucker) + len(train)))
    return (
        tuple(jax.random.normal(next(keys), shape, dtype) for shape in tucker),
        tuple(jax.random.normal(next(keys), shape, dtype) for shape in train),
    )


def zero_cores(sizes: T3Ranks, dtype: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Zero cores."""
    tucker, train = core_shapes(sizes)
    return (
        tuple(jnp.zeros(shape, dtype) for shape in tucker),
        tuple(jnp.zeros(shape, dtype) for shape in train),
    )


def diagonal_cores(factors: tuple[Array, ...]) -> tuple[Array, ...]:
    """Train cores ``(R, R, R)`` with ones where all three indices agree."""
    core = jnp.eye(factors[0].shape[0], dtype=factors[0].dtype)
    core = core[:, :, None] * core[:, None, :]
    return (core,) * len(factors)


def exact_cores(dense: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Cores of a dense tensor without any truncation: identities, and one full core.

    Bonds left of the largest mode pass all indices on to it, and bonds right of it take all
    indices from it, so only that mode's core holds data.
    """
    shape = dense.shape
    if not shape or min(shape) < 1:
        raise ValueError(f"A tensor needs an axis and entries, got an array of shape {shape}.")
    dtype = dense.dtype
    tucker = tuple(jnp.eye(size, dtype=dtype) for size in shape)
    before = [1]
    for size in shape:
        before.append(before[-1] * size)
    after = [before[-1] // b for b in before]
    centre = next(i for i in range(len(shape)) if before[i + 1] >= after[i + 1])
    train = []
    for i, size in enumerate(shape):
        if i < centre:
            train.append(
                jnp.eye(before[i + 1], dtype=dtype).reshape(before[i], size, before[i + 1])
            )
        elif i == centre:
            train.append(dense.reshape(before[i], size, after[i + 1]))
        else:
            train.append(jnp.eye(after[i], dtype=dtype).reshape(after[i], size, after[i + 1]))
    return tucker, tuple(train)

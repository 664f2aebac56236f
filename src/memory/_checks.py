"""Checks of arguments that all packages share: arrays of numbers, whole numbers, random keys."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def checked_integer(name: str, value: Any, least: int | None = None, hint: str = "") -> int:
    """The value as an int: any integer of Python, NumPy or JAX whose value is known.

    Args:
        name: of the argument, for the error.
        value: what was given.
        least: the smallest that is allowed.
        hint: what else an error should say.

    Raises:
        ValueError: on booleans, on what is no whole number or a traced one, and below `least`.
    """
    wanted = f"{name} must be an integer" + ("" if least is None else f" of at least {least}")
    hint = f"; {hint}" if hint else ""
    if isinstance(value, Tracer):
        raise ValueError(
            f"{wanted}, got a traced value: it decides shapes, so it has to be known outside of jit"
            f"{hint}"
        )
    try:
        if isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) == np.bool_:
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{wanted}, got {value!r}{hint}") from None
    if least is not None and number < least:
        raise ValueError(f"{wanted}, got {number}{hint}")
    return number


def checked_key(key: Any, name: str = "key") -> jax.Array:
    """One key of random numbers, as `jax.random.key` or `jax.random.PRNGKey` makes them.

    Raises:
        ValueError: on anything else, a batch of keys and a bare seed included.
    """
    array = isinstance(key, jax.Array | np.ndarray)
    if array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.ndim == 0:
            return jnp.asarray(key)
        raise ValueError(f"{name} must be one key, got {key.shape} of them: take one, {name}[0]")
    if array and key.dtype == jnp.uint32 and key.ndim == 1:
        return jnp.asarray(key)
    given = f"an array of shape {key.shape}" if array else repr(key)
    raise ValueError(f"{name} must be one key such as jax.random.key(0), got {given}")


def checked_floats(name: str, value: Any, shape: tuple[int | str, ...] | None = None) -> jax.Array:
    """Numbers as a JAX array of a floating dtype: theirs, or the default one for whole numbers.

    Args:
        name: of the argument, for errors.
        value: a JAX or NumPy array, a number, or nested lists of them; may be traced.
        shape: what is expected, sizes or, where any will do, names of them; None for any.

    Raises:
        ValueError: on complex numbers, dtypes of 8 bits and less, masked entries, what is no array of
            numbers, and another shape.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            f"{name} has {np.ma.count_masked(value)} masked entries, whose values would be used: leave "
            "them out, or fill them"
        )
    if not isinstance(value, jax.Array):
        try:
            value = jnp.asarray(value) if _holds_jax(value) else np.asarray(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name} must be an array of numbers, got {_brief(value)}") from error
    dtype = value.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real, got {dtype}: give its real part")
    if jnp.issubdtype(dtype, jnp.floating):
        if jnp.finfo(dtype).bits < 16:
            raise ValueError(f"{name} has dtype {dtype}, too short to compute in: cast to bfloat16")
    elif dtype == np.bool_ or jnp.issubdtype(dtype, jnp.integer):
        value = value.astype(jnp.result_type(float))
    else:
        raise ValueError(f"{name} must be an array of numbers, got {_brief(value)}")
    if isinstance(value, np.ndarray):
        # A copy, so that nobody else writes to it, without the program that `jnp.array` would compile.
        value = jax.device_put(np.array(value))
    if shape is not None and not (
        value.ndim == len(shape)
        and all(isinstance(s, str) or s == m for s, m in zip(shape, value.shape, strict=True))
    ):
        wanted = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        hint = ""
        if shape == ("n", "d") and value.ndim == 1:
            hint = f"; one point is {name}[None, :], one dimension {name}[:, None]"
        elif value.ndim == len(shape) + 1:
            hint = "; for a batch use jax.vmap"
        raise ValueError(f"{name} must have shape {wanted}, got {value.shape}{hint}")
    return value


def working_dtype(dtype: Any) -> np.dtype:
    """The dtype to compute in: float32 for half precision, whose sums lose digits; else its own."""
    dtype = jnp.dtype(dtype)
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32) if half else dtype


def _holds_jax(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(
        isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)
    )


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}{'...' if len(text) > 60 else ''}"

"""Checks of arguments that all packages share: whole numbers and keys of random numbers."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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
    if isinstance(value, jax.core.Tracer):
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
            return key
        raise ValueError(f"{name} must be one key, got {key.shape} of them: take one, {name}[0]")
    if array and key.dtype == jnp.uint32 and key.ndim == 1:
        return jnp.asarray(key)
    given = f"an array of shape {key.shape}" if array else repr(key)
    raise ValueError(f"{name} must be one key such as jax.random.key(0), got {given}")

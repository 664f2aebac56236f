"""Checks of the options of fits."""

import math
import operator
from typing import Any

import equinox as eqx
import jax

import memory


def checked_number(name: str, value: Any, least: int | float) -> Any:
    """The value as a number of the type of `least`.

    Raises:
        ValueError: when it is smaller, NaN, or an integer is asked for and it is none.
    """
    whole = isinstance(least, int)
    try:
        number = operator.index(value) if whole else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= least:
        kind = "an integer" if whole else "a number"
        raise ValueError(f"{name} must be {kind} from {least} on, got {value!r}.")
    return number


def checked_key(key: Any) -> jax.Array:
    """A key of random numbers; ``jax.random.key(0)`` for None."""
    return jax.random.key(0) if key is None else memory.checked_key(key)


def number(name: str, default: Any, least: int | float) -> Any:
    """A field of a module that holds a checked number."""
    return eqx.field(
        default=default,
        converter=lambda value: checked_number(name, value, least),
        static=True,
        kw_only=True,
    )


def key_field() -> Any:
    """A field of a module that holds a key of random numbers."""
    return eqx.field(default=None, converter=checked_key, kw_only=True)

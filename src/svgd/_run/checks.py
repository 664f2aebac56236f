"""What a run refuses before it starts, or warns of."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


class RunWarning(UserWarning):
    """A run does what it was asked for, which is unlikely to be what was meant, or it ended early."""


def refuse_traced(what: str, values: PyTree) -> None:
    """Raises TypeError on traced values, where decisions are made from them."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)):
        raise TypeError(
            f"{what} decides from values, and jit, vmap or grad hide them: call it outside of these, and "
            "transform `step` on the state that it gives, which holds for `init` with whiten="
            '"particles", None or a factor as well'
        )


def refuse_half(dtype: np.dtype) -> None:
    """Raises ValueError on particles of 16 bits: a late step is smaller than their rounding."""
    if jax.numpy.finfo(dtype).bits < 32:
        raise ValueError(
            f"particles have dtype {dtype}, in which steps are lost to rounding: cast them to float32"
        )


def says_stop(answer: Any) -> bool:
    """Whether what a callback returned ends the run.

    Raises:
        ValueError: on an array, which may be true and false.
    """
    shape = getattr(answer, "shape", ())
    if shape != ():
        raise ValueError(
            f"a callback must return True to end the run, or False or None, got an array of shape {shape}"
        )
    return bool(answer)

"""Brute-force twins of sampling, on dense arrays: check anything against them.

Each sampled value is multilinear in the vectors, so its t-th derivative along ``x + s p`` is exactly

    t! sum over all sets S of t modes of: the tensor contracted with p_j for j in S, else with x_j.

That is what these functions add up: no recursion, no jets, no ranks.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array


def probe_derivatives(
    dense: ArrayLike, ww: Sequence[ArrayLike], pp: Sequence[ArrayLike] | None, order: int
) -> tuple[Array, ...]:
    """Derivatives 0 .. K of the probes of a dense array.

    Args:
        dense: d axes ``N_i``.
        ww: points, d arrays ``(*W, N_i)``.
        pp: directions of the same shapes. None at order 0.
        order: K.

    Returns:
        d arrays ``(K + 1, *W, N_i)``.

    Cost: contractions of the dense array, and ``2^(d - 1)`` values for each output.
    """
    dense = jnp.asarray(dense)
    return tuple(_derivatives(dense, ww, pp, order, free) for free in range(dense.ndim))


def apply_derivatives(
    dense: ArrayLike, ww: Sequence[ArrayLike], pp: Sequence[ArrayLike] | None, order: int
) -> Array:
    """Derivatives 0 .. K, ``(K + 1, *W)``, of a dense array contracted in all modes."""
    return _derivatives(jnp.asarray(dense), ww, pp, order, None)


def entries_derivatives(
    dense: ArrayLike, index: Any, pp: Sequence[ArrayLike] | None, order: int
) -> Array:
    """Derivatives 0 .. K, ``(K + 1, *W)``, at entries: `index` is ``(d, *W)`` integers."""
    dense = jnp.asarray(dense)
    ww = [
        jnp.eye(size, dtype=dense.dtype)[jnp.asarray(row)]
        for row, size in zip(index, dense.shape, strict=True)
    ]
    return _derivatives(dense, ww, pp, order, None)


def _derivatives(dense, ww, pp, order, free):
    modes = [mode for mode in range(dense.ndim) if mode != free]
    points = [jnp.asarray(w, dense.dtype) for w in ww]
    batch = points[0].shape[:-1]
    if pp is None:
        choices = [points[mode][None] for mode in modes]
    else:
        choices = [jnp.stack([points[mode], jnp.asarray(pp[mode], dense.dtype)]) for mode in modes]
    # One axis of length 2 for each contracted mode says whether it met its point or its direction.
    mode_letters, choice_letters = "abcdefghijklm"[: dense.ndim], "ABCDEFGHIJKLM"[: len(modes)]
    terms = [
        mode_letters,
        *(c + "..." + mode_letters[m] for c, m in zip(choice_letters, modes, strict=True)),
    ]
    out = choice_letters + "..." + ("" if free is None else mode_letters[free])
    values = jnp.einsum(",".join(terms) + "->" + out, dense, *choices, precision="highest")
    shape = batch if free is None else (*batch, dense.shape[free])
    directions = np.indices([len(choice) for choice in choices]).sum(axis=0).reshape(-1)
    values = values.reshape(directions.size, *values.shape[len(modes) :])
    rows = [
        jnp.sum(values[directions == t], axis=0) * float(math.factorial(t))
        for t in range(order + 1)
    ]
    return jnp.broadcast_to(
        jnp.stack(rows).reshape(order + 1, *[1] * (len(shape) - rows[0].ndim), *rows[0].shape),
        (order + 1, *shape),
    )

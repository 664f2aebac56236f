"""Brute-force twins of sampling, on dense arrays: check anything against them.

Each sampled value is multilinear in the vectors, so its t-th derivative along ``x + s p`` is exactly

    t! sum over all sets S of t modes of: the tensor contracted with p_j for j in S, else with x_j.

That is what these functions add up, set by set: no recursion, no jets, no ranks.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
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

    Cost: ``d sum_t binomial(d - 1, t)`` contractions of the dense array.
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
    ww = [jnp.asarray(w, dense.dtype) for w in ww]
    batch = ww[0].shape[:-1]
    value = _contracted(dense, ww, free)
    rows = [value]
    for t in range(1, order + 1):
        row = jnp.zeros_like(value)
        for chosen in itertools.combinations(modes, t):
            vectors = [
                jnp.asarray(pp[mode], dense.dtype) if mode in chosen else ww[mode]
                for mode in range(dense.ndim)
            ]
            row = row + _contracted(dense, vectors, free)
        rows.append(row * float(math.factorial(t)))
    return jnp.stack(rows).reshape(order + 1, *batch, *value.shape[len(batch) :])


def _contracted(dense, vectors, free):
    """Contract all modes but `free` (None: all) with one vector each: ``(*W,)`` or ``(*W, N)``."""
    letters = "abcdefghijklmnopqrstuvw"[: dense.ndim]
    terms, operands = [letters], [dense]
    for mode, vector in enumerate(vectors):
        if mode != free:
            terms.append("..." + letters[mode])
            operands.append(vector)
    out = "..." + ("" if free is None else letters[free])
    result = jnp.einsum(",".join(terms) + "->" + out, *operands, precision="highest")
    batch = vectors[0].shape[:-1]
    if dense.ndim == 1 and free is not None:
        result = jnp.broadcast_to(result, (*batch, *result.shape))
    return result

"""Truncated Taylor series of vectors: products with affine series, their adjoints, outer products.

A jet is an array ``(w, T, r)``: for each of w samples the Taylor coefficients 0 .. T - 1 (not the
derivatives: no factorials) of a vector of length r. Products of jets are convolutions cut at T, and
their adjoints correlations. An affine jet ``x + s p`` is its one or two coefficients; multiplying by
it is written as *rows*: ``rows(jet) . blocks``, where block 0 belongs to x and block 1 to p.
"""

import functools
import math
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def parameter_unit(count: int) -> float:
    """Unit of the parameter s in which coefficients and derivatives of all orders are of one size.

    ``K!`` leaves float32 at K = 35, and coefficients fall as fast. In a unit near the K-th root of
    K!, a power of two, both stay within range of each other. Up to order 16 the unit is 1.
    """
    order = count - 1
    return 1.0 if order <= 16 else 2.0 ** round(math.lgamma(order + 1) / order / math.log(2))


def factorials(count: int, dtype) -> np.ndarray:
    """What makes derivatives of Taylor coefficients: ``t!``, in units of the parameter."""
    unit = parameter_unit(count)
    logs = [math.lgamma(t + 1) - t * math.log(unit) for t in range(count)]
    exact = [float(math.factorial(t)) for t in range(count)] if unit == 1 else map(math.exp, logs)
    return np.array(list(exact), dtype)


def raised(jet: Float[Array, "w t r"]) -> Float[Array, "w t r"]:
    """The jet times s, cut: coefficient t becomes coefficient t + 1."""
    return jnp.pad(jet[:, :-1], ((0, 0), (1, 0), (0, 0)))


def lowered(jet: Float[Array, "w t r"]) -> Float[Array, "w t r"]:
    """Adjoint of `raised`: coefficient t + 1 becomes coefficient t."""
    return jnp.pad(jet[:, 1:], ((0, 0), (0, 1), (0, 0)))


def affine_rows(jet: Float[Array, "w t r"], degree: int) -> Float[Array, "w t k r"]:
    """Rows that multiply `jet` by an affine jet of this degree (0 or 1); k = degree + 1."""
    return jnp.stack([jet, raised(jet)][: degree + 1], axis=2)


def affine_adjoint_rows(jet: Float[Array, "w t r"], degree: int) -> Float[Array, "w t k r"]:
    """Rows of the adjoint: they correlate `jet` with an affine jet."""
    return jnp.stack([jet, lowered(jet)][: degree + 1], axis=2)


def correlation_rows(jet: Float[Array, "w t r"]) -> Float[Array, "w s t r"]:
    """Rows that correlate a jet of blocks with `jet`: ``[s, t] = jet[t - s]``, zero for t < s."""
    count = jet.shape[1]
    return jnp.stack(
        [jnp.pad(jet[:, : count - s], ((0, 0), (s, 0), (0, 0))) for s in range(count)], axis=1
    )


def _sum(terms: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, terms)


def _outer(a, b):
    return a[:, :, None] * b[:, None, :]


def convolution_outer(
    a: Float[Array, "w t m"], b: Float[Array, "w t n"]
) -> list[Float[Array, "w m n"]]:
    """Coefficients of the outer product of two jets: ``sum_q a[q] b[t - q]^T`` for each t.

    Multiply-adds: ``T (T + 1) / 2 . m n`` a sample, a streaming loop without intermediates.
    """
    return [_sum(_outer(a[:, q], b[:, t - q]) for q in range(t + 1)) for t in range(a.shape[1])]


def correlation_outer(
    a: Float[Array, "w t m"], b: Float[Array, "w t n"], degree: int
) -> list[Float[Array, "w m n"]]:
    """``sum_q a[q] b[q + u]^T`` for u up to `degree` (0 or 1).

    With ``b`` the adjoint of ``a times affine``, these are what multiplies the adjoints of the
    affine jet's coefficients.
    """
    count = a.shape[1]
    return [_sum(_outer(a[:, q], b[:, q + u]) for q in range(count - u)) for u in range(degree + 1)]

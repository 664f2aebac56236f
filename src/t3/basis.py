"""Functions between grid points: bases for the modes of a tensor.

A basis holds nodes on an interval and one function for each, 1 at its node and 0 at the others. A
tensor whose entries are a function's values at the nodes of d bases is then an interpolant:

    bases = [t3.basis.chebyshev(12, 0.0, 1.0)] * 3
    found = t3.cross(t3.basis.at_nodes(function, bases), (12,) * 3, tolerance=1e-6, key=key)
    values = found.x.apply(t3.basis.vectors(bases, points))            # anywhere, points (m, 3)
    integral = found.x.apply([basis.weights for basis in bases])
    moment = found.x.apply([bases[0].weights * bases[0].nodes, bases[1].weights, bases[2].weights])
"""

import abc
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

__all__ = ["Basis", "at_nodes", "chebyshev", "fourier", "legendre", "linear", "vectors"]


class Basis(eqx.Module):
    """Functions on an interval, each 1 at its own node and 0 at the others.

    Attributes:
        size: how many, n.
        low, high: ends of the interval.
    """

    size: eqx.AbstractVar[int]
    low: eqx.AbstractVar[float]
    high: eqx.AbstractVar[float]

    @property
    @abc.abstractmethod
    def nodes(self) -> Float[np.ndarray, " n"]:
        """Points of the entries, in float64 on the host."""

    @property
    @abc.abstractmethod
    def weights(self) -> Float[np.ndarray, " n"]:
        """Integrals of the functions over the interval: the weights of a quadrature at the nodes."""

    def __call__(self, points: Any) -> Float[Array, "*W n"]:
        """The functions at points of any shape ``(*W,)``, in their dtype; differentiable.

        Points beyond the interval extrapolate, which polynomials do badly.
        """
        return self.derivative(points, 0)

    def derivative(self, points: Any, order: int = 1) -> Float[Array, "*W n"]:
        """Derivatives of the functions at points ``(*W,)``."""
        return _evaluate(self, _floating(points), _order(order))

    @abc.abstractmethod
    def _values(self, points: Array, order: int) -> Array:
        """Derivatives of an order at checked points."""


@eqx.filter_jit
def _evaluate(basis: Basis, points: Array, order: int) -> Array:
    return basis._values(points, order)


def chebyshev(size: int, low: float, high: float) -> Basis:
    """Polynomials through Chebyshev points, the ends among them: for smooth functions.

    The quadrature (Clenshaw and Curtis) is exact for polynomials of degree n - 1.
    """
    return _Chebyshev(*_interval(size, low, high))


def legendre(size: int, low: float, high: float) -> Basis:
    """Polynomials through the nodes of Gauss and Legendre, none of them an end.

    The quadrature is exact for polynomials of degree 2 n - 1: for integrals of smooth functions.
    """
    return _Legendre(*_interval(size, low, high))


def fourier(size: int, low: float, high: float) -> Basis:
    """Waves through n equidistant nodes, for functions of period ``high - low``.

    An odd n is better: of the highest wave of an even one, only the cosine is there.
    """
    return _Fourier(*_interval(size, low, high))


def linear(size: int, low: float, high: float) -> Basis:
    """Hat functions on n equidistant nodes, the ends among them: for functions with kinks."""
    return _Linear(*_interval(size, low, high, least=2))


def at_nodes(function: Callable[[Any], Any], bases: Sequence[Basis]) -> Callable[[np.ndarray], Any]:
    """A function of indices, for `t3.cross`, from a function of points.

    Args:
        function: maps points ``(m, d)``, float64 on the host, to m values; in NumPy or JAX.
            ``jax.vmap`` makes it of a function of one point.
        bases: one for each mode.

    Returns:
        What maps indices ``(d, m)`` to the values at the nodes.
    """
    nodes = [basis.nodes for basis in bases]

    def entries(index):
        return function(np.stack([line[row] for line, row in zip(nodes, index, strict=True)], -1))

    return entries


def vectors(bases: Sequence[Basis], points: Any) -> tuple[Array, ...]:
    """What ``x.apply`` takes to evaluate a tensor at points between the nodes.

    Args:
        bases: one for each mode.
        points: ``(*W, d)``.

    Returns:
        d arrays ``(*W, N_i)``.

    Raises:
        ValueError: points of another number of coordinates.
    """
    if np.shape(points)[-1:] != (len(bases),):
        raise ValueError(
            f"{len(bases)} bases take points whose last axis has as many coordinates, got an array "
            f"of shape {np.shape(points)}."
        )
    points = _floating(points)
    return tuple(basis(points[..., i]) for i, basis in enumerate(bases))


class _Spectral(Basis):
    """Sums of orthogonal functions on ``[-1, 1]``; a matrix turns values at nodes to sums."""

    size: int = eqx.field(static=True)
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    @property
    def nodes(self) -> np.ndarray:
        return self.low + (self.high - self.low) * (self._tables()[0] + 1) / 2

    @property
    def weights(self) -> np.ndarray:
        return (self.high - self.low) / 2 * self._tables()[1]

    def _values(self, points: Array, order: int) -> Array:
        scale = 2 / (self.high - self.low)
        # From the nearer end, so that points close to it keep their digits.
        steps = scale * (points - self.low) - 1
        matrix = self._tables()[2]
        for _ in range(order):
            matrix = scale * self._differentiated(matrix)
        functions = self._functions(jnp.asarray(steps, points.dtype))
        return jnp.matmul(
            functions, jnp.asarray(matrix, points.dtype), precision=jax.lax.Precision.HIGHEST
        )

    @abc.abstractmethod
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """On ``[-1, 1]``: nodes, weights, and the sums ``(n, n)``, one column for each node."""

    @abc.abstractmethod
    def _functions(self, steps: Array) -> Array:
        """The orthogonal functions at points of ``[-1, 1]``, on a last axis."""

    @abc.abstractmethod
    def _differentiated(self, sums: np.ndarray) -> np.ndarray:
        """Sums that are the derivatives."""


class _Chebyshev(_Spectral):
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _chebyshev_tables(self.size)

    def _functions(self, steps: Array) -> Array:
        # T_{k+1} = 2 x T_k - T_{k-1}
        return _recurrence(steps, [(2.0, 1.0)] * self.size)

    def _differentiated(self, sums: np.ndarray) -> np.ndarray:
        return _padded(np.polynomial.chebyshev.chebder(sums), self.size)


class _Legendre(_Spectral):
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _legendre_tables(self.size)

    def _functions(self, steps: Array) -> Array:
        # (k + 1) P_{k+1} = (2 k + 1) x P_k - k P_{k-1}
        orders = range(1, self.size + 1)
        return _recurrence(steps, [((2 * k + 1) / (k + 1), k / (k + 1)) for k in orders])

    def _differentiated(self, sums: np.ndarray) -> np.ndarray:
        return _padded(np.polynomial.legendre.legder(sums), self.size)


class _Fourier(_Spectral):
    """Constant, cosines, sines, each by rising frequency."""

    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _fourier_tables(self.size)

    def _functions(self, steps: Array) -> Array:
        waves = jnp.arange(1, self.size // 2 + 1, dtype=jnp.int32).astype(steps.dtype)
        angles = jnp.asarray(np.pi, steps.dtype) * jnp.multiply.outer(steps, waves)
        sines = jnp.sin(angles)[..., : (self.size - 1) // 2]
        ones = jnp.ones((*steps.shape, 1), steps.dtype)
        return jnp.concatenate([ones, jnp.cos(angles), sines], axis=-1)

    def _differentiated(self, sums: np.ndarray) -> np.ndarray:
        found = np.zeros_like(sums)
        count = (self.size - 1) // 2
        waves = np.pi * np.arange(1, count + 1)[:, None]
        found[1 : count + 1] = waves * sums[self.size - count :]
        found[self.size - count :] = -waves * sums[1 : count + 1]
        # The highest cosine of an even number: its sine is zero at all nodes.
        return found


class _Linear(Basis):
    size: int = eqx.field(static=True)
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    @property
    def nodes(self) -> np.ndarray:
        return np.linspace(self.low, self.high, self.size)

    @property
    def weights(self) -> np.ndarray:
        weights = np.full(self.size, (self.high - self.low) / (self.size - 1))
        weights[[0, -1]] /= 2
        return weights

    def _values(self, points: Array, order: int) -> Array:
        rate = (self.size - 1) / (self.high - self.low)
        steps = (points - self.low) * rate
        left = jnp.clip(jnp.floor(jax.lax.stop_gradient(steps)), 0, self.size - 2)
        beyond = (steps - left)[..., None]
        one = jnp.ones_like(beyond)
        before, after = [(1 - beyond, beyond), (-one * rate, one * rate), (0 * one, 0 * one)][
            min(order, 2)
        ]
        place = jax.nn.one_hot(left.astype(jnp.int32), self.size - 1, dtype=points.dtype)
        pad = [(0, 0)] * points.ndim
        return jnp.pad(before * place, [*pad, (0, 1)]) + jnp.pad(after * place, [*pad, (1, 0)])


def _recurrence(steps: Array, factors: Sequence[tuple[float, float]]) -> Array:
    """Polynomials ``p_{k+1} = a_k x p_k - b_k p_{k-1}`` from 1 and x on, on a last axis."""
    pairs = jnp.asarray(np.asarray(factors), steps.dtype)

    def step(pair, factor):
        before, now = pair
        return (now, factor[0] * steps * now - factor[1] * before), before

    _, found = jax.lax.scan(step, (jnp.ones_like(steps), steps), pairs)
    return jnp.moveaxis(found, 0, -1)


@functools.lru_cache(maxsize=64)
def _chebyshev_tables(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if size == 1:
        return np.zeros(1), np.full(1, 2.0), np.ones((1, 1))
    angles = np.pi * np.arange(size)[::-1] / (size - 1)
    sums = 2 / (size - 1) * np.cos(np.arange(size)[:, None] * angles)
    sums[[0, -1]] /= 2
    sums[:, [0, -1]] /= 2
    # The integral of T_k over [-1, 1] is 2 / (1 - k^2) for even k.
    degrees = np.arange(0, size, 2)
    weights = (2 / (1 - degrees**2.0)) @ sums[::2]
    # sin instead of cos: exactly symmetric.
    nodes = np.sin(np.pi * np.arange(1 - size, size, 2) / (2 * (size - 1)))
    return nodes, weights, sums


@functools.lru_cache(maxsize=64)
def _legendre_tables(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(size)
    values = np.polynomial.legendre.legvander(nodes, size - 1)
    return nodes, weights, (np.arange(size)[:, None] + 0.5) * values.T * weights


@functools.lru_cache(maxsize=64)
def _fourier_tables(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes = 2 * np.arange(size) / size - 1
    angles = np.pi * np.arange(1, size // 2 + 1)[:, None] * nodes
    sums = np.concatenate(
        [np.ones((1, size)), 2 * np.cos(angles), 2 * np.sin(angles[: (size - 1) // 2])]
    )
    if size % 2 == 0:
        sums[size // 2] /= 2
    return nodes, np.full(size, 2 / size), sums / size


def _padded(sums: np.ndarray, size: int) -> np.ndarray:
    return np.pad(sums, [(0, size - len(sums)), (0, 0)])


def _floating(points: Any) -> Array:
    points = jnp.asarray(points)
    return points if jnp.issubdtype(points.dtype, jnp.floating) else points.astype(float)


def _order(order: int) -> int:
    try:
        order = operator.index(order)
    except TypeError:
        order = -1
    if order < 0:
        raise ValueError("The order of a derivative must be an integer from 0 on.")
    return order


def _interval(size: int, low: float, high: float, least: int = 1) -> tuple[int, float, float]:
    """Checked size and ends.

    Raises:
        ValueError: fewer than `least` nodes, or ends that are no interval.
    """
    try:
        size = operator.index(size)
    except TypeError:
        raise ValueError(f"A basis needs an integer number of nodes, got {size!r}.") from None
    low, high = float(low), float(high)
    if size < least:
        raise ValueError(f"This basis needs at least {least} nodes, got {size}.")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"A basis needs an interval with low < high, got {low} and {high}.")
    return size, low, high

"""Units in which a fit computes: those of its data, so that squares stay within the range of a type.

Factors are powers of two, so that going there and back changes no digit.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t3._fit.problem import LeastSquares
from t3._tensor.format import TuckerTensorTrain


class Units(NamedTuple):
    """What the numbers of a fit are multiples of.

    Attributes:
        data: of samples, data and tensors.
        weight: of the weights.
    """

    data: float = 1.0
    weight: float = 1.0

    @staticmethod
    def of(problem: LeastSquares, weight: float = 1.0) -> "Units":
        """Units in which the largest weighted datum is between 1/2 and 1; 1 where all are zero.

        Args:
            problem: whose weights are in units already.
            weight: that unit.
        """
        return Units(power_of_two(float(_largest(problem))), weight)

    def problem_in(self, problem: LeastSquares) -> LeastSquares:
        """The same least squares of a tensor that is in these units."""
        if self.data == 1:
            return problem
        return problem.with_data(
            jax.tree.map(lambda a: _times(a, 1 / self.data), problem.measured.data)
        )

    def tensor_in(self, x: TuckerTensorTrain) -> TuckerTensorTrain:
        return x if self.data == 1 else _scaled(x, 1 / self.data)

    def tensor_out(self, x: TuckerTensorTrain) -> TuckerTensorTrain:
        """In the user's units; a tensor that shares no memory with `x`."""
        x = jax.tree.map(lambda core: jnp.array(core, copy=True), x)
        return x if self.data == 1 else _scaled(x, self.data)

    def objective_out(self, value: float) -> float:
        return value * self.weight**2 * self.data**2

    def gradient_out(self, norm: float) -> float:
        """Of the gradient in the tensor itself."""
        return norm * self.weight**2 * self.data


def power_of_two(size: float) -> float:
    """The least one above a size; 1 for sizes that are zero or not finite."""
    return 2.0 ** math.frexp(size)[1] if math.isfinite(size) and size > 0 else 1.0


def in_units(weight: Any) -> tuple[Any, float]:
    """Weights as multiples of a power of two near the largest, and that power.

    Raises:
        ValueError: no weight but zero.
    """
    if weight is None:
        return None, 1.0
    weight = np.asarray(weight, np.float64)
    largest = float(np.max(np.abs(weight), initial=0))
    if largest == 0:
        raise ValueError(
            f"weight must leave something of the residual, got {weight}: every factor is zero."
        )
    unit = power_of_two(largest)
    return weight / unit, unit


def _scaled(x: TuckerTensorTrain, factor: float) -> TuckerTensorTrain:
    # In two steps, of which neither leaves the range of a type that holds start and end.
    half = 2.0 ** (math.frexp(factor)[1] // 2)
    return x * half * (factor / half)


def _times(a: Any, factor: float) -> Any:
    half = 2.0 ** (math.frexp(factor)[1] // 2)
    return a * jnp.asarray(half, a.dtype) * jnp.asarray(factor / half, a.dtype)


@jax.jit
def _largest(problem: LeastSquares) -> Any:
    return problem.largest()

"""What a fit minimises."""

from typing import Any

import equinox as eqx

from t3._fit.problem import LeastSquares, checked_ridge, least_squares
from t3._fit.split import Split
from t3._fit.units import Units, in_units
from t3._sampling.kinds import Sampling
from t3._tensor.format import TuckerTensorTrain


class Objective(eqx.Module):
    """What is minimised: ``1/2 |w (samples(x) - data)|^2 + regularizer/2 |x|^2``.

    Attributes:
        weight: factors w of the residual: a number, ``(K + 1,)`` by order, for probes ``(d, K + 1)``
            by mode and order, or ``(d,)`` by mode where there are no orders.
        regularizer: Tikhonov factor, not negative.
        chunk_size: probes worked on at a time; None for all, ``"auto"`` from the sizes. The result
            depends on it by rounding only.
    """

    weight: Any = None
    regularizer: Any = None
    chunk_size: Any = eqx.field(default="auto", static=True)

    def problem(
        self,
        x: TuckerTensorTrain,
        sampling: Sampling,
        data: Any,
        split: Split | None,
        batch_size: int | None = None,
    ) -> tuple[LeastSquares, Units]:
        """The least squares of tensors like `x`, in units of the data."""
        weight, unit = in_units(self.weight)
        ridge = self.regularizer
        if ridge is not None:
            ridge = checked_ridge(ridge) / unit**2
        options = {"chunk_size": self.chunk_size, "batch_size": batch_size, "split": split}
        problem = least_squares(x, sampling, data, weight=weight, ridge=ridge, **options)
        units = Units.of(problem, unit)
        return units.problem_in(problem), units

"""What a fit minimises."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from t3._fit.problem import LeastSquares, checked_ridge, least_squares
from t3._fit.split import Split
from t3._fit.units import Units, in_units
from t3._sampling.sampling import Sampling
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
        options = {"chunk_size": self.chunk_size, "batch_size": batch_size, "mesh": split}
        problem = least_squares(x, sampling, data, weight=weight, ridge=ridge, **options)
        units = Units.of(problem, unit)
        if units.data == 1 and _vanished(problem, data):
            raise ValueError(
                f"data of this size are zero in {np.dtype(problem.dtype).name}, which samples are "
                "compared in: multiply them by a factor, or start from a float64 tensor."
            )
        return units.problem_in(problem), units


def _vanished(problem: LeastSquares, data: Any) -> bool:
    """Whether data that were not zero became so."""
    leaves = jax.tree.leaves(data)
    known = all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)
    kept = any(bool(jnp.any(a != 0)) for a in jax.tree.leaves(problem.measured.data))
    return known and not kept and any(np.any(np.asarray(leaf) != 0) for leaf in leaves)

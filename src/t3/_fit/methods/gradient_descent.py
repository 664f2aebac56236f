"""Steepest descent with a line search."""

from typing import Any

import equinox as eqx
from jaxtyping import Array

from t3._fit.checks import number
from t3._fit.geometry import Geometry, geometry_field
from t3._fit.methods.line_search import Moved, backtrack, cauchy_length
from t3._fit.methods.method import Look, Method, Step, flat_enough
from t3._fit.outcome import StopReason
from t3._fit.problem import LeastSquares
from t3._fit.record import Record
from t3._tensor.format import TuckerTensorTrain


class GradientDescent(Method):
    """Steepest descent: from the length that is best along the linearised samples, backtrack.

    Attributes:
        max_steps: at most.
        gradient_tolerance: stop when the gradient norm is below this times that of the start.
        geometry: ``"manifold"`` or ``"corewise"``.

    Cost of a step: a gradient, one product with the Gauss-Newton matrix, and a pass over the probes
    for each trial.
    """

    max_steps: int = number("max_steps", 500, 0)
    gradient_tolerance: float = number("gradient_tolerance", 1e-8, 0.0)
    geometry: Geometry = geometry_field("manifold")

    def stop(self, history: tuple[Record, ...]) -> StopReason | None:
        return flat_enough(history, self.gradient_tolerance)

    def step(
        self, problem: LeastSquares, x: TuckerTensorTrain, memory: Any, look: Look, step: int
    ) -> Step:
        moved = descent_step(problem, self.geometry, x, look)
        detail = {"length": moved.length}
        return Step(moved.x, memory, detail, accepted=moved.accepted, promised=moved.promised)


@eqx.filter_jit
def descent_step(
    problem: LeastSquares, geometry: Geometry, x: TuckerTensorTrain, look: Look
) -> Moved:
    slope: Array = -(look.gradient_norm**2)
    length = cauchy_length(problem, geometry, look)
    return backtrack(problem, geometry, x, look, -look.gradient, slope, length)

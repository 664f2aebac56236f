"""Stochastic descent by minibatch steps of Cauchy length."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from t3._fit.checks import key_field, number
from t3._fit.geometry import Geometry, geometry_field
from t3._fit.methods.line_search import cauchy_length
from t3._fit.methods.method import Look
from t3._fit.methods.minibatch import Minibatch
from t3._fit.outcome import StopReason
from t3._fit.problem import LeastSquares
from t3._fit.record import Record
from t3._tensor.format import TuckerTensorTrain


class MCSGD(Minibatch):
    """Minibatch steps of the Cauchy length ``|g|^2 / |J g|^2``: nothing to tune.

    Ends where the objective, smoothed over two looks, is higher than four looks ago.

    Attributes:
        max_steps: at most.
        batch_size: probes of a minibatch, at most all.
        check_every: steps between looks at all data.
        key: for the minibatches. Default ``jax.random.key(0)``.
        geometry: ``"manifold"`` or ``"corewise"``.

    Source: Alger, Christierson, Chen and Ghattas (2026), arXiv:2603.21141, section 5.3.2.
    """

    max_steps: int = number("max_steps", 3000, 0)
    batch_size: int = number("batch_size", 256, 1)
    check_every: int = number("check_every", 25, 1)
    key: Array = key_field()
    geometry: Geometry = geometry_field("manifold")

    def stop(self, history: tuple[Record, ...]) -> StopReason | None:
        if len(history) <= 5:
            return None
        smooth = [history[1].objective]
        for record in history[2:]:
            smooth.append(smooth[-1] + (1 - math.exp(-0.5)) * (record.objective - smooth[-1]))
        return StopReason.PLATEAU if smooth[-1] > smooth[-5] else None

    def batch_step(
        self, problem: LeastSquares, x: TuckerTensorTrain, memory: Any, index: Array
    ) -> tuple[TuckerTensorTrain, Any]:
        return cauchy_step(problem, self.geometry, x, index), memory


@eqx.filter_jit
def cauchy_step(
    problem: LeastSquares, geometry: Geometry, x: TuckerTensorTrain, index: Array
) -> TuckerTensorTrain:
    problem = problem.batch(index)
    frame = geometry.frame(x)
    value, gradient = problem.value_and_gradient(geometry, x, frame)
    look = Look(value, frame, gradient, jnp.sqrt(gradient.dot(gradient)))
    return geometry.step(x, frame, -gradient * cauchy_length(problem, geometry, look))

"""What a fit asks of a method."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._fit.geometry import Geometry
from t3._fit.outcome import StopReason
from t3._fit.problem import LeastSquares
from t3._fit.record import Record
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.format import TuckerTensorTrain


class Look(NamedTuple):
    """The problem seen from one point.

    Attributes:
        objective: there.
        frame, gradient, gradient_norm: there, in the geometry of the method; None where a method
            leaves them out.
    """

    objective: Array
    frame: T3Frame | None = None
    gradient: T3Variations | None = None
    gradient_norm: Array | None = None


class Step(NamedTuple):
    """What a method did.

    Attributes:
        x: the new point, or the old one.
        memory: of the method, for its next step; arrays only.
        detail: numbers worth a place in the record.
        count: steps taken.
        accepted: False where no way down was found. The fit ends there.
        promised: then, the fall of the objective that was hoped for; below its rounding, the point
            counts as an answer.
    """

    x: TuckerTensorTrain
    memory: Any = ()
    detail: dict[str, Any] | None = None
    count: int = 1
    accepted: Any = True
    promised: Any = 0.0


class Method(eqx.Module):
    """A way to fit: options, what it remembers between steps, and a step.

    Attributes:
        max_steps: where it ends at the latest.
        geometry: how its points move.

    The loop of a fit calls `look`, `stop` and `step` on the host, in turns; what is heavy in them
    should be compiled. Objective and gradient are in units in which the data are about 1.
    """

    max_steps: eqx.AbstractVar[int]
    geometry: eqx.AbstractVar[Geometry]

    def init(self, problem: LeastSquares, x: TuckerTensorTrain) -> Any:
        """What is remembered before the first step: arrays only, so that it can be saved."""
        return ()

    def look(self, problem: LeastSquares, x: TuckerTensorTrain, step: int) -> Look:
        """Objective and gradient at a point. Cost: one pass over the probes."""
        return look(problem, self.geometry, x)

    def stop(self, history: tuple[Record, ...]) -> StopReason | None:
        """Whether the last record is reason enough to end."""
        return None

    @abc.abstractmethod
    def step(
        self, problem: LeastSquares, x: TuckerTensorTrain, memory: Any, look: Look, step: int
    ) -> Step:
        """From a point on to the next one that is looked at.

        Args:
            problem: what is fitted.
            x: the point.
            memory: of the step before, or of `init`.
            look: what `look` saw there.
            step: steps taken before.
        """


@eqx.filter_jit
def look(problem: LeastSquares, geometry: Geometry, x: TuckerTensorTrain) -> Look:
    """Frame, objective and gradient at a point. Cost: one pass over the probes."""
    frame = geometry.frame(x)
    value, gradient = problem.value_and_gradient(geometry, x, frame)
    return Look(value, frame, gradient, jnp.sqrt(gradient.dot(gradient)))


@jax.jit
def objective(problem: LeastSquares, x: TuckerTensorTrain) -> Array:
    """Of a point, without its gradient."""
    return problem.objective(x)


def flat_enough(history: tuple[Record, ...], tolerance: float) -> StopReason | None:
    """Whether the gradient has fallen by a factor since the first record."""
    first, last = history[0].gradient_norm, history[-1].gradient_norm
    if first is None or last is None or last > tolerance * first:
        return None
    return StopReason.GRADIENT_TOLERANCE

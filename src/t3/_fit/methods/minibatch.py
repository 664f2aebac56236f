"""Steps of minibatches, with a look at all data now and then."""

import abc
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from t3._fit.methods import method as _method
from t3._fit.methods.method import Look, Method, Step
from t3._fit.problem import LeastSquares
from t3._tensor.format import TuckerTensorTrain


class Minibatch(Method):
    """What methods of minibatches share.

    Attributes:
        batch_size: probes of a minibatch, at most all.
        check_every: steps between looks at all data.
        key: for the draws, which depend on nothing but the key and the step.
    """

    batch_size: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]
    key: eqx.AbstractVar[Array]

    @abc.abstractmethod
    def batch_step(
        self, problem: LeastSquares, x: TuckerTensorTrain, memory: Any, index: Array
    ) -> tuple[TuckerTensorTrain, Any]:
        """One step by the probes at some positions."""

    def look(self, problem: LeastSquares, x: TuckerTensorTrain, step: int) -> Look:
        # The gradient of all data is of interest at the start only: it may be zero there.
        if step == 0:
            return super().look(problem, x, step)
        return Look(_method.objective(problem, x))

    def step(
        self, problem: LeastSquares, x: TuckerTensorTrain, memory: Any, look: Look, step: int
    ) -> Step:
        count = min(self.check_every, self.max_steps - step)
        size = min(self.batch_size, problem.measured.probes.count)
        for i in range(step, step + count):
            index = self._draw(problem, jax.random.fold_in(self.key, i), size)
            x, memory = self.batch_step(problem, x, memory, index)
        return Step(x, memory, count=count)

    def _draw(self, problem, key, size):
        count = problem.measured.probes.count
        if problem.split is not None:
            return problem.split.draw(key, count, size)
        return jax.random.choice(key, count, (size,), replace=False)

"""Lengths of steps: best along the linearised samples, and backtracking."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from t3._fit.geometry import Geometry
from t3._fit.methods.method import Look
from t3._fit.problem import LeastSquares
from t3._tangent.frame import T3Variations
from t3._tensor.format import TuckerTensorTrain


class Moved(NamedTuple):
    """Outcome of a line search.

    Attributes:
        x: the accepted point, or the old one.
        objective: there.
        length: last step length tried.
        accepted: whether the objective fell as asked.
        promised: what the first length tried would have gained, were the objective linear.
    """

    x: TuckerTensorTrain
    objective: Array
    length: Array
    accepted: Array
    promised: Array


def backtrack(
    problem: LeastSquares,
    geometry: Geometry,
    x: TuckerTensorTrain,
    look: Look,
    direction: T3Variations,
    slope: Array,
    length: Array,
    *,
    decrease: float = 1e-4,
    max_trials: int = 40,
) -> Moved:
    """Armijo backtracking from `length`: halve until the objective falls by ``decrease * slope``.

    Cost: a pass over the probes for each trial.
    """

    def trial(length):
        y = geometry.step(x, look.frame, direction * length)
        return y, problem.objective(y)

    def enough(value, length):
        return value <= look.objective + decrease * length * slope

    def unfinished(state):
        _, value, length, trials = state
        return ~enough(value, length) & (trials < max_trials)

    def step(state):
        _, _, length, trials = state
        y, value = trial(length / 2)
        return y, value, length / 2, trials + 1

    # The loop takes the first trial too, from twice the length, so that it is compiled once.
    promised = -slope * length
    infinite = jnp.full((), jnp.inf, look.objective.dtype)
    y, value, length, _ = lax.while_loop(
        unfinished, step, (x, infinite, length * 2, jnp.zeros((), jnp.int32))
    )
    accepted = enough(value, length)
    keep = lambda a, b: jnp.where(accepted, a, b)  # noqa: E731
    x, value = jax.tree.map(keep, y, x), keep(value, look.objective)
    return Moved(x, value, length, accepted, promised)


def cauchy_length(problem: LeastSquares, geometry: Geometry, look: Look) -> Array:
    """``|g|^2 / |J g|^2``: the best length down the gradient, were the samples linear.

    Cost: one product with the Gauss-Newton matrix.
    """
    product = problem.gauss_newton_product(geometry, look.frame, look.gradient)
    curvature = look.gradient.dot(product)
    positive = curvature > 0
    square = look.gradient_norm**2
    return jnp.where(positive, square / jnp.where(positive, curvature, 1), 0)

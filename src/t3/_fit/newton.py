"""Gauss-Newton with truncated conjugate gradients, and the line search that all fits share."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from t3._fit import geometry as geometries
from t3._fit.problem import LeastSquares
from t3._tangent.frame import T3Frame, T3Variations
from t3._tensor.format import TuckerTensorTrain


class Local(NamedTuple):
    """The problem seen from one point.

    Attributes:
        frame: at the point.
        objective, gradient, gradient_norm: there.
    """

    frame: T3Frame
    objective: Array
    gradient: T3Variations
    gradient_norm: Array


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


@eqx.filter_jit
def look(problem: LeastSquares, geometry: geometries.Geometry, x: TuckerTensorTrain) -> Local:
    """Frame, objective and gradient at a point. Cost: one pass over the probes."""
    frame = geometries.frame_at(geometry, x)
    value, gradient = problem.value_and_gradient(geometry, x, frame)
    return Local(frame, value, gradient, jnp.sqrt(gradient.dot(gradient)))


@eqx.filter_jit
def newton_step(
    problem: LeastSquares,
    geometry: geometries.Geometry,
    x: TuckerTensorTrain,
    local: Local,
    reference: Array,
    *,
    max_cg_steps: int,
    forcing_power: float,
    resident: bool = False,
) -> tuple[Moved, dict[str, Array]]:
    """One inexact Gauss-Newton step.

    The system is solved to ``min(1/2, (|g| / reference)^forcing_power)`` of the gradient norm.

    Args:
        problem, geometry: what is fitted, and how points move.
        x: the point.
        local: what `look` sees there.
        reference: gradient norm of the start.
        max_cg_steps: bound on the products with the Gauss-Newton matrix.
        forcing_power: larger solves more accurately.
        resident: keep the sweeps of the frame between the products.

    Returns:
        The new point, and what is worth recording. Cost: a pass over the probes for each product
        and for each trial point.
    """
    norm = local.gradient_norm
    forcing = jnp.minimum(jnp.asarray(0.5, norm.dtype), (norm / reference) ** forcing_power)
    sweeps = problem.sweeps(local.frame) if resident else None
    direction, products, curvature_ok = conjugate_gradients(
        lambda v: problem.gauss_newton_product(geometry, local.frame, v, sweeps),
        -local.gradient,
        forcing * norm,
        max_cg_steps,
    )
    slope = local.gradient.dot(direction)
    downhill = jnp.isfinite(slope) & (slope < 0)
    choose = lambda a, b: jnp.where(downhill, a, b)  # noqa: E731
    direction = jax.tree.map(choose, direction, -local.gradient)
    slope = jnp.where(downhill, slope, -(norm**2))
    moved = line_search(problem, geometry, x, local, direction, slope, jnp.ones((), norm.dtype))
    record = {"products": products, "length": moved.length, "curvature_ok": curvature_ok}
    return moved, record


def conjugate_gradients(
    product: Any, rhs: T3Variations, tolerance: Array, max_steps: int
) -> tuple[T3Variations, Array, Array]:
    """Solve ``product(p) = rhs`` from zero until the residual norm is at most `tolerance`.

    Stops at a direction without positive curvature and keeps what it has.

    Returns:
        The solution, the number of products, and whether all curvatures were positive.
    """

    def unfinished(state):
        _, _, _, square, steps, ok = state
        return (square > tolerance**2) & (steps < max_steps) & ok

    def step(state):
        p, r, s, square, steps, _ = state
        hs = product(s)
        curvature = s.dot(hs)
        ok = curvature > 0
        length = jnp.where(ok, square / jnp.where(ok, curvature, 1), 0)
        p, r = p + s * length, r - hs * length
        new = r.dot(r)
        return p, r, r + s * (new / square), jnp.where(ok, new, square), steps + 1, ok

    zero = jax.tree.map(jnp.zeros_like, rhs)
    start = (zero, rhs, rhs, rhs.dot(rhs), jnp.zeros((), jnp.int32), jnp.asarray(True))
    p, _, _, _, steps, ok = lax.while_loop(unfinished, step, start)
    return p, steps, ok


def line_search(
    problem: LeastSquares,
    geometry: geometries.Geometry,
    x: TuckerTensorTrain,
    local: Local,
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
        y = geometries.step(geometry, x, local.frame, direction * length)
        return y, problem.objective(y)

    def enough(value, length):
        return value <= local.objective + decrease * length * slope

    def unfinished(state):
        _, value, length, trials = state
        return ~enough(value, length) & (trials < max_trials)

    def step(state):
        _, _, length, trials = state
        y, value = trial(length / 2)
        return y, value, length / 2, trials + 1

    # The loop takes the first trial too, from twice the length, so that it is compiled once.
    promised = -slope * length
    infinite = jnp.full((), jnp.inf, local.objective.dtype)
    y, value, length, _ = lax.while_loop(
        unfinished, step, (x, infinite, length * 2, jnp.zeros((), jnp.int32))
    )
    accepted = enough(value, length)
    keep = lambda a, b: jnp.where(accepted, a, b)  # noqa: E731
    x, value = jax.tree.map(keep, y, x), keep(value, local.objective)
    return Moved(x, value, length, accepted, promised)

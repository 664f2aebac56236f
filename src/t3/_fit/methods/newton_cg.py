"""Gauss-Newton with truncated conjugate gradients and a line search."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from t3._fit.checks import number
from t3._fit.geometry import Geometry, geometry_field
from t3._fit.methods.line_search import Moved, backtrack
from t3._fit.methods.method import Look, Method, Step, flat_enough
from t3._fit.outcome import StopReason
from t3._fit.problem import LeastSquares
from t3._fit.record import Record
from t3._tangent.frame import T3Variations
from t3._tensor.format import TuckerTensorTrain


class NewtonCG(Method):
    """Gauss-Newton steps by truncated conjugate gradients, with a line search.

    Attributes:
        max_steps: of Gauss-Newton.
        gradient_tolerance: stop when the gradient norm is below this times that of the start.
        max_cg_steps: Gauss-Newton products in one step.
        forcing_power: a step is solved to ``min(1/2, (|g| / |g_0|)^forcing_power)`` of the gradient
            norm; larger solves more accurately.
        geometry: ``"manifold"`` or ``"corewise"``.

    Cost of a step: a pass over the probes (forward and transpose) for the gradient and for every
    product, a forward pass for every trial point.
    """

    max_steps: int = number("max_steps", 50, 0)
    gradient_tolerance: float = number("gradient_tolerance", 1e-8, 0.0)
    max_cg_steps: int = number("max_cg_steps", 200, 1)
    forcing_power: float = number("forcing_power", 0.5, 0.0)
    geometry: Geometry = geometry_field("manifold")

    def stop(self, history: tuple[Record, ...]) -> StopReason | None:
        return flat_enough(history, self.gradient_tolerance)

    def init(self, problem: LeastSquares, x: TuckerTensorTrain) -> Array:
        # Gradient norm of the first point, to which steps are solved in proportion.
        return jnp.zeros((), problem.dtype)

    def step(
        self, problem: LeastSquares, x: TuckerTensorTrain, memory: Array, look: Look, step: int
    ) -> Step:
        reference = memory if step else look.gradient_norm
        moved, detail = newton_step(
            problem,
            self.geometry,
            x,
            look,
            reference,
            max_cg_steps=self.max_cg_steps,
            forcing_power=self.forcing_power,
        )
        return Step(moved.x, reference, detail, accepted=moved.accepted, promised=moved.promised)


@eqx.filter_jit
def newton_step(
    problem: LeastSquares,
    geometry: Geometry,
    x: TuckerTensorTrain,
    look: Look,
    reference: Array,
    *,
    max_cg_steps: int,
    forcing_power: float,
) -> tuple[Moved, dict[str, Array]]:
    """One inexact Gauss-Newton step, and what is worth recording.

    Args:
        problem, geometry: what is fitted, and how points move.
        x: the point.
        look: what was seen there.
        reference: gradient norm of the start.
        max_cg_steps, forcing_power: as in `NewtonCG`.
    """
    norm = look.gradient_norm
    forcing = jnp.minimum(jnp.asarray(0.5, norm.dtype), (norm / reference) ** forcing_power)
    direction, products, curvature_ok = conjugate_gradients(
        lambda v: problem.gauss_newton_product(geometry, look.frame, v),
        -look.gradient,
        forcing * norm,
        max_cg_steps,
    )
    slope = look.gradient.dot(direction)
    downhill = jnp.isfinite(slope) & (slope < 0)
    choose = lambda a, b: jnp.where(downhill, a, b)  # noqa: E731
    direction = jax.tree.map(choose, direction, -look.gradient)
    slope = jnp.where(downhill, slope, -(norm**2))
    moved = backtrack(problem, geometry, x, look, direction, slope, jnp.ones((), norm.dtype))
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

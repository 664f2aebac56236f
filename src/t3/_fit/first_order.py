"""First-order steps: gradient descent with a line search, Cauchy steps, and optax."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._fit import geometry as geometries
from t3._fit.newton import Local, Moved, line_search
from t3._fit.problem import LeastSquares
from t3._tensor.format import TuckerTensorTrain


@eqx.filter_jit
def descent_step(
    problem: LeastSquares,
    geometry: geometries.Geometry,
    x: TuckerTensorTrain,
    local: Local,
) -> tuple[Moved, dict[str, Array]]:
    """Steepest descent: from the length that is best along the linearised samples, backtrack.

    Cost: one product with the Gauss-Newton matrix, and a pass over the probes for each trial.
    """
    slope = -(local.gradient_norm**2)
    length = _cauchy_length(problem, geometry, local)
    moved = line_search(problem, geometry, x, local, -local.gradient, slope, length)
    return moved, {"length": moved.length}


@eqx.filter_jit
def cauchy_step(
    problem: LeastSquares,
    geometry: geometries.Geometry,
    x: TuckerTensorTrain,
    index: Array,
) -> TuckerTensorTrain:
    """Stochastic descent by the Cauchy length ``|g|^2 / |J g|^2`` of a minibatch: nothing to tune.

    Source: Alger, Christierson, Chen and Ghattas (2026), arXiv:2603.21141, section 5.3.2.
    """
    problem = problem.batch(index)
    frame = geometries.frame_at(geometry, x)
    value, gradient = problem.value_and_gradient(geometry, x, frame)
    local = Local(frame, value, gradient, jnp.sqrt(gradient.dot(gradient)))
    length = _cauchy_length(problem, geometry, local)
    return geometries.step(geometry, x, frame, -gradient * length)


@eqx.filter_jit
def optax_step(
    problem: LeastSquares, optimizer: Any, x: TuckerTensorTrain, state: Any, index: Array
) -> tuple[TuckerTensorTrain, Any]:
    """One update of the cores by an optax transformation, from the gradient of a minibatch."""
    problem = problem.batch(index)
    frame = geometries.frame_at("corewise", x)
    _, gradient = problem.value_and_gradient("corewise", x, frame)
    slope = TuckerTensorTrain(gradient.tucker, gradient.tt, x.ranks)
    with jax.numpy_dtype_promotion("standard"):  # optax counts on it
        updates, state = optimizer.update(slope, state, x)
    return jax.tree.map(jnp.add, x, updates), state


def _cauchy_length(problem: LeastSquares, geometry, local: Local) -> Array:
    product = problem.gauss_newton_product(geometry, local.frame, local.gradient)
    curvature = local.gradient.dot(product)
    positive = curvature > 0
    square = local.gradient_norm**2
    return jnp.where(positive, square / jnp.where(positive, curvature, 1), 0)

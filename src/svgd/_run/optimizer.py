"""The optax transformation that turns directions into steps, and the one that a run takes itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree


def _default_learning_rate(count):
    return 0.2 / jnp.sqrt(1 + count / 50)


# With Adam's own b2 = 0.999, the large scores of a poor start would brake a particle for a thousand
# steps: of b2 = 0.9, 0.99 and 0.999 only the first follows a posterior whose scale it does not know.
# A direction far below eps moves a particle in proportion: with Adam's own 1e-8 particles on both
# sides of where the direction vanishes pile up there, in stripes finer than the kernel can spread.
DEFAULT_OPTIMIZER = optax.adam(_default_learning_rate, b2=0.9, eps=0.01)


def check_optimizer(optimizer: optax.GradientTransformation, points: Float[Array, "n d"]) -> None:
    """Raises TypeError where an optimiser needs more than a direction, such as values of a loss."""
    if optimizer is DEFAULT_OPTIMIZER:
        return

    def update(points):
        return optimizer.update(points, optimizer.init(points), points)

    try:
        with jax.numpy_dtype_promotion("standard"):
            jax.eval_shape(update, jax.ShapeDtypeStruct(points.shape, points.dtype))
    except TypeError as error:
        raise TypeError(
            "the optimizer needs more than a direction to step along: there is no loss whose values "
            "could guide a line search. Take one of first order, such as optax.sgd, optax.adam or "
            "optax.adagrad"
        ) from error


def check_its_state(
    optimizer: optax.GradientTransformation, points: Float[Array, "n d"], opt_state: PyTree
) -> None:
    """Raises ValueError where an optimiser's state is not one of this optimiser for these points."""
    with jax.numpy_dtype_promotion("standard"):
        wanted = jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct(points.shape, points.dtype))
    if _form(wanted) != _form(opt_state):
        raise ValueError(
            f"the state to go on from holds an optimiser's state of another kind, {_named(opt_state)}, "
            f"than this sampler's, {_named(wanted)}: give SVGD the optimizer that the run began with, "
            "or begin a run from state.particles"
        )


def _form(opt_state: PyTree) -> PyTree:
    shapes = jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), opt_state)
    return jax.tree.structure(opt_state), jax.tree.leaves(shapes)


def _named(opt_state: PyTree) -> str:
    return eqx.tree_pformat(opt_state, width=1000)

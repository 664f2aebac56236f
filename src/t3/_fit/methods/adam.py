"""Optax on the cores, by default Adam."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from t3._fit.checks import checked_number, key_field, number
from t3._fit.geometry import Corewise, Geometry, geometry_field
from t3._fit.methods.minibatch import Minibatch
from t3._fit.problem import LeastSquares
from t3._tensor.format import TuckerTensorTrain


class Adam(Minibatch):
    """Minibatch steps of an optax transformation on the cores.

    Attributes:
        max_steps: taken.
        learning_rate: of adam, decays to zero by a cosine; default 1e-2. None with an `optimizer`.
        decay_steps: over how many steps, whatever the limit of this run.
        optimizer: an optax transformation of gradients in place of adam.
        batch_size: probes of a minibatch, at most all.
        check_every: steps between looks at all data.
        key: for the minibatches. Default ``jax.random.key(0)``.
        geometry: ``"corewise"``; single entries of cores have no meaning on the manifold.
    """

    max_steps: int = number("max_steps", 2000, 0)
    learning_rate: Any = eqx.field(default=None, static=True, kw_only=True)
    decay_steps: int = number("decay_steps", 2000, 1)
    optimizer: Any = eqx.field(default=None, static=True, kw_only=True)
    batch_size: int = number("batch_size", 256, 1)
    check_every: int = number("check_every", 25, 1)
    key: Array = key_field()
    geometry: Geometry = geometry_field("corewise")

    def __check_init__(self):
        if not isinstance(self.geometry, Corewise):
            raise ValueError(
                "adam scales single core entries, which has no meaning on the manifold: use "
                'geometry="corewise", or method="mc_sgd".'
            )
        if self.learning_rate is not None:
            checked_number("learning_rate", self.learning_rate, 0.0)
            if self.optimizer is not None:
                raise ValueError(
                    "learning_rate= is of adam; an optimizer= brings its own: give one of them."
                )
        if self.optimizer is not None and not (
            callable(getattr(self.optimizer, "init", None))
            and callable(getattr(self.optimizer, "update", None))
        ):
            raise ValueError(
                "optimizer must be an optax transformation such as optax.sgd(0.1), got "
                f"{self.optimizer!r}."
            )

    @property
    def transformation(self) -> Any:
        """The one in force."""
        if self.optimizer is not None:
            return self.optimizer
        return _adam(1e-2 if self.learning_rate is None else self.learning_rate, self.decay_steps)

    def init(self, problem: LeastSquares, x: TuckerTensorTrain) -> Any:
        with jax.numpy_dtype_promotion("standard"):  # optax counts on it
            state = self.transformation.init(x)
            try:
                jax.eval_shape(self.transformation.update, x, state, x)
            except TypeError as error:
                raise ValueError(
                    "optimizer must step by gradients of minibatches alone; this one asks for more "
                    f"({error}), as optax.lbfgs and other line searches do. For a line search take "
                    'method="newton_cg" or "gradient_descent".'
                ) from None
        return state

    def batch_step(
        self, problem: LeastSquares, x: TuckerTensorTrain, memory: Any, index: Array
    ) -> tuple[TuckerTensorTrain, Any]:
        return optax_step(problem, self.transformation, x, memory, index)


@functools.lru_cache(maxsize=64)
def _adam(learning_rate: float, decay_steps: int) -> Any:
    """Made once for each pair: a compiled step is found again by the object."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, decay_steps))


@eqx.filter_jit
def optax_step(
    problem: LeastSquares, optimizer: Any, x: TuckerTensorTrain, state: Any, index: Array
) -> tuple[TuckerTensorTrain, Any]:
    """One update of the cores by an optax transformation, from the gradient of a minibatch."""
    problem, geometry = problem.batch(index), Corewise()
    _, gradient = problem.value_and_gradient(geometry, x, geometry.frame(x))
    slope = TuckerTensorTrain(gradient.tucker, gradient.tt, x.ranks)
    with jax.numpy_dtype_promotion("standard"):  # optax counts on it
        updates, state = optimizer.update(slope, state, x)
    return jax.tree.map(jnp.add, x, updates), state

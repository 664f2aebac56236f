"""Starts made from the data: the best tensor of rank one that several seeds lead to, then grown.

The residual of zero, brought back by the transpose of the samples, is a tensor that resembles the one
measured. Its best rank-one part is found by the higher-order power method: each mode's vector becomes
what is left of that tensor when the vectors of all others are contracted with it. Gauss-Newton steps
then fit the data.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t3._fit.checks import key_field
from t3._fit.directions import grown
from t3._fit.geometry import Corewise
from t3._fit.methods import NewtonCG
from t3._fit.methods.method import objective as _objective
from t3._fit.objective import Objective
from t3._fit.problem import LeastSquares
from t3._fit.split import Split
from t3._sampling.probes import common_dtype
from t3._sampling.sampling import Sampling
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.ranks import minimal_ranks
from t3._tensor.rounding import rank_pair

_POWER_STEPS = 10
_NEWTON_STEPS = 5
_SEEDS = 4
# A start that leaves more of the data unexplained asks for another seed.
_POOR = 0.9


class FromData(eqx.Module):
    """A start made from the data.

    Attributes:
        ranks: Tucker and train ranks, cut to what the shape makes possible. They are doubled up to
            these from 1 on, by the directions that the residual asks for. Default: all 1.
        shape: mode sizes. Default: those of the vectors or directions; for plain entries the smallest
            that hold the indices.
        key: for the seeds. Default ``jax.random.key(0)``.

    Cost: some tens of gradients at rank one; for larger ranks a few Gauss-Newton steps each time that
    they double.
    """

    ranks: Any = eqx.field(default=None, static=True)
    shape: Any = eqx.field(default=None, static=True)
    key: Array = key_field()

    def tensor(
        self, sampling: Sampling, data: Any, objective: Objective, split: Split | None
    ) -> TuckerTensorTrain:
        """A tensor near the data, from which to fit them.

        Raises:
            ValueError: no data, ranks of the wrong number.
        """
        shape = sampled_shape(sampling) if self.shape is None else tuple(self.shape)
        d = len(shape)
        if data is None:
            raise ValueError("A fit needs data in the shapes that its sampling gives, got None.")
        dtype = common_dtype(jnp.zeros((), float), data)
        x = TuckerTensorTrain.zeros(shape, (1,) * d, (1,) * (d + 1), dtype=dtype)
        ranks = (x.tucker_ranks, x.tt_ranks)
        if self.ranks is not None:
            ranks = minimal_ranks(shape, *rank_pair(self.ranks, shape, "a start"))
        problem, units = objective.problem(x, sampling, data, split)
        y = self._of_rank_one(problem, x, sampling)
        while (y.tucker_ranks, y.tt_ranks) != ranks:
            double = [
                tuple(min(2 * h, w) for h, w in zip(have, want, strict=True))
                for have, want in zip((y.tucker_ranks, y.tt_ranks), ranks, strict=True)
            ]
            y = grown(problem, y, growth=max(ranks[1]), ranks=minimal_ranks(shape, *double))
            problem, _ = objective.problem(y, sampling, data, split)
            y = _fitted(problem, y)
        return units.tensor_out(y)

    def _of_rank_one(
        self, problem: LeastSquares, x: TuckerTensorTrain, sampling: Sampling
    ) -> TuckerTensorTrain:
        """The best of some seeds, or the first that explains a part of the data."""
        tries, zero = [], float(_objective(problem, x))
        for seed in range(_SEEDS):
            # Entries of one sign are common: a constant is their first try.
            if seed == 0 and sampling.indexed:
                vectors = tuple(jnp.ones(n, x.dtype) for n in x.shape)
            else:
                keys = jax.random.split(jax.random.fold_in(self.key, seed), x.ndim)
                vectors = tuple(
                    jax.random.normal(k, (n,), x.dtype) for k, n in zip(keys, x.shape, strict=True)
                )
            y = _fitted(problem, _power(problem, x, vectors))
            tries.append((float(_objective(problem, y)), seed, y))
            if tries[-1][0] < _POOR**2 * zero:
                break
        return min(tries)[2]


def sampled_shape(sampling: Sampling) -> tuple[int, ...]:
    """Mode sizes that samples go with: the least where entries leave them open."""
    vectors = [f for f in sampling.families[int(sampling.indexed) :] if f is not None]
    if vectors:
        return tuple(int(np.shape(v)[-1]) for v in vectors[0])
    return tuple(int(jnp.max(jnp.asarray(row))) + 1 for row in sampling.families[0])


def _power(problem: LeastSquares, x: TuckerTensorTrain, vectors: tuple) -> TuckerTensorTrain:
    """The rank-one tensor that the power method leads to, of the best length."""
    for _ in range(_POWER_STEPS):
        vectors = _power_step(problem, x, vectors)
    unit = _outer(vectors)
    value, at_one = float(_objective(problem, x)), float(_objective(problem, unit))
    # A parabola along the line from zero: slope from the two values and the curvature.
    opposite = float(_objective(problem, unit * -1))
    slope, curvature = (at_one - opposite) / 2, at_one + opposite - 2 * value
    return unit * (-slope / curvature if curvature > 0 else 0.0)


@eqx.filter_jit
def _power_step(problem: LeastSquares, x: TuckerTensorTrain, vectors: tuple) -> tuple:
    y, geometry = _outer(vectors), Corewise()
    _, gradient = problem.value_and_gradient(geometry, x, geometry.frame(y))
    lengths = [jnp.linalg.norm(row) for row in gradient.tucker]
    return tuple(
        jnp.where(length > 0, -row[0] / jnp.where(length > 0, length, 1), vector)
        for row, length, vector in zip(gradient.tucker, lengths, vectors, strict=True)
    )


def _outer(vectors: tuple) -> TuckerTensorTrain:
    unit = [v / jnp.linalg.norm(v) for v in vectors]
    return TuckerTensorTrain(
        tuple(v[None] for v in unit), tuple(jnp.ones((1, 1, 1), v.dtype) for v in unit)
    )


def _fitted(problem: LeastSquares, x: TuckerTensorTrain) -> TuckerTensorTrain:
    """A few Gauss-Newton steps on."""
    method = NewtonCG(max_cg_steps=50)
    x = method.geometry.start(x)
    memory = method.init(problem, x)
    for i in range(_NEWTON_STEPS):
        look = method.look(problem, x, i)
        if not float(look.gradient_norm) > 0:
            break
        step = method.step(problem, x, memory, look, i)
        if not bool(step.accepted):
            break
        x, memory = step.x, step.memory
    return x

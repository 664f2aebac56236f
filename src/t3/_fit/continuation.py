"""Fits with ranks that grow for as long as held-out data say so."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._fit.checks import checked_number
from t3._fit.fit import fit
from t3._fit.result import FitResult
from t3._sampling.kinds import Sampling
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import pad_to
from t3._tensor.ranks import minimal_ranks
from t3._tensor.rounding import rank_pair


class Continuation(NamedTuple):
    """Outcome of `t3.fit_growing_ranks`.

    Attributes:
        x: the fit of least validation error.
        stages: one `FitResult` for each set of ranks tried.
        errors: least validation error of each stage, relative.
        reason: why it stopped.
    """

    x: TuckerTensorTrain
    stages: tuple[FitResult, ...]
    errors: tuple[float, ...]
    reason: str


def enlarge(
    x: TuckerTensorTrain,
    ranks: tuple[tuple[int, ...], tuple[int, ...]],
    key: Array,
    *,
    size: float = 1e-2,
) -> TuckerTensorTrain:
    """The tensor with room for larger ranks, filled with small random directions.

    Args:
        x: any.
        ranks: Tucker and train ranks; cut to what the shape makes possible, kept where smaller than
            those of `x`.
        key: for the directions.
        size: their size relative to the cores beside them.

    Returns:
        A tensor that differs from `x` by about `size` of its norm.

    Raises:
        ValueError: ranks of wrong number.
    """
    ranks = rank_pair(ranks, x.shape, "enlarge")
    packed, x = x.is_packed, x.orthogonalize().unpack()
    tucker = tuple(max(pair) for pair in zip(x.tucker_ranks, ranks[0], strict=True))
    train = tuple(max(pair) for pair in zip(x.tt_ranks, ranks[1], strict=True))
    tucker, train = minimal_ranks(x.shape, tucker, train)
    keys = iter(jax.random.split(key, 2 * x.ndim))

    def grown(core, shape, scale):
        fresh = jax.random.normal(next(keys), shape, core.dtype) * scale
        old = pad_to(jnp.ones(core.shape, bool), shape)
        return jnp.where(old, pad_to(core, shape), fresh)

    tucker_cores, tt_cores = [], []
    for i, (b, g) in enumerate(zip(x.tucker_cores, x.tt_cores, strict=True)):
        unit = jnp.ones((), b.dtype) / jnp.sqrt(jnp.asarray(b.shape[1], b.dtype))
        tucker_cores.append(grown(b, (tucker[i], b.shape[1]), unit))
        spread = jnp.sqrt(jnp.mean(g**2)) * jnp.asarray(size, g.dtype)
        tt_cores.append(grown(g, (train[i], tucker[i], train[i + 1]), spread))
    y = TuckerTensorTrain(tuple(tucker_cores), tuple(tt_cores))
    return y.pack() if packed else y


def fit_growing_ranks(
    x0: TuckerTensorTrain,
    sampling: Sampling,
    data: Any,
    *,
    validation: tuple[Sampling, Any],
    max_ranks: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    growth: int = 1,
    improvement: float = 0.01,
    max_stages: int = 10,
    size: float = 1e-2,
    key: Array | None = None,
    **options: Any,
) -> Continuation:
    """Fit, enlarge the ranks, fit again, until held-out data stop getting better.

    Args:
        x0: start of the first stage.
        sampling, data: as for `t3.fit`.
        validation: held-out ``(sampling, data)``; each stage gives its point of least error there.
        max_ranks: ranks not to exceed.
        growth: added to every rank between stages.
        improvement: a stage must lower the validation error by this share of it.
        max_stages: how often to fit.
        size: of the random directions, see `enlarge`.
        key: for them. Default ``jax.random.key(0)``.
        **options: of `t3.fit`. `patience` defaults to 3 there.

    Returns:
        `Continuation` with the best tensor and all stages.

    Raises:
        ValueError: no validation, no stages, no growth, max_ranks of wrong number.

    Cost: one compilation and one fit for each stage.
    """
    if validation is None:
        raise ValueError("Ranks grow while a validation error falls: give validation=.")
    max_stages = checked_number("max_stages", max_stages, 1)
    growth = checked_number("growth", growth, 1)
    if max_ranks is not None:
        max_ranks = rank_pair(max_ranks, x0.shape, "max_ranks")
    key = jax.random.key(0) if key is None else key
    options = {"patience": 3, **options}
    x, stages, errors = x0, [], []
    reason = "stage limit reached"
    best = 0
    for stage in range(max_stages):
        result = fit(x, sampling, data, validation=validation, **options)
        stages.append(result)
        errors.append(min(record.validation for record in result.history))
        if stage and errors[-1] > (1 - improvement) * errors[best]:
            best = stage if errors[-1] < errors[best] else best
            reason = "validation error stopped falling"
            break
        best = stage
        have = (result.x.tucker_ranks, result.x.tt_ranks)
        want = tuple(tuple(rank + growth for rank in side) for side in have)
        if max_ranks is not None:
            want = tuple(
                tuple(min(pair) for pair in zip(w, m, strict=True))
                for w, m in zip(want, max_ranks, strict=True)
            )
        x = enlarge(result.x, want, jax.random.fold_in(key, stage), size=size)
        if (x.tucker_ranks, x.tt_ranks) == have:
            reason = "largest ranks reached"
            break
    return Continuation(stages[best].x, tuple(stages), tuple(errors), reason)

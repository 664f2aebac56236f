"""Room for larger ranks, filled at random."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import pad_to
from t3._tensor.ranks import minimal_ranks
from t3._tensor.rounding import rank_pair


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

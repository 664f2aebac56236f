"""Truncation of a Tucker tensor train to smaller ranks, with its error bound."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t3._tensor.bonds import (
    BondSVD,
    Orthogonal,
    before_modes,
    bond_grams,
    bond_svds,
    down_parts,
    inner_bonds,
    kept,
    oblique_family,
    orthogonal_parts,
)
from t3._tensor.packing import Cores, is_packed, map_modes, per_mode
from t3._tensor.ranks import T3Ranks, minimal_ranks, spread


class Spectrum(NamedTuple):
    """Orthogonal bases and singular value decompositions of every bond of a tensor train."""

    parts: Orthogonal
    down_factor: Cores
    train: BondSVD
    tucker: BondSVD


@partial(jax.jit, static_argnums=2)
def spectrum(tucker_cores: Cores, tt_cores: Cores, sizes: T3Ranks) -> Spectrum:
    """All singular values of all unfoldings of a tensor train whose end bonds are 1.

    Cost: one QR sweep from each end and 2 d small singular value decompositions.
    """
    parts = orthogonal_parts(tucker_cores, tt_cores, sizes)
    _, down_factor = down_parts(tt_cores, parts.left_in, parts.right_in, sizes)
    return Spectrum(
        parts,
        down_factor,
        bond_svds(parts.left_out, parts.right_in),
        bond_svds(parts.up_factor, down_factor),
    )


@partial(jax.jit, static_argnums=(2, 3))
def truncate(
    tucker_cores: Cores,
    tt_cores: Cores,
    sizes: T3Ranks,
    ranks: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Cores, Cores]:
    """Cores of the tensor projected onto its leading singular subspace at every bond.

    Each bond is cut by an orthogonal projection computed from the tensor itself, so the squared
    errors of the single cuts bound the squared error of all together.

    Args:
        tucker_cores, tt_cores, sizes: a tensor train whose end bonds are 1.
        ranks: new Tucker and train ranks, not above ``minimal_ranks`` of `sizes`.

    Returns:
        Tucker and train cores. Directions whose singular value is zero to rounding are zero.

    The derivative is the exact one of the projected tensor: see `oblique`. It exists where every
    last kept singular value is larger than the first dropped one.
    """

    @jax.custom_jvp
    def run(cores):
        tucker, train = cores
        return _truncated(spectrum(tucker, train, sizes), ranks, is_packed(train))

    @run.defjvp
    def run_jvp(primals, tangents):
        tucker, train = primals[0]
        parts = spectrum(tucker, train, sizes)
        value = _truncated(parts, ranks, is_packed(train))
        smooth = lambda cores: _truncated_smooth(cores[0], cores[1], parts, ranks)  # noqa: E731
        return value, jax.jvp(smooth, primals, tangents)[1]

    return run((tucker_cores, tt_cores))


def _truncated(parts: Spectrum, ranks, packed: bool) -> tuple[Cores, Cores]:
    tucker_ranks, tt_ranks = ranks
    orthogonal = parts.parts
    columns_tucker = max(tucker_ranks) if packed else None
    columns_train = max(tt_ranks) if packed else None

    def basis(u, s, rank, columns):
        return (u * kept(s, rank))[:, : rank if columns is None else columns]

    def families(svd, ranks, columns):
        return map_modes(
            lambda u, s, rank: basis(u, s, rank, columns), svd.u, svd.s, per_mode(ranks, svd.u)
        )

    one = jnp.ones((1, 1), orthogonal.up[0].dtype)
    tucker_basis = families(parts.tucker, tucker_ranks, columns_tucker)
    after = inner_bonds(families(parts.train, tt_ranks[1:], columns_train), one)
    before = before_modes(after)
    return (
        map_modes(lambda t, u: t.T @ u, tucker_basis, orthogonal.up),
        map_modes(
            lambda l, t, g, r: jnp.einsum("ak,anb,nm,bl->kml", l, g, t, r, optimize="optimal"),
            before,
            tucker_basis,
            orthogonal.left,
            after,
        ),
    )


def _truncated_smooth(tucker_cores, tt_cores, parts: Spectrum, ranks) -> tuple[Cores, Cores]:
    """The same cores as products of the given ones with bond matrices, for their derivative."""
    tucker_ranks, tt_ranks = ranks
    packed = is_packed(tt_cores)
    grams = bond_grams(tucker_cores, tt_cores)
    orthogonal = parts.parts

    def cut(pair, ranks):
        sizes = per_mode(ranks, pair[0])
        columns = max(ranks) if packed else None
        trim = lambda m, rank: m[:, : rank if columns is None else columns]  # noqa: E731
        return tuple(map_modes(trim, m, sizes) for m in pair)

    tucker_in, tucker_out = cut(
        oblique_family(
            grams.tucker_left,
            grams.tucker_right,
            orthogonal.up_factor,
            parts.down_factor,
            parts.tucker,
            per_mode(tucker_ranks, tucker_cores),
        ),
        tucker_ranks,
    )
    after, before = cut(
        oblique_family(
            grams.left,
            grams.right,
            orthogonal.left_out,
            orthogonal.right_in,
            parts.train,
            per_mode(tt_ranks[1:], tucker_cores),
        ),
        tt_ranks[1:],
    )
    one = jnp.ones((1, 1), tt_cores[0].dtype)
    after = inner_bonds(after, one)
    before = before_modes(before)
    return (
        map_modes(lambda z, b: z.T @ b, tucker_in, tucker_cores),
        map_modes(
            lambda l, t, g, r: jnp.einsum("ak,anb,nm,bl->kml", l, g, t, r, optimize="optimal"),
            before,
            tucker_out,
            tt_cores,
            after,
        ),
    )


def singular_values(
    tucker_cores: Cores, tt_cores: Cores, sizes: T3Ranks
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Singular values of the Tucker unfoldings (d) and of the inner train unfoldings (d - 1)."""
    parts = spectrum(tucker_cores, tt_cores, sizes)
    return tuple(parts.tucker.s), tuple(parts.train.s)[:-1]


def ranks_within(
    values: tuple[tuple[Array, ...], tuple[Array, ...]], tolerance: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Smallest ranks whose dropped singular values stay within ``tolerance`` times the norm.

    Args:
        values: from `singular_values`; concrete.
        tolerance: relative to the Frobenius norm, shared evenly between the 2 d - 1 bonds. Zero
            drops what is zero to rounding.

    Raises:
        ValueError: under a transformation, where the values are not known, where they are not
            finite, and for a tolerance that is no number from 0 on.
    """
    if not (isinstance(tolerance, jax.core.Tracer) or tolerance >= 0):
        raise ValueError(f"tolerance must be a relative error from 0 on, got {tolerance}.")
    if any(isinstance(s, jax.core.Tracer) for s in (*values[0], *values[1])):
        raise ValueError(
            "Ranks chosen by a tolerance depend on the values of the tensor and are not known under "
            "jit, vmap or grad. Choose them outside (x.ranks_within(tolerance)) and pass ranks=."
        )
    tucker, train = ([np.asarray(s, np.float64) for s in side] for side in values)
    if not all(np.isfinite(s).all() for s in (*tucker, *train)):
        raise ValueError(
            "The tensor has singular values that are NaN or infinite: its entries are, or its norm "
            f"overflows {values[0][0].dtype} (x.log_norm() tells; scale it down)."
        )
    eps = float(jnp.finfo(values[0][0].dtype).eps)
    share = (tolerance**2) / max(len(tucker) + len(train), 1)

    def rank(s):
        total = s / s[0] if s[0] > 0 else s
        dropped = np.cumsum(total[::-1] ** 2)[::-1]
        keep = (dropped > share * dropped[0]) & (total > len(s) * eps)
        return max(int(keep.sum()), 1)

    return tuple(rank(s) for s in tucker), (1, *(rank(s) for s in train), 1)


def truncation_bound(
    values: tuple[tuple[Array, ...], tuple[Array, ...]],
    ranks: tuple[tuple[int, ...], tuple[int, ...]],
) -> Float[Array, ""]:
    """Bound on the Frobenius error of `truncate`: root of the sum of all dropped squares."""
    tucker, train = values
    dropped = [jnp.sum(s[n:] ** 2) for s, n in zip(tucker, ranks[0], strict=True)]
    dropped += [jnp.sum(s[r:] ** 2) for s, r in zip(train, ranks[1][1:-1], strict=True)]
    return jnp.sqrt(sum(dropped))


def rank_pair(ranks, shape: tuple[int, ...], what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``(tucker_ranks, tt_ranks)`` as plain tuples; one number stands for all ranks of its side.

    Raises:
        ValueError: anything but one integer, or a pair of integers or sequences of d and d + 1.
    """
    d = len(shape)
    try:
        tucker, tt = (ranks, ranks) if isinstance(ranks, int | np.integer) else ranks
        tucker, tt = spread(tucker, d), spread(tt, d + 1)
    except (TypeError, ValueError):
        tucker = tt = ()
    if len(tucker) != d or len(tt) != d + 1:
        raise ValueError(
            f"{what} needs one rank or ranks=(tucker_ranks, tt_ranks), {d} and {d + 1} integers for "
            f"shape {shape}, got {ranks}."
        )
    return tucker, tt


def check_ranks(ranks, sizes: T3Ranks, what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks as plain tuples.

    Raises:
        ValueError: wrong lengths, ranks below 1, or above what `sizes` makes possible.
    """
    tucker, tt = rank_pair(ranks, sizes.shape, what)
    feasible = minimal_ranks(sizes.shape, sizes.tucker, sizes.tt)
    if min(*tucker, *tt) < 1 or any(
        asked > most
        for asked, most in zip((*tucker, *tt), (*feasible[0], *feasible[1]), strict=True)
    ):
        raise ValueError(
            f"{what} was asked for Tucker ranks {tucker} and train ranks {tt}; the tensor of shape "
            f"{sizes.shape} with Tucker ranks {sizes.tucker} and train ranks {sizes.tt} can have "
            f"ranks from 1 to {feasible[0]} and {feasible[1]}."
        )
    return tucker, tt

"""What every bond of a Tucker tensor train carries: orthogonal bases, singular values, derivatives.

Cutting one bond writes the tensor as ``left @ right`` with ``left`` (entries, r) and ``right``
(r, entries). Orthogonalisation gives ``left = basis @ left_factor`` and ``right.T = basis @
right_factor``; the singular values of the cut tensor are those of ``left_factor @ right_factor.T``.

Values come from QR and SVD, which are accurate. Derivatives do not go through QR and SVD: those
have none where a core is rank deficient or a singular value repeats. They go through `oblique`:
matrices ``Z`` and ``W`` of the bond such that inserting ``Z W^T`` does what changing the basis
does. They depend on the cores only through the Gram matrices of ``left`` and ``right``, which are
polynomials, and their derivative divides only by kept singular values that are not zero and by
gaps between kept and dropped ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from t3._tensor.packing import Cores, is_packed, map_modes, per_mode, set_mode, shift_right, sweep
from t3._tensor.ranks import T3Ranks, frame_ranks


class Orthogonal(NamedTuple):
    """All one-sided orthogonal bases of a tensor train whose end bonds are 1.

    `left` ends in, and `right` starts with, a core that is not orthogonal but carries the norm.

    Attributes:
        up: orthonormal rows ``(nU_i, N_i)``.
        up_factor: ``(nU_i, n_i)``, Tucker core = ``up_factor.T @ up``.
        left: ``(kL_i, nU_i, kL_{i+1})``.
        right: ``(kR_i, nU_i, kR_{i+1})``.
        left_in, left_out: left factor of the bond before and after each mode, ``(kL, r)``.
        right_in: right factor of the bond after each mode, ``(kR_{i+1}, r_{i+1})``.
    """

    up: Cores
    up_factor: Cores
    left: Cores
    right: Cores
    left_in: Cores
    left_out: Cores
    right_in: Cores


class BondSVD(NamedTuple):
    """Singular value decomposition of ``left_factor @ right_factor.T`` of one bond, ``u * s @ v.T``."""

    u: Array
    s: Array
    v: Array


def orthogonal_parts(tucker_cores: Cores, tt_cores: Cores, sizes: T3Ranks) -> Orthogonal:
    """QR sweeps from both ends. End bonds must be 1. Cost: d (N n^2 + n r^3) multiply-adds."""
    packed = is_packed(tt_cores)
    ranks = frame_ranks(sizes)
    up_ranks = per_mode(ranks.up, tucker_cores) if packed else None

    def up_step(_, mode):
        core, rank = mode
        q, r = _qr(core.T, None, rank)
        return None, (q.T, r)

    _, (up, up_factor) = sweep(up_step, None, (tucker_cores, up_ranks))
    cores = map_modes(lambda r, g: jnp.einsum("mn,anb->amb", r, g), up_factor, tt_cores)

    def bond_step(factor, mode):
        core, order, rank = mode
        a = jnp.einsum("ka,anb->knb", factor, core)
        q, r = _qr(a.reshape(-1, a.shape[2]), order, rank)
        return r, (factor, r, q.reshape(*a.shape[:2], -1))

    one = jnp.ones((1, 1), cores[0].dtype)
    orders_left = orders_right = ranks_left = ranks_right = None
    if packed:
        pad_r, pad_n = cores.shape[1:3]
        one = jnp.zeros((pad_r, pad_r), cores.dtype).at[0, 0].set(1)
        orders_left = _true_rows_first(ranks.left[:-1], ranks.up, pad_r, pad_n)
        orders_right = _true_rows_first(ranks.right[1:], ranks.up, pad_r, pad_n)
        ranks_left = per_mode(ranks.left[1:], cores)
        ranks_right = per_mode(ranks.right[:-1], cores)
    _, (left_in, left_out, left) = sweep(bond_step, one, (cores, orders_left, ranks_left))
    mirrored = map_modes(lambda g: g.transpose(2, 1, 0), cores)
    _, (right_in, right_out, right) = sweep(
        bond_step, one, (mirrored, orders_right, ranks_right), reverse=True
    )
    right = map_modes(lambda q: q.transpose(2, 1, 0), right)
    left = set_mode(left, -1, jnp.einsum("anb,bc->anc", left[-1], left_out[-1]))
    right = set_mode(right, 0, jnp.einsum("bc,bna->cna", right_out[0], right[0]))
    return Orthogonal(up, up_factor, left, right, left_in, left_out, right_in)


def down_parts(tt_cores: Cores, left_in: Cores, right_in: Cores, sizes: T3Ranks) -> tuple:
    """Orthogonalise each centre core towards its Tucker bond.

    Args:
        tt_cores: cores ``(r_i, m_i, r_{i+1})``.
        left_in: left factors of the bonds before each mode.
        right_in: right factors of the bonds after each mode.
        sizes: true sizes; ``sizes.tucker`` are the true ``m_i``.

    Returns:
        Orthonormal cores ``(kL_i, nO_i, kR_{i+1})``, and factors ``(nO_i, m_i)``.
    """
    orders = ranks = None
    if is_packed(tt_cores):
        frame = frame_ranks(sizes)
        orders = _true_rows_first(
            frame.left[:-1], frame.right[1:], left_in.shape[1], right_in.shape[1]
        )
        products = zip(frame.left, frame.right[1:], sizes.tucker, strict=False)
        ranks = per_mode([min(a * b, m) for a, b, m in products], tt_cores)

    def step(_, mode):
        core, before, after, order, rank = mode
        a = jnp.einsum("ka,anb,lb->kln", before, core, after)
        q, r = _qr(a.reshape(-1, a.shape[2]), order, rank)
        return None, (q.reshape(*a.shape[:2], -1).transpose(0, 2, 1), r)

    return sweep(step, None, (tt_cores, left_in, right_in, orders, ranks))[1]


def bond_svds(left_factors: Cores, right_factors: Cores) -> BondSVD:
    """Singular values and vectors of the tensor cut at each bond.

    Args:
        left_factors: ``(kL, r)`` of each bond.
        right_factors: ``(kR, r)`` of each bond.

    Returns:
        `BondSVD` of families with ``min(kL, kR)`` columns.
    """

    def step(_, mode):
        u, s, vt = jnp.linalg.svd(mode[0] @ mode[1].T, full_matrices=False)
        return None, BondSVD(u, s, vt.T)

    return sweep(step, None, (left_factors, right_factors))[1]


def kept(s: Array, rank) -> Array:
    """Which singular values to keep: the first `rank`, if not zero to rounding. A row of 0 and 1."""
    floor = s.shape[0] * jnp.finfo(s.dtype).eps * s[0]
    return ((jnp.arange(s.shape[0], dtype=jnp.int32) < rank) & (s > floor)).astype(s.dtype)[None]


class Grams(NamedTuple):
    """Gram matrices on both sides of every bond; polynomials in the cores.

    Attributes:
        tucker_left, tucker_right: of the bond between Tucker core and train, ``(n, n)``.
        left, right: of the bond after each mode, ``(r, r)``.
    """

    tucker_left: Cores
    tucker_right: Cores
    left: Cores
    right: Cores


def bond_grams(tucker_cores: Cores, tt_cores: Cores) -> Grams:
    """Gram matrices of a tensor train whose end bonds are 1."""
    tucker_left = map_modes(lambda b: b @ b.T, tucker_cores)

    def left_step(gram, mode):
        core, tucker = mode
        half = jnp.einsum("ac,anb->cnb", gram, core)
        half = jnp.einsum("cnb,nm->cmb", half, tucker)
        after = jnp.einsum("cmb,cmd->bd", half, core)
        return after, (gram, after)

    def right_step(gram, mode):
        core, tucker = mode
        half = jnp.einsum("anb,bd->and", core, gram)
        half = jnp.einsum("and,nm->amd", half, tucker)
        return jnp.einsum("amd,cmd->ac", half, core), gram

    one = jnp.ones((1, 1), tt_cores[0].dtype)
    if is_packed(tt_cores):
        one = jnp.zeros_like(tt_cores[0, :, 0, :]).at[0, 0].set(1)
    _, (before, left) = sweep(left_step, one, (tt_cores, tucker_left))
    _, right = sweep(right_step, one, (tt_cores, tucker_left), reverse=True)

    def centre(core, gram_left, gram_right):
        half = jnp.einsum("ac,anb->cnb", gram_left, core)
        half = jnp.einsum("cnb,bd->cnd", half, gram_right)
        return jnp.einsum("cnd,cmd->nm", half, core)

    return Grams(tucker_left, map_modes(centre, tt_cores, before, right), left, right)


@jax.custom_jvp
def oblique(
    gram_a: Array, gram_b: Array, factor_a: Array, factor_b: Array, svd: BondSVD, keep: Array
) -> tuple[Array, Array]:
    """Bond matrices that pass to the leading singular subspace, orthonormal on side a.

    With ``a`` (entries, r) and ``b`` (r, entries) the two sides of a bond: ``a @ Z`` has
    orthonormal columns (the kept left singular vectors of ``a @ b``), ``W.T @ Z = I`` and ``a @ Z @
    W.T @ b`` is the truncated tensor.

    Args:
        gram_a: ``a.T @ a``, (r, r). Only its derivative is used.
        gram_b: ``b @ b.T``, (r, r). Only its derivative is used.
        factor_a: ``(ka, r)`` with ``factor_a.T @ factor_a = gram_a``. Constant.
        factor_b: ``(kb, r)`` with ``factor_b.T @ factor_b = gram_b``. Constant.
        svd: of ``factor_a @ factor_b.T``. Constant.
        keep: ``(1, k)``, 1 for kept singular values, 0 for dropped ones; kept ones must not be zero.

    Returns:
        ``Z`` and ``W``, (r, min(ka, kb)), zero in dropped columns.

    The derivative is that of the leading spectral projector ``Z W^T`` of ``gram_b @ gram_a``. It is
    linear in the derivatives of the Gram matrices and involves ``1 / (s_k^2 - s_c^2)`` for kept k
    and dropped c only; where such a gap is zero, no derivative exists, and that term is left out.
    """
    inverse = keep / jnp.where(keep > 0, svd.s[None], 1)
    return factor_b.T @ (svd.v * inverse), factor_a.T @ (svd.u * keep)


@oblique.defjvp
def _oblique_jvp(primals, tangents):
    _, _, factor_a, factor_b, svd, keep = primals
    d_gram_a, d_gram_b = tangents[:2]
    z, w = oblique(*primals)
    row, column = svd.s[None], svd.s[:, None]
    square = row**2 * keep
    inverse_square = keep / jnp.where(keep > 0, row**2, 1)
    # Two singular values closer than rounding are a tie.
    apart = row - column > svd.s.shape[0] * jnp.finfo(svd.s.dtype).eps * svd.s[0]
    use = (1 - keep.T) * keep * apart.astype(keep.dtype)
    through_dropped = use * column / jnp.where(use > 0, row**2 - column**2, 1)

    def side(d_first, d_second, other_factor, this_factor, left, right, out, dual):
        raw = (d_first + d_second) * inverse_square
        raw = raw - out @ (dual.T @ raw)
        return raw + other_factor.T @ (left @ (through_dropped * (right.T @ (this_factor @ raw))))

    dz = side(
        d_gram_b @ w,
        factor_b.T @ (factor_b @ (d_gram_a @ z)),
        factor_b,
        factor_a,
        svd.v,
        svd.u,
        z,
        w,
    )
    dw = side(
        (d_gram_a @ z) * square,
        factor_a.T @ (factor_a @ (d_gram_b @ w)),
        factor_a,
        factor_b,
        svd.u,
        svd.v,
        w,
        z,
    )
    # The component within the kept subspace that holds a @ z orthonormal.
    within = -(z.T @ (d_gram_a @ z)) / 2
    return (z, w), (dz + z @ within, dw - w @ within.T)


def oblique_family(
    grams_a: Cores, grams_b: Cores, factors_a: Cores, factors_b: Cores, svds: BondSVD, ranks
) -> tuple[Cores, Cores]:
    """`oblique` at every bond of a family. Everything but the Gram matrices is held constant."""

    def step(_, mode):
        gram_a, gram_b, factor_a, factor_b, u, s, v, rank = mode
        svd = BondSVD(*map(stop_gradient, (u, s, v)))
        return None, oblique(
            gram_a, gram_b, stop_gradient(factor_a), stop_gradient(factor_b), svd, kept(svd.s, rank)
        )

    return sweep(step, None, (grams_a, grams_b, factors_a, factors_b, *svds, ranks))[1]


def inner_bonds(family: Cores, one: Array) -> Cores:
    """Replace the bond after the last mode, which ends the train, by the trivial one."""
    return set_mode(family, -1, one)


def before_modes(family: Cores) -> Cores:
    """From the bond after each mode to the bond before it."""
    return shift_right(family, jnp.ones((1, 1), family[0].dtype))


def _qr(matrix: Array, order, rank) -> tuple[Array, Array]:
    """QR; for padded matrices, true rows go first so that the basis of a deficient matrix is
    completed inside the true block, and what lies beyond the true rank is cleared."""
    if rank is None:
        return jnp.linalg.qr(matrix)
    if order is None:
        q, r = jnp.linalg.qr(matrix)
    else:
        q, r = jnp.linalg.qr(matrix[order])
        q = jnp.zeros_like(q).at[order].set(q)
    true = (jnp.arange(q.shape[1], dtype=jnp.int32) < rank).astype(q.dtype)
    return q * true[None], r * true[:, None]


def _true_rows_first(first, second, padded_first: int, padded_second: int) -> Array:
    """Row orders, one a mode, that put the true entries of two merged padded axes first."""
    orders = []
    for a, b in zip(first, second, strict=True):
        padding = np.ones((padded_first, padded_second), bool)
        padding[:a, :b] = False
        orders.append(np.argsort(padding.ravel(), kind="stable"))
    return jnp.asarray(np.stack(orders), jnp.int32)

"""Truncation against the singular values of dense unfoldings, and its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3
from t3._tensor import bonds as bonds
from t3._tensor.rounding import rank_pair

SIZES = ((4, 5, 3), (3, 4, 3), (2, 3, 3, 1))


def dense_singular_values(a):
    """Of the Tucker and of the inner train unfoldings."""
    tucker = [
        np.linalg.svd(np.moveaxis(a, i, 0).reshape(a.shape[i], -1), compute_uv=False)
        for i in range(a.ndim)
    ]
    train = [
        np.linalg.svd(a.reshape(int(np.prod(a.shape[:i])), -1), compute_uv=False)
        for i in range(1, a.ndim)
    ]
    return tucker, train


@pytest.mark.parametrize("packed", [False, True])
def test_singular_values_equal_dense(key, packed):
    x = t3.TuckerTensorTrain.random(key, *SIZES)
    expected = dense_singular_values(np.asarray(x.to_dense()))
    values = (x.pack() if packed else x).singular_values()
    for have, want in zip(values, expected, strict=True):
        for a, b in zip(have, want, strict=True):
            size = min(len(a), len(b))
            # Everything beyond the ranks is zero to rounding.
            np.testing.assert_allclose(a[:size], b[:size], atol=1e-12 * b[0])


@pytest.mark.parametrize("packed", [False, True])
def test_error_stays_within_bound_and_tolerance(key, packed, dtype):
    x = t3.TuckerTensorTrain.random(key, *SIZES, dtype=dtype)
    x = x.pack() if packed else x
    dense = np.asarray(x.to_dense(), np.float64)
    tucker, train = dense_singular_values(dense)
    for tolerance in (0.0, 0.2, 0.5):
        y = x.round(tolerance=tolerance)
        assert y.dtype == dtype
        rounding = 2e-5 if dtype == np.float32 else 1e-12
        error = np.linalg.norm(np.asarray(y.to_dense(), np.float64) - dense)
        assert error <= (tolerance + rounding) * np.linalg.norm(dense)
        ranks = (y.tucker_ranks, y.tt_ranks)
        assert ranks == y.minimal_ranks
        bound = float(x.rounding_bound(ranks))
        assert error <= bound + rounding * np.linalg.norm(dense)
        squares = [np.sum(s[n:] ** 2) for s, n in zip(tucker, ranks[0], strict=True)]
        squares += [np.sum(s[r:] ** 2) for s, r in zip(train, ranks[1][1:-1], strict=True)]
        np.testing.assert_allclose(
            bound, np.sqrt(np.sum(squares)), atol=rounding * np.linalg.norm(dense)
        )


def test_matrix_is_truncated_optimally(rng, relative_error):
    a = rng.standard_normal((6, 5))
    x = t3.TuckerTensorTrain.from_dense(a).round(ranks=((3, 3), (1, 3, 1)))
    u, s, vt = np.linalg.svd(a)
    assert relative_error(x.to_dense(), (u[:, :3] * s[:3]) @ vt[:3]) < 1e-13


def test_ranks_and_tolerance_are_checked(key):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 3, 2), (1, 2, 2, 1))
    with pytest.raises(ValueError, match=r"ranks from 1 to \(2, 3, 2\) and \(1, 2, 2, 1\)"):
        x.round(ranks=((2, 3, 2), (1, 3, 2, 1)))
    with pytest.raises(ValueError, match="3 and 4 integers"):
        x.round(ranks=((2, 3), (1, 2, 1)))
    with pytest.raises(ValueError, match=r"3 and 4 integers .*3\.5"):
        rank_pair(((2, 3.5, 2), (1, 2, 2, 1)), x.shape, "round")  # annotations refuse it elsewhere
    with pytest.raises(ValueError, match="under"):
        jax.jit(lambda z: z.round(tolerance=0.1))(x)


def test_slack_and_zero_are_removed(key):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 3, 2), (1, 2, 2, 1))
    y = (x + x).round()
    assert (y.tucker_ranks, y.tt_ranks) == (x.tucker_ranks, x.tt_ranks)
    zero = (x * 0.0).round()
    assert (zero.tucker_ranks, zero.tt_ranks) == ((1, 1, 1), (1, 1, 1, 1))


def ones_held_at_rank_two():
    rows = t3.TuckerTensorTrain.from_canonical([jnp.ones((1, 5))] * 3)
    return t3.TuckerTensorTrain((jnp.ones((2, 5)),) * 3, (rows * 0.3 + rows * 0.7).tt_cores)


@pytest.mark.parametrize("packed", [False, True])
def test_derivative_where_held_above_its_rank(rng, packed, relative_error):
    # Truncation to rank one is smooth here; its derivative is the projection onto the tangents of
    # the rank one tensors, spelled out densely.
    x = ones_held_at_rank_two()
    c = rng.standard_normal((5, 5, 5))
    along = np.full((5, 5), 1 / 5)
    across = np.eye(5) - along
    parts = [(along,) * 3]
    parts += [tuple(across if i == j else along for j in range(3)) for i in range(3)]
    projected = sum(np.einsum("ia,jb,kc,abc->ijk", *part, c) for part in parts)
    z = x.pack() if packed else x
    ranks = ((1, 1, 1), (1, 1, 1, 1))
    have = jax.jit(jax.grad(lambda z: jnp.sum(c * z.round(ranks=ranks).to_dense())))(z)
    want = jax.grad(lambda z: jnp.sum(projected * z.to_dense()))(x)
    for a, b in zip(jax.tree.leaves(have.unpack()), jax.tree.leaves(want), strict=True):
        assert relative_error(a, b) < 1e-12


def test_derivative_of_true_truncation(key, rng):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (3, 4, 3), (1, 3, 3, 1))
    change = t3.TuckerTensorTrain.random(jax.random.key(1), (4, 5, 3), (3, 4, 3), (1, 3, 3, 1))
    c = rng.standard_normal(x.shape)
    ranks = ((2, 2, 2), (1, 2, 2, 1))

    @jax.jit
    def along(step):
        moved = jax.tree.map(lambda a, b: a + step * b, x, change)
        return jnp.sum(c * moved.round(ranks=ranks).to_dense())

    step = 1e-4
    estimate = (8 * (along(step) - along(-step)) - along(2 * step) + along(-2 * step)) / (12 * step)
    exact = jax.jit(lambda: jax.jvp(along, (0.0,), (1.0,))[1])()
    assert abs(float(exact - estimate)) < 1e-7 * abs(float(exact))


@pytest.mark.parametrize("ranks", [((2, 2, 2), (1, 2, 2, 1)), ((1, 1, 1), (1, 1, 1, 1))])
def test_derivative_is_finite_at_zero_and_at_ties(ranks):
    diagonal = np.zeros((4, 4, 4))
    diagonal[np.arange(4), np.arange(4), np.arange(4)] = 1
    tie = t3.TuckerTensorTrain.from_dense(diagonal)
    slope = jax.jit(jax.grad(lambda z: z.round(ranks=ranks).norm()))
    for x in (tie, tie * 0.0):
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(slope(x)))


def test_bond_matrices_and_their_derivative(rng, relative_error):
    """`oblique` against the derivative of the dense truncated product, with a deficient side."""
    a, da = rng.standard_normal((2, 6, 4))
    b, db = rng.standard_normal((2, 4, 5))
    a[:, 3] = a[:, 0]  # rank 3
    rank = 2

    def truncated(step):
        left, right = a + step * da, b + step * db
        factors = jnp.linalg.qr(a)[1], jnp.linalg.qr(b.T)[1]
        u, s, vt = jnp.linalg.svd(factors[0] @ factors[1].T, full_matrices=False)
        z, w = bonds.oblique(
            left.T @ left,
            right @ right.T,
            *factors,
            bonds.BondSVD(u, s, vt.T),
            bonds.kept(s, rank),
        )
        return left @ z, left @ z @ w.T @ right

    (basis, value), (_, slope) = jax.jvp(truncated, (0.0,), (1.0,))
    np.testing.assert_allclose(basis[:, :rank].T @ basis[:, :rank], np.eye(rank), atol=1e-13)

    def dense(step):
        u, s, vt = np.linalg.svd((a + step * da) @ (b + step * db))
        return (u[:, :rank] * s[:rank]) @ vt[:rank]

    assert relative_error(value, dense(0)) < 1e-13
    step = 1e-4
    estimate = (8 * (dense(step) - dense(-step)) - dense(2 * step) + dense(-2 * step)) / (12 * step)
    assert relative_error(slope, estimate) < 1e-8


def test_tolerances_are_checked(key):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 3, 2), (1, 2, 2, 1))
    for tolerance in (-0.1, np.nan):
        with pytest.raises(ValueError, match=f"from 0 on, got {tolerance}"):
            x.round(tolerance=tolerance)
    with pytest.raises(ValueError, match="NaN or infinite"):
        (x * np.nan).round(tolerance=0.1)

"""Orthogonal frames: bases, the point they carry, and derivatives where ranks are deficient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

CASES = {
    "one mode": ((5,), (1,), (1, 1)),
    "mode of size one": ((1, 4), (1, 2), (1, 1, 1)),
    "unequal with tails": ((4, 5, 3), (2, 3, 2), (2, 2, 3, 2)),
    "slack": ((2, 3, 2), (3, 4, 2), (1, 5, 4, 1)),
}


def assert_orthogonal(frame, tolerance):
    """Rows of the up cores, and the other cores towards their holes."""

    def gram_error(matrix):
        return np.abs(np.asarray(matrix.T @ matrix) - np.eye(matrix.shape[1])).max()

    d = len(frame.shape)
    for i, (u, o, p, q) in enumerate(
        zip(frame.up_tucker, frame.down_tt, frame.left_tt, frame.right_tt, strict=True)
    ):
        assert gram_error(u.T) < tolerance
        assert gram_error(o.transpose(0, 2, 1).reshape(-1, o.shape[1])) < tolerance
        if i < d - 1:
            assert gram_error(p.reshape(-1, p.shape[2])) < tolerance
        if i > 0:
            assert gram_error(q.reshape(q.shape[0], -1).T) < tolerance


@pytest.mark.parametrize("case", CASES)
def test_bases_are_orthonormal_and_hold_the_point(case, dtype, key, relative_error):
    x = t3.TuckerTensorTrain.random(key, *CASES[case], dtype=dtype)
    tolerance = 2e-5 if dtype == np.float32 else 1e-13
    for z in (x, x.pack(), x * 0.0, (x * 0.0).pack()):
        frame = t3.T3Frame.from_t3(z)
        assert frame.is_packed == z.is_packed
        assert_orthogonal(frame.unpack(), tolerance)
        assert relative_error(frame.to_dense(), z.to_dense()) < tolerance
        point = t3.TuckerTensorTrain(frame.unpack().up_tucker, frame.unpack().left_tt)
        assert relative_error(point.to_dense(), z.to_dense()) < tolerance


def test_storages_give_the_same_frame(key, relative_error):
    x = t3.TuckerTensorTrain.random(key, *CASES["slack"])
    a, b = t3.T3Frame.from_t3(x), t3.T3Frame.from_t3(x.pack()).unpack()
    assert a.sizes == b.sizes
    for one, two in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert relative_error(one, two) < 1e-12


def test_reverse(key, relative_error):
    x = t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 3, 2), (1, 2, 2, 1))
    for z in (x, x.pack()):
        frame = t3.T3Frame.from_t3(z).reverse()
        assert_orthogonal(frame.unpack(), 1e-13)
        assert relative_error(frame.to_dense(), x.to_dense().transpose()) < 1e-13


def gauge_free(x, c):
    """Independent of the choice of bases: projections of a fixed tensor, and the point."""
    frame = t3.T3Frame.from_t3(x)
    projected = t3.T3Tangent.from_tensor(frame, c)
    return {
        "norm of the projection": projected.norm(),
        "projection": jnp.sum(projected.to_dense() ** 3),
        "point": jnp.sum(frame.to_dense() * c.to_dense()),
        "left point": jnp.sum(x.orthogonalize().to_dense() ** 3),
    }


@pytest.mark.parametrize("packed", [False, True])
def test_derivatives_equal_finite_differences(key, packed):
    sizes = ((4, 3, 4), (2, 3, 2), (1, 2, 2, 1))
    x = t3.TuckerTensorTrain.random(key, *sizes)
    x = x.pack() if packed else x
    keys = jax.random.split(key, 3)
    c = t3.TuckerTensorTrain.random(keys[0], *sizes)
    change = t3.TuckerTensorTrain.random(keys[1], *sizes)
    change = change.pack() if packed else change

    @jax.jit
    def along(step):
        moved = jax.tree.map(lambda a, b: a + step * b, x, change)
        return gauge_free(moved, c)

    step = 1e-4
    exact = jax.jit(lambda: jax.jvp(along, (0.0,), (1.0,))[1])()
    # Fourth order, so that rounding and truncation both stay near 1e-9.
    near, far = ({k: along(s)[k] - along(-s)[k] for k in exact} for s in (step, 2 * step))
    for name, value in exact.items():
        estimate = (8 * near[name] - far[name]) / (12 * step)
        assert abs(float(value - estimate)) < 1e-7 * (1 + abs(float(value))), name


def rank_one_held_at_two():
    """ones(5, 5, 5) with equal rows in its Tucker cores, and unequal weights on them."""
    rows = t3.TuckerTensorTrain.from_canonical([jnp.ones((1, 5))] * 3)
    return t3.TuckerTensorTrain((jnp.ones((2, 5)),) * 3, (rows * 0.3 + rows * 0.7).tt_cores)


def identity_unfolding():
    """Every unfolding has a repeated singular value."""
    a = np.zeros((4, 4, 4))
    a[np.arange(4), np.arange(4), np.arange(4)] = 1
    return t3.TuckerTensorTrain.from_dense(a)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("make", [rank_one_held_at_two, identity_unfolding])
def test_derivatives_are_finite_at_special_points(make, packed, key):
    x = make()
    c = t3.TuckerTensorTrain.random(key, x.shape, (2, 2, 2), (1, 2, 2, 1))
    x = x.pack() if packed else x
    for z in (x, x * 0.0):
        slopes = jax.jit(jax.jacrev(gauge_free))(z, c)
        for name, slope in slopes.items():
            assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(slope)), name


def test_derivative_at_repeated_singular_values(key, relative_error):
    # Ranks are the true ones here, so the derivative exists, whatever the singular values.
    x = identity_unfolding()
    c = t3.TuckerTensorTrain.random(key, x.shape, (2, 2, 2), (1, 2, 2, 1))
    have = jax.grad(lambda x: gauge_free(x, c)["point"])(x)
    want = jax.grad(lambda x: jnp.sum(x.to_dense() * c.to_dense()))(x)
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        assert relative_error(a, b) < 1e-12


def test_inputs_are_checked(key):
    frame = t3.T3Frame.from_t3(t3.TuckerTensorTrain.random(key, (4, 5, 3), (2, 3, 2), (1, 2, 2, 1)))
    with pytest.raises(ValueError, match="mode 1"):
        t3.T3Frame(
            frame.up_tucker, frame.down_tt, frame.left_tt[:1] + frame.left_tt[:2], frame.right_tt
        )
    with pytest.raises(ValueError, match="same positive number"):
        t3.T3Frame(frame.up_tucker[:2], frame.down_tt, frame.left_tt, frame.right_tt)
    with pytest.raises(ValueError, match="FrameRanks"):
        packed = frame.pack()
        t3.T3Frame(packed.up_tucker, packed.down_tt, packed.left_tt, packed.right_tt)

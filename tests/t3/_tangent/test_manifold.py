"""Projection, retraction and transport on the manifold of fixed ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

SIZES = ((4, 5, 3), (2, 3, 2), (1, 2, 2, 1))


@pytest.fixture(params=[False, True], ids=["ragged", "packed"])
def point(request, key):
    x = t3.TuckerTensorTrain.random(key, *SIZES)
    return x.pack() if request.param else x


def tangent_basis(frame):
    """The tangent space of a point, dense: one row for every coordinate of every core."""
    x = frame.unpack().to_t3()

    def dense(x):
        return x.to_dense().ravel()

    jacobian = jax.tree.leaves(jax.jit(jax.jacfwd(dense))(x))
    rows = np.concatenate([np.asarray(j).reshape(j.shape[0], -1) for j in jacobian], axis=1)
    u, s, _ = np.linalg.svd(rows, full_matrices=False)
    return u[:, s > 1e-10 * s[0]]


def test_projection_is_the_dense_one(point, key, relative_error):
    frame = t3.T3Frame.from_t3(point)
    z = t3.TuckerTensorTrain.random(jax.random.key(1), SIZES[0], (3, 2, 3), (2, 3, 2, 1))
    basis = tangent_basis(frame)
    expected = basis @ (basis.T @ np.asarray(z.to_dense()).ravel())
    projected = t3.T3Tangent.from_tensor(frame, z)
    assert relative_error(projected.to_dense().ravel(), expected) < 1e-11
    # Of a tangent, and of the point itself, it changes nothing.
    again = t3.T3Tangent.from_tensor(frame, projected.to_t3())
    assert relative_error(again.to_dense(), projected.to_dense()) < 1e-12
    same = t3.T3Tangent.from_tensor(frame, point)
    assert relative_error(same.to_dense(), point.to_dense()) < 1e-12


def test_project_drops_what_gauge_keeps(point, key):
    frame = t3.T3Frame.from_t3(point)
    raw = jax.tree.map(
        lambda leaf: jnp.where(leaf != 0, 1.0, 0.0), t3.T3Tangent.random(key, frame).variations
    )
    projected = t3.T3Tangent(frame, raw).project().variations
    gauged = t3.T3Tangent.random(jax.random.key(2), frame).variations
    # The projection is orthogonal: what it drops is orthogonal to everything gauged.
    assert abs(float((raw - projected).dot(gauged))) < 1e-12 * float(
        jnp.sqrt(raw.dot(raw) * gauged.dot(gauged))
    )


def test_retraction_is_of_second_order(point, key):
    frame = t3.T3Frame.from_t3(point)
    v = t3.T3Tangent.random(jax.random.key(1), frame)
    v = v * (point.norm() / v.norm())
    line = lambda s: point.to_dense() + s * v.to_dense()  # noqa: E731
    scale = float(point.norm())
    errors = []
    for step in (1e-3, 1e-4):
        y = (v * step).retract()
        assert (y.tucker_ranks, y.tt_ranks) == SIZES[1:]
        errors.append(float(jnp.linalg.norm((y.to_dense() - line(step)).ravel())) / scale)
    assert errors[1] < 1e-5
    assert 90 < errors[0] / errors[1] < 110
    assert (
        float(jnp.linalg.norm(((v * 0.0).retract().to_dense() - line(0.0)).ravel())) < 1e-13 * scale
    )


def test_transport_projects(point, key, relative_error):
    frame = t3.T3Frame.from_t3(point)
    v = t3.T3Tangent.random(key, frame)
    moved = (v * 0.1).retract()
    new = t3.T3Frame.from_t3(moved)
    basis = tangent_basis(new)
    expected = basis @ (basis.T @ np.asarray(v.to_dense()).ravel())
    assert relative_error(v.transport(new).to_dense().ravel(), expected) < 1e-10
    assert relative_error(v.transport(frame).to_dense(), v.to_dense()) < 1e-12


def test_step_from_zero(key, relative_error):
    # At zero every direction of the chosen frame is open: one step reaches a tensor of its ranks.
    for zero in (t3.TuckerTensorTrain.zeros(*SIZES), t3.TuckerTensorTrain.zeros(*SIZES).pack()):
        frame = t3.T3Frame.from_t3(zero)
        v = t3.T3Tangent.random(key, frame)
        y = v.retract()
        assert (y.tucker_ranks, y.tt_ranks) == SIZES[1:]
        assert bool(jnp.all(jnp.isfinite(y.to_dense())))
        assert float((y - v.to_t3()).norm()) < float(v.norm())


def test_second_opinion(key, relative_error):
    manifold = pytest.importorskip("t3toolbox.manifold")
    from t3toolbox import frame_variations_format, tucker_tensor_train

    x = t3.TuckerTensorTrain.random(key, *SIZES)
    frame = t3.T3Frame.from_t3(x)
    v = t3.T3Tangent.random(jax.random.key(1), frame)
    families = (frame.up_tucker, frame.down_tt, frame.left_tt, frame.right_tt)
    other = manifold.T3Tangent(
        frame_variations_format.T3Frame(*(tuple(map(np.asarray, family)) for family in families)),
        frame_variations_format.T3Variations(
            tuple(map(np.asarray, v.variations.tucker)), tuple(map(np.asarray, v.variations.tt))
        ),
    )
    assert relative_error(v.to_dense(), other.to_dense()) < 1e-12
    z = t3.TuckerTensorTrain.random(jax.random.key(2), SIZES[0], (2, 2, 2), (1, 2, 2, 1))
    ambient = tucker_tensor_train.TuckerTensorTrain(
        tuple(map(np.asarray, z.tucker_cores)), tuple(map(np.asarray, z.tt_cores))
    )
    theirs = manifold.MANIFOLD.project_ambient(other.frame, ambient).to_dense()
    assert relative_error(t3.T3Tangent.from_tensor(frame, z).to_dense(), theirs) < 1e-12

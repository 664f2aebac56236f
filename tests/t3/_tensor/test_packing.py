"""Packed storage: the loop that serves both, and the same numbers and gradients from both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3
from t3._tensor import packing as packing

SIZES = ((4, 5, 3), (2, 3, 2), (2, 2, 3, 2))


@pytest.fixture
def x(key):
    return t3.TuckerTensorTrain.random(key, *SIZES)


def test_round_trip_is_exact(x):
    packed = x.pack()
    assert packed.tucker_cores.shape == (3, 3, 5)
    assert packed.tt_cores.shape == (3, 3, 3, 3)
    back = packed.unpack()
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(back), strict=True):
        assert np.array_equal(a, b)
    assert packed.pack() is packed
    assert x.unpack() is x


def test_frame_and_variations_round_trip(x):
    frame = t3.T3Frame.from_t3(x)
    tangent = t3.T3Tangent.random(jax.random.key(1), frame)
    packed = frame.pack()
    variations = packed.unpack_variations(packed.pack_variations(tangent.variations))
    for a, b in zip(
        jax.tree.leaves((frame, tangent.variations)),
        jax.tree.leaves((packed.unpack(), variations)),
        strict=True,
    ):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("reverse", [False, True])
def test_sweep_visits_modes_in_order(x, reverse):
    def step(count, mode):
        core, weight = mode
        return count + 1, (count, jnp.sum(core) * weight)

    weights = np.arange(3.0)
    for z in (x, x.pack()):
        family = jnp.asarray(weights) if z.is_packed else tuple(jnp.asarray(w) for w in weights)
        count, (seen, sums) = packing.sweep(
            step, jnp.zeros((), jnp.int32), (z.tt_cores, family), reverse=reverse
        )
        assert int(count) == 3
        order = [2, 1, 0] if reverse else [0, 1, 2]
        assert [int(i) for i in seen] == order
        expected = [float(jnp.sum(g)) * w for g, w in zip(x.tt_cores, weights, strict=True)]
        np.testing.assert_allclose([float(s) for s in sums], expected, rtol=1e-12, atol=1e-12)


def test_sweep_refuses_mixed_storage(x):
    with pytest.raises(ValueError, match="both ragged"):
        packing.sweep(lambda c, m: (c, None), None, (x.tt_cores, x.pack().tucker_cores))
    with pytest.raises(ValueError, match="one length"):
        packing.sweep(lambda c, m: (c, None), None, (x.tt_cores, x.tucker_cores[:2]))


def test_equal_values_and_gradients(x, relative_error):
    ranks = ((2, 2, 2), (1, 2, 2, 1))

    @jax.jit
    def gradient(x):
        def loss(x):
            y = x.round(ranks=ranks)
            projected = t3.T3Tangent.from_tensor(t3.T3Frame.from_t3(x), y)
            return projected.norm() + jnp.sum(projected.to_dense() ** 3)

        return jax.value_and_grad(loss)(x)

    value, slope = gradient(x)
    packed_value, packed_slope = gradient(x.pack())
    assert relative_error(packed_value, value) < 1e-12
    # Nothing reaches the padding: what unpacking keeps is all there is.
    unpacked = packed_slope.unpack()
    for a, b in zip(jax.tree.leaves(unpacked.pack()), jax.tree.leaves(packed_slope), strict=True):
        assert np.array_equal(a, b)
    for a, b in zip(jax.tree.leaves(unpacked), jax.tree.leaves(slope), strict=True):
        # Gradients through truncation multiply rounding by the inverse gaps.
        assert relative_error(a, b) < 1e-9


def rounded(x):
    ranks = ((2,) * x.ndim, (1, *(2,) * (x.ndim - 1), 1))
    return x.round(ranks=ranks).norm()


def sampled(x):
    points = jnp.ones((x.ndim, 5, 4), x.dtype)
    return jnp.sum(x.probe_derivatives(points, points, 2, chunk_size=2))


@pytest.mark.parametrize("value", [rounded, sampled])
def test_packed_program_does_not_grow_with_modes(value):
    def count(d):
        x = t3.TuckerTensorTrain.zeros((4,) * d, (3,) * d, (1, *(3,) * (d - 1), 1)).pack()
        return jax.jit(jax.grad(value)).lower(x).as_text().count("\n")

    # Constants of d numbers stay on one line: the number of operations is what counts.
    assert count(48) <= 1.02 * count(6)

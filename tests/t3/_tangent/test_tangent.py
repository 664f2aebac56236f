"""Tangents as tensors: arithmetic, inner products and gauges, against dense arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

CASES = {
    "one mode": ((5,), (1,), (1, 1)),
    "mode of size one": ((1, 4), (1, 2), (1, 1, 1)),
    "unequal": ((4, 5, 3), (2, 3, 2), (1, 2, 2, 1)),
    "slack": ((2, 3, 2), (3, 4, 2), (1, 5, 4, 1)),
}


def raw_tangent(key, frame):
    """Normal coordinates in every core, not gauged."""
    return t3.T3Variations(
        *(
            tuple(
                jax.random.normal(jax.random.fold_in(key, 10 * j + i), s)
                for i, s in enumerate(side)
            )
            for j, side in enumerate(frame.variation_shapes())
        )
    )


def dense_tangent(frame, variations):
    """Sum of the 2 d trains, one hole filled in each, in NumPy."""
    frame, variations = jax.tree.map(np.asarray, (frame, variations))
    d = len(frame.up_tucker)
    total = 0
    for hole in range(d):
        for in_tucker in (True, False):
            dense = np.ones((1, frame.left_tt[0].shape[0]))
            for i in range(d):
                u, core = frame.up_tucker[i], frame.left_tt[i]
                if i > hole:
                    core = frame.right_tt[i]
                elif i == hole and in_tucker:
                    u, core = variations.tucker[i], frame.down_tt[i]
                elif i == hole:
                    core = variations.tt[i]
                dense = np.tensordot(dense, np.einsum("anb,nN->aNb", core, u), 1)
            total = total + dense.sum(-1)[0]
    return total


@pytest.mark.parametrize("case", CASES)
def test_equals_dense(case, key, relative_error):
    sizes = CASES[case]
    frame = t3.T3Frame.from_t3(t3.TuckerTensorTrain.random(key, *sizes))
    keys = jax.random.split(key)
    v, w = (raw_tangent(k, frame) for k in keys)
    dense, other = dense_tangent(frame, v), dense_tangent(frame, w)
    point = np.asarray(frame.to_dense())

    @jax.jit
    def everything(v, w):
        return {
            "dense": v.to_dense(),
            "with point": v.to_dense(include_point=True),
            "gauged": v.gauge().to_dense(),
            "sum": (v + 2 * w - (-v)).to_dense(),
            "reverse": v.reverse().to_dense(),
            "inner": v.inner(w),
            "norm": v.norm(),
            "norm in the gauge": jnp.sqrt(v.gauge().variations.dot(v.gauge().variations)),
        }

    expected = {
        "dense": dense,
        "with point": dense + point,
        "gauged": dense,
        "sum": 2 * dense + 2 * other,
        "reverse": dense.transpose(),
        "inner": np.sum(dense * other),
        "norm": np.linalg.norm(dense),
        "norm in the gauge": np.linalg.norm(dense),
    }
    packed = frame.pack()
    for pair in (
        (t3.T3Tangent(frame, v), t3.T3Tangent(frame, w)),
        (
            t3.T3Tangent(packed, packed.pack_variations(v)),
            t3.T3Tangent(packed, packed.pack_variations(w)),
        ),
    ):
        values = everything(*pair)
        for name, value in values.items():
            # An inner product may cancel.
            assert relative_error(value, expected[name]) < (1e-10 if name == "inner" else 1e-12), (
                name
            )


def test_frame_with_tails_and_without_orthogonality(rng, relative_error):
    shapes = {
        "up": ((2, 4), (3, 5)),
        "down": ((2, 2, 3), (3, 3, 2)),
        "left": ((2, 2, 3), (3, 3, 1)),
        "right": ((1, 2, 3), (3, 3, 2)),
    }
    cores = (tuple(rng.standard_normal(s) for s in side) for side in shapes.values())
    frame = t3.T3Frame(*cores)
    v = raw_tangent(jax.random.key(0), frame)
    dense = dense_tangent(frame, v)
    dense_point = np.asarray(frame.to_dense())
    for f, u in ((frame, v), (frame.pack(), frame.pack_variations(v))):
        tangent = t3.T3Tangent(f, u)
        assert relative_error(tangent.to_dense(), dense) < 1e-13
        assert relative_error(tangent.to_dense(include_point=True), dense + dense_point) < 1e-13


def test_zeros_and_random(key):
    frame = t3.T3Frame.from_t3(t3.TuckerTensorTrain.random(key, *CASES["unequal"]))
    for f in (frame, frame.pack()):
        zero = t3.T3Tangent.zeros(f)
        assert float(zero.norm()) == 0
        slope = jax.grad(lambda v, f=f: t3.T3Tangent(f, v).norm())(zero.variations)
        assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(slope))
        v = t3.T3Tangent.random(key, f)
        # Gauged: projecting changes nothing, and the coordinates carry the inner product.
        for a, b in zip(jax.tree.leaves(v), jax.tree.leaves(v.project()), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
        np.testing.assert_allclose(float(v.norm()), float(jnp.sqrt(v.variations.dot(v.variations))))


def test_several_tangents_at_a_frame(key, relative_error):
    frame = t3.T3Frame.from_t3(t3.TuckerTensorTrain.random(key, *CASES["unequal"]))
    tangents = [t3.T3Tangent.random(k, frame) for k in jax.random.split(key, 3)]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(t.variations for t in tangents))
    norms = jax.vmap(lambda v: t3.T3Tangent(frame, v).norm())(stack)
    assert relative_error(norms, [float(t.norm()) for t in tangents]) < 1e-13


def test_inputs_are_checked(key):
    frame = t3.T3Frame.from_t3(t3.TuckerTensorTrain.random(key, *CASES["unequal"]))
    v = t3.T3Tangent.zeros(frame).variations
    with pytest.raises(ValueError, match="do not fit"):
        t3.T3Tangent(frame, t3.T3Variations(v.tucker, v.tt[::-1]))
    with pytest.raises(ValueError, match="both packed"):
        t3.T3Tangent(frame, frame.pack_variations(v))
    small = t3.T3Frame.from_t3(t3.TuckerTensorTrain.random(key, (2,), (1,), (1, 1)))
    tangents = [t3.T3Tangent.random(key, f) for f in (frame, small)]
    for combine in (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a.inner(b)):
        with pytest.raises(ValueError, match="transport"):
            combine(*tangents)


def two_frames(dtype="float32"):
    keys = jax.random.split(jax.random.key(3))
    return [
        t3.T3Frame.from_t3(
            t3.TuckerTensorTrain.random(k, (4, 5, 3), (2, 3, 2), (1, 2, 2, 1), dtype=dtype)
        )
        for k in keys
    ]


COMBINED = {
    "inner": lambda a, b: a.inner(b),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", COMBINED)
def test_tangents_at_different_frames_do_not_combine(key, name, packed):
    frames = [f.pack() if packed else f for f in two_frames()]
    a, b = (t3.T3Tangent.random(key, frame) for frame in frames)
    with pytest.raises(ValueError, match=r"cores differ; other.transport\(frame\)"):
        COMBINED[name](a, b)
    COMBINED[name](a, b.transport(a.frame))
    # Equal values will do: a frame that was read from a file, or computed again.
    COMBINED[name](a, t3.T3Tangent(jax.tree.map(jnp.array, a.frame), a.variations))
    jax.jit(COMBINED[name])(a, a)


def skewed(frame):
    return t3.T3Frame(
        tuple(2 * u for u in frame.up_tucker), frame.down_tt, frame.left_tt, frame.right_tt
    )


NEEDS_ORTHOGONAL = {
    "norm": lambda tangent: tangent.norm(),
    "inner": lambda tangent: tangent.inner(tangent),
    "project": lambda tangent: tangent.project(),
    "gauge": lambda tangent: tangent.gauge(),
    "is_gauged": lambda tangent: tangent.is_gauged(),
    "retract": lambda tangent: tangent.retract(),
    "transport": lambda tangent: tangent.transport(tangent.frame),
    "random": lambda tangent: t3.T3Tangent.random(jax.random.key(0), tangent.frame),
    "from_tensor": lambda tangent: t3.T3Tangent.from_tensor(tangent.frame, tangent.frame.to_t3()),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", NEEDS_ORTHOGONAL)
def test_a_frame_that_is_not_orthogonal_is_refused(key, name, packed):
    frame = two_frames()[0]
    tangent = t3.T3Tangent.random(key, frame)
    bad = skewed(frame)
    variations = tangent.variations
    if packed:
        variations, bad, frame = bad.pack_variations(variations), bad.pack(), frame.pack()
    assert frame.is_orthogonal() and not bad.is_orthogonal()
    with pytest.raises(ValueError, match=r"needs an orthogonal frame.*T3Frame.from_t3"):
        NEEDS_ORTHOGONAL[name](t3.T3Tangent(bad, variations))
    NEEDS_ORTHOGONAL[name](t3.T3Tangent(frame, variations))


def test_whether_coordinates_are_gauged(key, dtype):
    frame = two_frames(dtype)[0]
    raw = t3.T3Tangent(frame, jax.tree.map(lambda a: a.astype(dtype), raw_tangent(key, frame)))
    assert not raw.is_gauged()
    assert raw.gauge().is_gauged() and raw.project().is_gauged()
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(lambda f: f.up_tucker[0] * f.is_orthogonal())(frame)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_norms_do_not_swallow(key, value):
    tangent = t3.T3Tangent.random(key, two_frames()[0])
    assert not np.isfinite((tangent * value).norm())
    x = tangent.frame.to_t3() * value
    assert not np.isfinite(x.norm())


@pytest.mark.parametrize("packed", [False, True])
def test_frames_may_be_closed_over_or_traced_in_part(key, packed):
    frame = two_frames()[0]
    frame = frame.pack() if packed else frame
    tangent = t3.T3Tangent.random(key, frame)
    expected = tangent.norm()
    # float32, in a program of its own.
    closed = jax.jit(lambda v: t3.T3Tangent(frame, v).norm())(tangent.variations)
    assert abs(closed - expected) < 1e-5 * expected

    def partly(down):
        mixed = eqx.tree_at(lambda f: f.down_tt, frame, down)
        return t3.T3Tangent(mixed, tangent.variations).inner(tangent)

    assert abs(jax.jit(partly)(frame.down_tt) - expected**2) < 1e-5 * expected**2

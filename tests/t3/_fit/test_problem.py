"""The least-squares problem against dense derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3
from t3._fit.problem import least_squares

SIZES = ((4, 3, 5), (2, 2, 2), (1, 2, 2, 1))
COUNT = 7


def samplings(rng):
    ww = tuple(rng.standard_normal((COUNT, n)) for n in SIZES[0])
    pp = tuple(rng.standard_normal((COUNT, n)) for n in SIZES[0])
    index = np.stack([rng.integers(0, n, COUNT) for n in SIZES[0]])
    return {
        "probe": t3.Probe(ww),
        "apply": t3.Apply(ww),
        "entries": t3.Entries(index),
        "probe derivatives": t3.Probe(ww, pp, 2),
        "apply derivatives": t3.Apply(ww, pp, 2),
        "entries derivatives": t3.Entries(index, pp, 4),
    }


def sampled(x, sampling):
    """What the tensor's own methods give."""
    if isinstance(sampling, t3.Entries):
        if sampling.order is None:
            return x.entries(sampling.index)
        return x.entries_derivatives(sampling.index, sampling.pp, sampling.order)
    kind = "probe" if isinstance(sampling, t3.Probe) else "apply"
    if sampling.order is None:
        return getattr(x, kind)(sampling.ww)
    return getattr(x, kind + "_derivatives")(sampling.ww, sampling.pp, sampling.order)


def weights(sampling, rng):
    orders = 1 if sampling.order is None else sampling.order + 1
    return rng.uniform(0.5, 2, (3, orders) if isinstance(sampling, t3.Probe) else (orders,))


def flat(tree):
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


def dense_objective(x, sampling, data, weight, ridge):
    """From the tensor's own samples and its dense norm."""
    residual = jax.tree.map(lambda a, b: a - b, sampled(x, sampling), data)
    if isinstance(sampling, t3.Probe):
        if sampling.order is None:
            residual = tuple(a[None] for a in residual)
        parts = [
            jnp.sum((a * w[:, None, None]) ** 2) for a, w in zip(residual, weight, strict=True)
        ]
    else:
        residual = residual[None] if sampling.order is None else residual
        parts = [jnp.sum((residual * weight[:, None]) ** 2)]
    return sum(parts) / 2 + ridge * jnp.sum(x.to_dense() ** 2) / 2


@pytest.mark.parametrize("name", list(samplings(np.random.default_rng(0))))
def test_value_gradient_and_product(name, rng, key, relative_error):
    sampling = samplings(rng)[name]
    keys = jax.random.split(key, 3)
    x, truth = (t3.TuckerTensorTrain.random(k, *SIZES) for k in keys[:2])
    data = sampled(truth, sampling)
    weight, ridge = weights(sampling, rng), 0.3

    def objective(x):
        return dense_objective(x, sampling, data, weight, ridge)

    value, slope = jax.jit(jax.value_and_grad(objective))(x)
    # Gauss-Newton is the second derivative of the objective with the samples linearised.
    frame = t3.Manifold().frame(x)
    v = t3.T3Tangent.random(keys[2], frame)

    @jax.jit
    def expected_product(v):
        jets = jax.tree.map(jnp.asarray, sampled(v, sampling))
        square = weight**2
        if isinstance(sampling, t3.Probe):
            jets = tuple(a[None] for a in jets) if sampling.order is None else jets
            jets = tuple(a * w[:, None, None] for a, w in zip(jets, square, strict=True))
            order = sampling.order or 0
            back = t3.probe_derivatives_transpose(
                jets, sampling.ww, sampling.pp, frame, order, sum_over_probes=True
            )
        else:
            jets = (jets[None] if sampling.order is None else jets) * square[:, None]
            where = sampling.index if isinstance(sampling, t3.Entries) else sampling.ww
            run = (
                t3.entries_derivatives_transpose
                if isinstance(sampling, t3.Entries)
                else t3.apply_derivatives_transpose
            )
            back = run(jets, where, sampling.pp, frame, sampling.order or 0, sum_over_probes=True)
        return t3.T3Tangent(frame, back + v.variations * ridge).project().variations

    product = expected_product(v)

    @jax.jit
    def ours(x, v):
        problem = least_squares(x, sampling, data, weight=weight, ridge=ridge, chunk_size=3)
        frame = t3.Manifold().frame(x)
        own = t3.Corewise().frame(x)
        return (
            problem.objective(x),
            problem.value_and_gradient("corewise", x, own),
            problem.value_and_gradient("manifold", x, frame),
            problem.gauss_newton_product("manifold", frame, v),
        )

    along = t3.T3Tangent.random(jax.random.key(7), frame)
    # Derivative of the objective along a tangent, by the dense road.
    derivative = jax.jit(jax.grad(lambda s: objective((along * s).to_t3(include_point=True))))(0.0)

    for packed in (False, True):
        args = (x.pack(), frame.pack_variations(v.variations)) if packed else (x, v.variations)
        have, (value_c, gradient_c), (value_m, gradient_m), *products = ours(*args)
        for number in (have, value_c, value_m):
            assert relative_error(number, value) < 1e-12
        f = frame.pack() if packed else frame
        gradient_c = jax.tree.leaves(
            t3.TuckerTensorTrain(gradient_c.tucker, gradient_c.tt, args[0].ranks).unpack()
        )
        for a, b in zip(gradient_c, jax.tree.leaves(slope), strict=True):
            assert relative_error(a, b) < 1e-11
        gradient_m = f.unpack_variations(gradient_m)
        assert abs(float(gradient_m.dot(along.variations) - derivative)) < 1e-10 * float(value)
        for have_product in products:
            # Together: single cores may have nothing left after the gauge.
            have_product = flat(f.unpack_variations(have_product))
            assert relative_error(have_product, flat(product)) < 1e-11


def test_batch_is_a_part(rng, key, relative_error):
    sampling = samplings(rng)["probe derivatives"]
    x = t3.TuckerTensorTrain.random(key, *SIZES)
    data = sampled(t3.TuckerTensorTrain.random(jax.random.key(1), *SIZES), sampling)
    problem = least_squares(x, sampling, data, ridge=0.5)
    parts = [np.arange(0, 3), np.arange(3, COUNT)]
    total = sum(float(problem.batch(jnp.asarray(part)).objective(x)) for part in parts)
    assert relative_error(total, problem.objective(x)) < 1e-13


def test_inputs_are_checked(rng, key):
    x = t3.TuckerTensorTrain.random(key, *SIZES)
    sampling = samplings(rng)["probe derivatives"]
    data = sampled(x, sampling)
    with pytest.raises(ValueError, match="weight has shape"):
        least_squares(x, sampling, data, weight=np.ones(5))
    with pytest.raises(ValueError, match="negative"):
        least_squares(x, sampling, data, ridge=-1.0)
    with pytest.raises(ValueError, match="one number"):
        least_squares(x, sampling, data, ridge=jnp.ones(3))
    with pytest.raises(ValueError, match="mode 1"):
        least_squares(x, sampling, (data[0], data[0], data[2]))

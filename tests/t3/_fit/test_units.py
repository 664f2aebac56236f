"""Fits of data of any size: as many times the fit of data of size one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

SHAPE, RANKS = (4, 5), ((2, 2), (1, 2, 1))


@pytest.fixture(scope="module")
def case():
    draw = lambda i: t3.TuckerTensorTrain.random(  # noqa: E731
        jax.random.key(i), SHAPE, *RANKS, dtype=jnp.float32
    )
    index = np.stack([axis.ravel() for axis in np.indices(SHAPE)])
    return draw(1), t3.Entries(index), draw(0).entries(index)


@pytest.mark.filterwarnings("ignore::t3.UselessFitWarning")
@pytest.mark.parametrize("size", [2.0**-66, 2.0**60])
@pytest.mark.parametrize(
    ("method", "steps"), [("newton_cg", 20), ("gradient_descent", 30), ("mc_sgd", 40), ("adam", 50)]
)
def test_single_precision_of_any_size(method, steps, size, case):
    # Powers of two, so that even the digits are the same.
    x, sampling, data = case
    options = {"method": method, "max_steps": steps}
    one = t3.fit(x, sampling, data, **options)
    result = t3.fit(x * size, sampling, data * jnp.float32(size), **options)
    assert (result.reason, result.step) == (one.reason, one.step)
    np.testing.assert_array_equal(result.x.to_dense(), one.x.to_dense() * size)
    for a, b in zip(result.history, one.history, strict=True):
        assert a.misfit == b.misfit
        assert a.objective == b.objective * size**2
    if method == "newton_cg":
        assert result.converged and result.relative_misfit < 1e-5


def test_weights_and_regularizer_of_any_size(case):
    x, sampling, data = case
    size = 2.0**66  # one over the noise of data of size 1e-20
    weighted = t3.fit(
        x / size, sampling, data / jnp.float32(size), weight=size, regularizer=size**2
    )
    plain = t3.fit(x, sampling, data, regularizer=1.0)
    np.testing.assert_allclose(
        weighted.x.to_dense() * jnp.float32(size), plain.x.to_dense(), rtol=1e-6, atol=1e-6
    )


def test_data_that_the_type_cannot_hold_are_no_zeros(case):
    x, sampling, data = case
    with pytest.raises(ValueError, match="float32"):
        t3.fit(x, sampling, np.asarray(data, np.float64) * 1e-60)


def test_growth_of_any_size(case):
    _, sampling, data = case
    found = [
        t3.fit_growing_ranks(
            sampling,
            data * jnp.float32(s),
            max_stages=2,
            validation=(sampling, data * jnp.float32(s)),
        )
        for s in (1.0, 2.0**-66)
    ]
    assert found[0].errors == found[1].errors
    np.testing.assert_array_equal(found[1].x.to_dense() * 2.0**66, found[0].x.to_dense())

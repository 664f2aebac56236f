"""A method of one's own, and the ones that ship, as objects."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

SHAPE, RANKS = (3, 4), ((3, 3), (1, 3, 1))

pytestmark = pytest.mark.filterwarnings("ignore::t3.UselessFitWarning")


class FixedStep(t3.Method):
    """Steps of one length down the gradient."""

    length: float = 0.1
    max_steps: int = 20
    geometry: t3.Geometry = t3.Manifold()

    def step(self, problem, x, memory, look, step):
        return t3.Step(self.geometry.step(x, look.frame, look.gradient * -self.length))


@pytest.fixture(scope="module")
def entries():
    truth = t3.TuckerTensorTrain.random(jax.random.key(0), SHAPE, *RANKS)
    index = np.stack([axis.ravel() for axis in np.indices(SHAPE)])
    return t3.Entries(index), truth.entries(index)


def test_a_method_of_ones_own_fits(entries):
    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    result = t3.fit(start, *entries, method=FixedStep(max_steps=40))
    assert result.reason is t3.StopReason.STEP_LIMIT
    assert [record.step for record in result.history] == list(range(41))
    # Gradient descent of these lengths on the dense problem, which all ranks make this one.
    sampling, data = entries
    dense, target = start.to_dense(), jnp.zeros(SHAPE).at[tuple(sampling.index)].set(data)
    for record in result.history[:3]:
        np.testing.assert_allclose(record.objective, jnp.sum((dense - target) ** 2) / 2, rtol=1e-9)
        dense = dense - 0.1 * (dense - target)
    assert result.history[-1].objective < 1e-3 * result.history[0].objective
    again = t3.fit(
        start,
        *entries,
        method=FixedStep(max_steps=40),
        resume=t3.fit(start, *entries, method=FixedStep(max_steps=15)),
    )
    np.testing.assert_allclose(again.x.to_dense(), result.x.to_dense(), rtol=1e-12, atol=1e-14)


def test_an_own_geometry_moves_it(entries):
    class Damped(t3.Geometry):
        """The manifold, its steps halved."""

        inner: t3.Manifold = t3.Manifold()

        def start(self, x):
            return self.inner.start(x)

        def frame(self, x):
            return self.inner.frame(x)

        def project(self, frame, v):
            return self.inner.project(frame, v)

        def step(self, x, frame, v):
            return self.inner.step(x, frame, v * 0.5)

        def point(self, x, frame):
            return self.inner.point(x, frame)

    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    halved = t3.fit(start, *entries, method=FixedStep(geometry=Damped(), max_steps=3))
    direct = t3.fit(start, *entries, method=FixedStep(length=0.05, max_steps=3))
    np.testing.assert_allclose(halved.x.to_dense(), direct.x.to_dense(), rtol=1e-12)


@pytest.mark.parametrize("name", ["newton_cg", "gradient_descent", "mc_sgd", "adam"])
def test_a_string_stands_for_the_defaults(name, entries):
    method = {
        "newton_cg": t3.NewtonCG,
        "gradient_descent": t3.GradientDescent,
        "mc_sgd": t3.MCSGD,
        "adam": t3.Adam,
    }[name]
    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    short = t3.fit(start, *entries, method=name, max_steps=3, max_cg_steps=None)
    long = t3.fit(start, *entries, method=method(max_steps=3))
    assert eqx.tree_equal(short.x, long.x)
    assert short.step == long.step and method().geometry == type(method().geometry)()


def test_a_fit_takes_few_parameters():
    assert len(inspect.signature(t3.fit).parameters) <= 10


def test_adam_goes_on_as_if_it_had_not_stopped(entries):
    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    options = {"method": "adam", "check_every": 5, "decay_steps": 30}
    ten = t3.fit(start, *entries, max_steps=10, **options)
    twenty = t3.fit(start, *entries, max_steps=20, resume=ten, **options)
    straight = t3.fit(start, *entries, max_steps=20, **options)
    np.testing.assert_allclose(twenty.x.to_dense(), straight.x.to_dense(), rtol=1e-12)


def test_adam_is_compiled_once_for_many_fits(entries):
    from t3._fit.methods import adam

    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    t3.fit(start, *entries, method="adam", max_steps=1)
    before = adam.optax_step._cached._cache_size()
    t3.fit(start, *entries, method="adam", max_steps=2)
    assert adam.optax_step._cached._cache_size() == before


def test_an_optimizer_that_searches_lines_is_refused(entries):
    import optax

    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    with pytest.raises(ValueError, match="gradients of minibatches alone.*newton_cg"):
        t3.fit(start, *entries, method=t3.Adam(optimizer=optax.lbfgs()))
    with pytest.raises(ValueError, match="optax transformation such as"):
        t3.Adam(optimizer=0.1)


@pytest.mark.parametrize("key", [0, np.int64(3), jax.random.split(jax.random.key(0))])
def test_keys_are_checked(key):
    with pytest.raises(ValueError, match="key must be one key"):
        t3.MCSGD(key=key)

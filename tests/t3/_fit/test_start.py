"""Starts from the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t3

SHAPE, RANKS = (6, 5, 4), ((2, 2, 2), (1, 2, 2, 1))


@pytest.fixture(scope="module")
def truth():
    x = t3.TuckerTensorTrain.random(jax.random.key(0), SHAPE, *RANKS)
    return x / x.norm()


@pytest.fixture(scope="module")
def samples(truth):
    rng = np.random.default_rng(0)
    ww, pp = (tuple(rng.standard_normal((90, n)) for n in SHAPE) for _ in range(2))
    index = np.stack([rng.integers(0, n, 110) for n in SHAPE])
    return {
        "probe": (t3.Probe(ww), truth.probe(ww)),
        "apply jets": (t3.Apply(ww, pp, 1), truth.apply_derivatives(ww, pp, 1)),
        "entries": (t3.Entries(index), truth.entries(index)),
    }


@pytest.mark.parametrize("name", ["probe", "apply jets", "entries"])
def test_ranks_are_enough(name, truth, samples):
    # Random entries of both signs, of which random cores of these ranks find little.
    result = t3.fit(None, *samples[name], ranks=RANKS)
    assert result.converged, result.reason
    assert float((result.x - truth).norm()) < 1e-6
    assert (result.x.tucker_ranks, result.x.tt_ranks) == RANKS


def test_what_a_start_cannot_know_is_said(samples):
    sampling, data = samples["entries"]
    with pytest.raises(ValueError, match="mode size 3"):
        t3.fit(None, sampling, data, shape=(3, 3, 3))
    with pytest.raises(ValueError, match="a start needs"):
        t3.fit(((2, 2), (1, 1)), sampling, data)
    with pytest.raises(ValueError, match="x0 was given"):
        t3.fit(t3.FromData(RANKS), sampling, data, ranks=RANKS)


def test_a_part_is_held_out(samples):
    for name, (sampling, data) in samples.items():
        split = t3.SplitOff(fraction=0.2, key=jax.random.key(3))
        train, values, held = split.split(sampling, data)
        for points, part in ((train, values), (held.sampling, held.data)):
            # Which samples they are does not matter, only that data go with them.
            x = t3.TuckerTensorTrain.random(jax.random.key(0), SHAPE, *RANKS)
            x = x / x.norm()
            run = {
                "probe": lambda p: x.probe(p.ww),
                "apply jets": lambda p: x.apply_derivatives(p.ww, p.pp, 1),
                "entries": lambda p: x.entries(p.index),
            }[name]
            for a, b in zip(jax.tree.leaves(run(points)), jax.tree.leaves(part), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-12)
        count = lambda data: jax.tree.leaves(data)[0].shape[-1 if name != "probe" else 0]  # noqa: E731
        assert count(held.data) == round(0.2 * count(data))
        assert count(values) + count(held.data) == count(data)


def test_a_useless_fit_is_not_converged_and_warns():
    # Noise, held out: what is fitted says nothing about it.
    rng = np.random.default_rng(0)
    index = np.stack([axis.ravel() for axis in np.indices((4, 5))])
    noise = jnp.asarray(rng.standard_normal(20))
    with pytest.warns(t3.UselessFitWarning, match="no better than zero"):
        found = t3.fit_growing_ranks(
            t3.Entries(index[:, :12]),
            noise[:12],
            validation=(t3.Entries(index[:, 12:]), -10 * noise[12:]),
            max_stages=1,
            shape=(4, 5),
        )
    assert found.useless and not found.converged

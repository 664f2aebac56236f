"""Groups of options, their short form, and what is said about a wrong one."""

import equinox as eqx
import jax
import numpy as np
import pytest

import t3

SHAPE, RANKS = (3, 4), ((2, 2), (1, 2, 1))


@pytest.fixture(scope="module")
def case():
    truth, start = (t3.TuckerTensorTrain.random(jax.random.key(i), SHAPE, *RANKS) for i in (0, 1))
    index = np.stack([axis.ravel() for axis in np.indices(SHAPE)])
    return start, t3.Entries(index), truth.entries(index)


def test_groups_and_short_form_say_the_same(case):
    seen = []
    held_out = case[1:]
    long = t3.fit(
        *case,
        method=t3.NewtonCG(max_steps=3),
        objective=t3.Objective(weight=2.0, regularizer=0.1, chunk_size=5),
        validation=t3.HeldOut(*held_out, patience=4),
        watch=t3.Watch(callback=lambda record, x: seen.append(record)),
    )
    short = t3.fit(
        *case,
        max_steps=3,
        weight=2.0,
        regularizer=0.1,
        chunk_size=5,
        validation=held_out,
        patience=4,
    )
    assert eqx.tree_equal(long.x, short.x) and long.history == short.history == tuple(seen)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_step": 3}, TypeError, "Did you mean max_steps="),
        ({"resident": True}, TypeError, "no option resident="),
        ({"method": t3.NewtonCG(), "max_steps": 3}, ValueError, r"NewtonCG\(max_steps=\.\.\.\)"),
        ({"objective": t3.Objective(), "weight": 2.0}, ValueError, r"t3.Objective\(weight="),
        ({"watch": t3.Watch(), "progress": True}, ValueError, r"t3.Watch\(progress="),
        ({"validation": 3.0}, ValueError, "fraction must lie between 0 and 1"),
        ({"method": 3}, ValueError, "t3.Method or one of"),
        ({"weight": 0.0}, ValueError, "weight must leave something"),
        ({"weight": [1.0, 2.0]}, ValueError, "weight has shape"),
        ({"checkpoint": ""}, ValueError, "name a file"),
        ({"checkpoint": "/no/such/folder/fit.npz"}, ValueError, "folder that does not exist"),
        ({"checkpoint": "/"}, ValueError, "is a folder"),
    ],
)
def test_a_wrong_option_is_named(options, error, words, case):
    options = {"method": "newton_cg", **options}
    with pytest.raises(error, match=words):
        t3.fit(*case, **options)


def test_held_out_data_must_be_finite(case):
    start, sampling, data = case
    bad = np.array(data)
    bad[2] = np.nan
    with pytest.raises(ValueError, match="validation must hold finite data"):
        t3.fit(start, sampling, data, validation=(sampling, bad))

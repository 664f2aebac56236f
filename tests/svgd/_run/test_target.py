"""The user's function: what it is taken for, how it is called, and what it may not return."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from normal_start import standard_normal, start

import kernels
import svgd

KINDS = {
    "log-density": (standard_normal, False),
    "score": (lambda x: -x, False),
    "batched log-density": (lambda x: -0.5 * jnp.sum(x**2, axis=-1), True),
    "batched score": (lambda x: -x, True),
}


def test_log_density_and_score_each_and_batched_agree(relative_error):
    runs = {
        name: svgd.SVGD().run(fn, 1 + start(), 10, whiten=None, batched=batched).particles
        for name, (fn, batched) in KINDS.items()
    }
    for name, (fn, batched) in KINDS.items():
        kind = "score" if "score" in name else "log_density"
        options = {"batched": batched, "kind": kind}
        runs[f"said to be a {name}"] = (
            svgd.SVGD().run(fn, 1 + start(), 10, whiten=None, **options).particles
        )
    for name, particles in runs.items():
        assert relative_error(particles, runs["score"]) < 1e-13, name


def test_every_particle_of_a_step_sees_the_same_key(key):
    def score(x, key):
        return jax.random.normal(key, (1,)) + 0 * x

    state = svgd.SVGD(optimizer=optax.sgd(0.1)).init(score, start(5, 1), key=key, whiten=None)
    target_scores = jax.vmap(lambda x: score(x, jax.random.split(key)[1]))(state.points)
    assert np.ptp(np.asarray(target_scores)) == 0
    new = svgd.SVGD(svgd.SteinUpdate(kernels.Gaussian(1e6)), optax.sgd(0.1)).step(score, state)
    moves = np.asarray(new.points - state.points)
    assert np.allclose(moves, 0.1 * np.asarray(target_scores), rtol=1e-6)


BAD = {
    "score shape": (
        lambda: svgd.SVGD().run(lambda x: jnp.concatenate([x, x]), start(4, 2)),
        r"\(4,\).*expected shape \(\).*\(2,\)",
    ),
    "score structure": (
        lambda: svgd.SVGD().run(lambda p: {"b": p["a"]}, {"a": start(4, 2)}),
        "expected shape",
    ),
    "batched as single": (
        lambda: svgd.SVGD().run(lambda x: jnp.sum(x, axis=0), start(4, 2), batched=True),
        r"\(2,\).*\(4, 2\)",
    ),
    "forgotten sum": (
        lambda: svgd.SVGD().run(lambda x: -0.5 * x**2, start(4, 2), kind="log_density"),
        r"returns \(2,\).*expected shape \(\) \(a log-density\)\. Was a sum",
    ),
    "forgotten sum, batched": (
        lambda: svgd.SVGD().init(lambda x: -(x**2), start(4, 2), kind="log_density", batched=True),
        r"returns \(4, 2\).*expected shape \(4,\) \(a log-density\)\. Was a sum",
    ),
    "forgotten sum, pytree": (
        lambda: svgd.SVGD().run(lambda p: {"a": -p["a"]}, {"a": start(4, 2)}, kind="log_density"),
        r"expected shape \(\) \(a log-density\)\. Was a sum",
    ),
    "log-density as score": (
        lambda: svgd.SVGD().run(standard_normal, start(4, 2), kind="score"),
        r"returns \(\).*expected shape \(2,\) \(a score\)",
    ),
    "score in a step": (
        lambda: svgd.SVGD().step(
            lambda x: -x, svgd.SVGD().init(standard_normal, start(4, 2)), kind="log_density"
        ),
        "a log-density",
    ),
    "kind": (lambda: svgd.SVGD().run(standard_normal, start(4, 2), kind="logp"), "logp"),
    "score dtype": (
        lambda: svgd.SVGD().run(lambda x: -x.astype(np.float32), start(4, 2)),
        "float32.*float64",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_of_the_function_say_how_it_was_called():
    with pytest.raises(TypeError) as caught:
        svgd.SVGD().run(lambda x, key: -0.5 * x @ x, start())
    assert "pass key= to run" in "".join(caught.value.__notes__)
    with pytest.raises(Exception) as caught:
        svgd.SVGD().run(lambda x: x @ jnp.ones((7, 2)), start())
    assert "batched=True" in "".join(caught.value.__notes__)

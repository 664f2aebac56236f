"""Particles as pytrees and arrays: how they are laid out and come back, and which are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from normal_start import standard_normal, start

import svgd
from svgd import _checks
from svgd._run import layout as _particles


def test_pytrees_come_back_in_kind(dtype):
    def log_density(p):
        return -0.5 * jnp.sum((p["w"] - 1) ** 2) - 0.5 * (p["nested"][0] + 2) ** 2

    flat = start(300, 5, dtype)
    particles = {"w": np.asarray(flat[:, :4]).reshape(300, 2, 2), "nested": (flat[:, 4],)}
    state = svgd.SVGD().run(log_density, particles, 100)
    out = state.particles
    assert jax.tree.structure(out) == jax.tree.structure(particles)
    assert out["w"].shape == (300, 2, 2) and out["nested"][0].shape == (300,)
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == dtype for leaf in jax.tree.leaves(out))
    assert np.allclose(out["w"].mean(0), 1, atol=0.02)
    assert np.allclose(out["nested"][0].mean(), -2, atol=0.02)

    scored = svgd.SVGD().run(jax.grad(log_density), particles, 10, whiten=None).particles
    same = svgd.SVGD().run(log_density, particles, 10, whiten=None).particles
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: np.allclose(a, b), scored, same)))


def test_integer_particles_are_promoted():
    state = svgd.SVGD().run(standard_normal, np.arange(10).reshape(5, 2), 3)
    assert state.particles.dtype == jnp.result_type(float)


BAD = {
    "empty": (lambda: svgd.SVGD().run(standard_normal, np.zeros((0, 2))), "no particles"),
    "no columns": (lambda: svgd.SVGD().run(standard_normal, np.zeros((3, 0))), "no particles"),
    "no leaves": (lambda: svgd.SVGD().run(standard_normal, {}), "no array"),
    "rank": (lambda: svgd.SVGD().run(standard_normal, np.zeros(3)), r"\(n, 1\)"),
    "scalar": (lambda: svgd.SVGD().run(standard_normal, 1.0), r"\(n, d\), got \(\)"),
    "ragged": (
        lambda: svgd.SVGD().run(standard_normal, {"a": np.zeros((3, 2)), "b": np.zeros(4)}),
        r"\(3, 2\), \(4,\)",
    ),
    "mixed dtypes": (
        lambda: svgd.SVGD().run(
            standard_normal, {"a": np.zeros((3, 2)), "b": np.zeros(3, np.float32)}
        ),
        "float32.*float64",
    ),
    "nan": (
        lambda: svgd.SVGD().run(standard_normal, np.array([[0.0], [np.nan], [np.inf]])),
        "2 of 3 particles",
    ),
    "complex": (lambda: svgd.SVGD().run(standard_normal, np.zeros((3, 2), complex)), "complex"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("in_host_memory", [True, False])
def test_finite_particles_are_told_in_one_pass(in_host_memory, monkeypatch, dtype):
    """Both ways: reading host memory in place, and a sum on the device."""
    monkeypatch.setattr(_checks, "_in_host_memory", lambda rows: in_host_memory)
    rows = jnp.asarray(start(7, 2, dtype))
    assert _particles.sum_is_finite(rows)
    assert not _particles.sum_is_finite(rows.at[3, 1].set(jnp.nan))
    with pytest.raises(ValueError, match="1 of 7 particles"):
        _particles.lay_out(rows.at[3, 1].set(-jnp.inf))
    # Finite entries whose sum is not are looked at one by one.
    huge = jnp.full((7, 2), np.finfo(dtype).max, dtype)
    assert not _particles.sum_is_finite(huge)
    assert _particles.lay_out(huge)[1].shape == (7, 2)
    # At once, even while something else is traced.
    assert jax.jit(lambda x: x if _particles.sum_is_finite(rows) else -x)(1.0) == 1


def test_particles_in_host_memory_are_read_in_place_beside_an_accelerator(monkeypatch):
    rows = start(5, 3)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jnp, "sum", None)
    assert _particles.sum_is_finite(rows)


def test_parameters_are_named_by_their_path():
    tree = {"b": np.zeros((4, 2)), "a": np.zeros(4)}
    assert _particles.lay_out(tree)[0].names == ("a", "b[0]", "b[1]")
    assert _particles.lay_out(np.zeros((4, 2)))[0].names == ("x[0]", "x[1]")
    assert _particles.lay_out([np.zeros(4), np.zeros((4, 1, 2))])[0].names == (
        "x[0]",
        "x[1][0, 0]",
        "x[1][0, 1]",
    )

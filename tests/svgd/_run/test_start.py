"""Starts outside of the support of the distribution are refused, and named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from normal_start import start

import svgd


def positive(x):
    """An exponential density, whose gradient is 0 where it has no support."""
    return jnp.sum(jnp.where(x > 0, -x, -jnp.inf))


OUTSIDE = {
    "one by one": (positive, {}),
    "batched": (lambda x: jax.vmap(positive)(x), {"batched": True}),
    "stochastic": (lambda x, key: positive(x), {"key": jax.random.key(0)}),
    "laplace": (lambda x: positive(x) - 0.5 * jnp.sum((x - 3) ** 2), {"whiten": "auto"}),
    "nan": (lambda x: jnp.sum(jnp.log(x)), {}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_start_outside_of_the_support_is_refused(name, dtype):
    fn, options = OUTSIDE[name]
    begin = np.linspace(1, 4, 24).reshape(12, 2).astype(dtype)
    options = {"whiten": None} | options
    svgd.SVGD().init(fn, begin, **options)
    begin[[5, 7], 1] = -2.5
    with pytest.raises(ValueError, match=r"at 2 of the 12 .*particle 5, \[ 2.3043 -2.5 ") as caught:
        svgd.SVGD().run(fn, begin, **options)
    assert f"where it is {'nan' if name == 'nan' else '-inf'}" in str(caught.value)


def test_particles_that_are_mapped_onto_the_mode_may_come_from_outside_of_the_support():
    def cut_off(mode):
        return lambda x: positive(x) - 0.5 * jnp.sum((x - 1 - mode) ** 2)

    begin = -50 + 0.1 * start(40, 2)
    state = svgd.SVGD().init(cut_off(9.0), begin)
    assert state.whitening.moved and np.all(np.asarray(state.particles) > 0)
    with pytest.raises(ValueError, match='mapped onto the mode; .*or take whiten="particles"'):
        svgd.SVGD().init(cut_off(2.0), begin)


def test_a_start_outside_of_the_support_is_shown_as_the_users_own_particle():
    begin = {"a": np.ones(3), "b": np.array([[1.0], [-1.0], [2.0]])}
    with pytest.raises(ValueError, match=r"particle 1, \{'a': array\(1\.\), 'b': array\(\[-1\.\]"):
        svgd.SVGD().run(lambda p: positive(p["a"]) + positive(p["b"]), begin)

"""Whole runs over a tree that is built again as the particles move."""

import jax
import numpy as np
import pytest
from many_devices import run_on_devices
from normal_start import standard_normal

import kernels
import svgd

# A process of its own: whatever ran before may have compiled some of the programs.
COUNTING = """
import json
import jax.numpy as jnp, numpy as np
import kernels, svgd
from bench.sampler import counted_compilations

begin = 1 + np.random.default_rng(0).normal(size=(3000, 2)).astype(np.float32)
with counted_compilations() as compiled:
    update = svgd.SteinUpdate(kernels.Gaussian(np.float32(0.5)), method="tree")
    state = svgd.SVGD(update).run(lambda x: -0.5 * jnp.sum(x**2), begin, 40)
    particles = np.asarray(state.particles)
assert np.all(np.isfinite(particles)) and int(state.step) == 40
print(json.dumps(compiled))
"""


def test_a_run_compiles_few_programs():
    """Everything counts: the kernel, the search for a mode, every partition, the final particles."""
    compiled = run_on_devices(COUNTING, 1)
    assert "jit(_advance)" in compiled
    assert len(compiled) <= 8, compiled


@pytest.mark.parametrize("d", [2, 3])
def test_particles_end_where_those_of_the_exact_update_do(d):
    """Nearer than two exact runs from different starts. In 2-D over cells, in 3-D over pairs."""

    def run(method, seed):
        begin = 1 + np.random.default_rng(seed).normal(size=(2000, d)).astype(np.float32)
        update = svgd.SteinUpdate(kernels.Gaussian(np.float32(0.5)), method=method)
        particles = svgd.SVGD(update).run(standard_normal, begin, 50).particles
        return np.asarray(particles, np.float64)

    def discrepancy(x, y):
        squared = jax.jit(svgd.mmd_squared)(x, y, kernels.Gaussian(1.0))
        return float(squared) ** 0.5

    exact = run("exact", 0)
    noise = discrepancy(run("exact", 1), exact)
    assert discrepancy(run("tree", 0), exact) < noise / 5


def test_a_partition_may_be_kept_for_a_few_steps(key):
    begin = jax.random.normal(key, (2000, 2), np.float32)
    update = svgd.SteinUpdate(kernels.Gaussian(np.float32(0.7)), method="tree")
    seen = []
    state = svgd.SVGD(update).run(
        standard_normal,
        begin,
        21,
        rebuild_every=4,
        whiten="particles",
        callback=lambda state: seen.append(int(state.step)),
        callback_every=7,
    )
    assert seen == [7, 14, 21]
    whole = svgd.SVGD(update).run(standard_normal, begin, 21, rebuild_every=4, whiten="particles")
    half = svgd.SVGD(update).run(standard_normal, begin, 8, rebuild_every=4, whiten="particles")
    rest = svgd.SVGD(update).run(standard_normal, half, 13, rebuild_every=4)
    assert np.array_equal(rest.particles, whole.particles)
    assert np.allclose(state.particles.std(0), 1, atol=0.1)

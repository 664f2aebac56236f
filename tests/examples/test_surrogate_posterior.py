import jax
import jax.numpy as jnp
import numpy as np
from example_scripts import load

import t3


def test_the_tensor_reads_what_the_equation_reads(tmp_path):
    example = load("surrogate_posterior")
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        example.NODES = (5,) * 4
        example.BASES = [t3.basis.chebyshev(5, -1.0, 1.0)] * 4
        found, solved = example.make_tensor()
        assert found.converged and solved < found.evaluations
        theta = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (20, 4)))
        exact = jax.vmap(example.by_equation)(theta)
        np.testing.assert_allclose(
            jax.vmap(example.by_tensor(found.x))(theta), exact, atol=2e-3 * exact.max()
        )
        particles = np.asarray(theta)
        assert example.report(particles, particles)
        assert not example.report(particles, particles + 0.3)
        figure = tmp_path / "figures" / "surrogate.png"
        example.draw(particles, particles, solved, 1000, figure)
    assert figure.stat().st_size > 20_000


def test_the_equation_is_solved():
    example = load("surrogate_posterior")
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        u = np.asarray(example.solve(jnp.asarray(example.TRUE)))
    conductivity = np.exp(example.TRUE @ example.WAVES) * example.CELLS**2
    flux = conductivity * np.diff(np.pad(u, 1))
    np.testing.assert_allclose(-np.diff(flux) + u**3, 5, atol=1e-8)

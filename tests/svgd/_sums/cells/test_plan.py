"""Plans of sums over cells: the kernel that they stand for is within the tolerance."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import Gaussian, InverseMultiquadric
from svgd._sums.cells import plan as _plan
from svgd._sums.cells.cells import Cells


@st.composite
def point_sets(draw):
    """Clustered, uniform, on a line, on a grid, tied, or with very different scales per axis."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dimension = draw(st.sampled_from([1, 2, 3]))
    n = 64
    shape = draw(st.sampled_from(["clusters", "uniform", "line", "grid", "ties", "scales"]))
    x = rng.uniform(-1, 1, (n, dimension))
    if shape == "clusters":
        x = 20 * rng.normal(size=(4, dimension))[rng.integers(0, 4, n)] + 0.3 * x
    elif shape == "line":
        x = np.outer(rng.uniform(-3, 3, n), rng.normal(size=dimension))
    elif shape == "grid":
        x = np.round(3 * x)
    elif shape == "ties":
        x = x[rng.integers(0, 5, n)]
    elif shape == "scales":
        x = x * 10.0 ** rng.integers(-4, 4, dimension)
    return x * draw(st.sampled_from([0.1, 1.0, 5.0]))


def kernel_matrix(kernel, sums, z):
    """The approximated kernel, column by column: the field of one particle's unit score."""
    n, dimension = z.shape

    def column(j):
        scores = jnp.zeros((n, dimension)).at[j].set(1.0)
        without = sums.scaled(kernel, None, z, jnp.zeros((n, dimension)))
        return (sums.scaled(kernel, None, z, scores) - without)[:, 0]

    return jax.lax.map(column, jnp.arange(n, dtype=jnp.int32), batch_size=16)


@settings(max_examples=6)
@given(x=point_sets(), tolerance=st.sampled_from([1e-1, 1e-2, 1e-3, 1e-5]), mixed=st.booleans())
def test_the_kernel_is_within_the_tolerance(x, tolerance, mixed):
    kernel = (InverseMultiquadric if mixed and tolerance > 1e-4 else Gaussian)(1.0)
    columns = np.ascontiguousarray(x.T)
    sides = columns.max(1) - columns.min(1)
    plans = _plan.cell_plans(kernel, tolerance, x, sides, len(x), x.dtype)
    assert plans
    # Both ends of the table: the cheapest plan, and the one with the fewest polynomials.
    for plan in {plans[0], min(plans, key=lambda p: (p.count, p.cells))}:
        assert plan.error <= tolerance
        sums, _ = Cells.of(columns, plan)
        sums = jax.tree.map(jnp.asarray, sums)
        found = jax.jit(kernel_matrix)(kernel, sums, jnp.asarray(x))
        assert np.abs(found - kernel(x, x)).max() <= tolerance * (1 + 1e-9) + 1e-12

"""Stages over cells against dense sums, and each stage against its transpose."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memory
import svgd
from kernels import Gaussian, InverseMultiquadric
from svgd._sums.cells import lattice as _lattice
from svgd._sums.cells import particles as _cells
from svgd._sums.cells import plan as _plan
from svgd._sums.cells.cells import Cells
from svgd._sums.cells.sweeps import from_parents, lattice_field, to_parents

SHAPE = {"half_width": 0.8, "count": 4, "weight": 0.25}


def basis(u, count, half_width, weight):
    """(blocks, d, slots) to (blocks, p^d, slots), the first axis slowest, in NumPy."""
    out = np.exp(-weight * np.sum(u**2, axis=1))[:, None]
    for axis in range(u.shape[1]):
        vander = np.polynomial.chebyshev.chebvander(u[:, axis] / half_width, count - 1)
        factor = np.moveaxis(vander, -1, 1)
        out = (out[:, :, None] * factor[:, None]).reshape(len(u), -1, u.shape[2])
    return out


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_up_and_down_are_products_with_the_basis(dimension, dtype, rng, relative_error):
    u = rng.uniform(-0.8, 0.8, (3, dimension, 8))
    q = rng.normal(size=(3, dimension + 1, 8))
    y = rng.normal(size=(3, dimension, 4**dimension))
    weights = basis(u, 4, 0.8, 0.25)
    u, q, y = (jnp.asarray(a, dtype) for a in (u, q, y))
    # Rounding of sums of 8 or 4^d terms.
    tolerance = {"float32": 1e-5, "float64": 1e-13}[dtype.name]
    moments = _cells.block_moments(u, q, **SHAPE)
    assert relative_error(moments, np.einsum("bms,bcs->bmc", weights, q)) < tolerance
    field = _cells.block_field(u, y, **SHAPE)
    assert relative_error(field, np.einsum("bms,bcm->bcs", weights, y)) < tolerance


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_cotangents_are_the_derivative_of_the_field(dimension, rng, relative_error):
    u = jnp.asarray(rng.uniform(-0.8, 0.8, (2, dimension, 8)))
    q = jnp.asarray(rng.normal(size=(2, 3, 8)))
    y = jnp.asarray(rng.normal(size=(2, 4**dimension, 3)))

    def energy(u, q):
        return jnp.sum(q * _cells.block_field(u, jnp.swapaxes(y, 1, 2), **SHAPE))

    expected = jax.grad(energy, (0, 1))(u, q)
    found = _cells.block_cotangents(u, q, y, kept=2, **SHAPE)
    assert relative_error(found[0], expected[0]) < 1e-12
    assert relative_error(found[1], expected[1][:, :2]) < 1e-12


def cells_of(x, kernel, tolerance=1e-3):
    z = np.ascontiguousarray(np.asarray(kernel.scale(jnp.asarray(x))).T)
    sides = z.max(1) - z.min(1)
    plan = _plan.cell_plans(kernel, tolerance, z.T, sides, len(x), z.dtype)[0]
    return jax.tree.map(jnp.asarray, Cells.of(z, plan)[0].cells)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_sweep_and_its_transpose_are_adjoint(dimension, rng):
    x = rng.normal(size=(300, dimension))
    sums = cells_of(x, Gaussian(0.3))
    cells, moments = sums.middle.shape[0], sums.count**dimension
    # The last cell stands for all that are missing: nothing acts from there, nobody asks there.
    a = jnp.asarray(rng.normal(size=(cells, moments, dimension + 1))).at[-1].set(0)
    b = jnp.asarray(rng.normal(size=(cells, dimension, moments)))
    occupied = jnp.zeros(cells).at[: int(sums.blocks.group.max()) + 1].set(1).at[-1].set(0)
    a, b = a * occupied[:, None, None], b * occupied[:, None, None]
    field, pull = jax.vjp(lambda m: lattice_field(m, sums.levels[0], jnp.ones(1)), a)
    assert float(jnp.vdot(field, b)) == pytest.approx(float(jnp.vdot(a, pull(b)[0])), rel=1e-12)


def test_parents_hold_the_same_field(rng, relative_error):
    sums = cells_of(rng.normal(size=(200, 2)), InverseMultiquadric(0.7), 1e-2)
    level, coarser = sums.levels[:2]
    count, cells = sums.count, level.into[0].shape[0]
    t = rng.uniform(-1, 1, (cells, 2))
    fine = np.stack([np.polynomial.chebyshev.chebvander(t[:, a], count - 1) for a in range(2)])
    side = np.asarray(level.side)
    s = (t + 2 * side - 1) / 2
    coarse = np.stack([np.polynomial.chebyshev.chebvander(s[:, a], count - 1) for a in range(2)])
    fine = np.einsum("ni,nj->nij", *fine).reshape(cells, -1, 1)
    coarse = np.einsum("ni,nj->nij", *coarse).reshape(cells, -1, 1)
    parents = coarser.into[0].shape[0]
    expected = jax.ops.segment_sum(jnp.asarray(coarse), level.parent, parents)
    assert relative_error(to_parents(jnp.asarray(fine), level, count, parents), expected) < 1e-12
    y = jnp.asarray(rng.normal(size=(parents, 1, count**2)))
    below = from_parents(y, level, count)
    direct = jnp.sum(y[level.parent][:, 0] * coarse[:, :, 0], axis=1)
    assert relative_error(jnp.sum(below[:, 0] * fine[:, :, 0], axis=1), direct) < 1e-12


def test_sweep_tables_lead_from_every_cell_to_its_neighbours(rng):
    positions = np.unique(rng.integers(-6, 6, (60, 3)), axis=0)
    reach = 2
    reached = np.eye(len(positions))
    for into in _lattice.sweep_tables(positions, reach):
        step = np.zeros((into.shape[0], reached.shape[0]))
        for s in range(2 * reach + 1):
            rows = np.flatnonzero(into[:, s] >= 0)
            step[rows, into[rows, s]] += 1
        reached = step @ reached
    gap = np.abs(positions[:, None] - positions[None, :]).max(-1)
    # Each neighbour is met along exactly one way.
    np.testing.assert_array_equal(reached, gap <= reach)


def test_lattice_of_outliers_is_that_of_the_bulk(rng):
    z = rng.normal(size=(3, 500))
    z[:, 0] = 1e7
    lattice = _lattice.build_lattice(z, 0.5)
    assert lattice.counts.sum() == 500
    inside = np.floor(z[:, lattice.order] / 0.5)
    assert np.array_equal(np.repeat(lattice.positions, lattice.counts, 0), inside.T)


@pytest.mark.parametrize("kernel", [Gaussian, InverseMultiquadric])
@pytest.mark.parametrize("dimension", [1, 3])
def test_gradient_is_that_of_the_approximated_update(kernel, dimension, rng, relative_error):
    n, tolerance = 300, 1e-3
    x = rng.normal(size=(n, dimension))
    v, w = rng.normal(size=(2, n, dimension))
    with memory.forced("svgd.sums", "cells"):
        update = svgd.SteinUpdate(kernel(0.9), method="tree", tolerance=tolerance)
        partition = update.partition(x)
    assert partition.sums == "cells"

    def along(t, method, partition):
        update = svgd.SteinUpdate(kernel(0.9 * jnp.exp(0.3 * t)), method=method)
        phi = update(x + t * v, -x + t * w, partition)
        return jnp.sum(w * phi)

    slope = eqx.filter_jit(jax.grad(along))
    value = eqx.filter_jit(along)
    found = slope(0.0, "tree", partition)
    step = 1e-4
    ahead, behind = (value(s, "tree", partition) for s in (step, -step))
    # Central differences: the third derivative times step^2, and rounding over step.
    assert float(found) == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-5)
    # The slope of an interpolant errs more than its value, by about p / kappa.
    assert float(found) == pytest.approx(float(slope(0.0, "exact", None)), rel=0.1)


def test_vmap_over_scores_and_bandwidths(rng, relative_error):
    x = rng.normal(size=(300, 2))
    scores = jnp.stack([-x, -2 * x])
    with memory.forced("svgd.sums", "cells"):
        update = svgd.SteinUpdate(Gaussian(0.8), method="tree")
        partition = update.partition(x)
    mapped = jax.vmap(lambda s: update(x, s, partition))(scores)
    for one, s in zip(mapped, scores, strict=True):
        assert relative_error(one, update(x, s, partition)) < 1e-13
    wide = jax.vmap(lambda h: svgd.SteinUpdate(Gaussian(h), method="tree")(x, -x, partition))(
        jnp.asarray([0.8, 0.81])
    )
    assert relative_error(wide[0], update(x, -x, partition)) < 1e-13

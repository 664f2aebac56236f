"""Directions that ranks exclude, against the dense residual."""

import jax
import numpy as np
import pytest

import t3
from t3._fit.directions import directions, grown
from t3._fit.problem import least_squares

SHAPE = (4, 5, 3)
RANKS = ((2, 2, 2), (1, 2, 2, 1))


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    index = np.stack([rng.integers(0, n, 50) for n in SHAPE])
    truth, x = (t3.TuckerTensorTrain.random(jax.random.key(i), SHAPE, *RANKS) for i in (0, 1))
    problem = least_squares(x, t3.Entries(index), truth.entries(index))
    # Entries may repeat: each counts.
    residual = np.zeros(SHAPE)
    np.add.at(residual, tuple(index), np.asarray(x.entries(index) - truth.entries(index)))
    return x, problem, residual


def outside(columns, basis):
    return columns - basis @ (basis.T @ columns)


@pytest.mark.parametrize("packed", [False, True])
def test_gains_are_singular_values_of_the_residual_outside_the_ranks(packed, case):
    x, problem, residual = case
    if packed:
        problem = least_squares(
            x.pack(), t3.Entries(problem.measured.probes.points), problem.measured.data[0]
        )
    found = directions(problem, x.pack() if packed else x, 3)
    dense = np.asarray(x.to_dense())
    # Of the first bond: columns and rows that the tensor has, rows seen through the right frame.
    u = np.linalg.svd(dense.reshape(4, -1), full_matrices=False)[0][:, :2]
    right = np.linalg.svd(dense.reshape(-1, 3), full_matrices=False)[2][:2]  # the last bond's
    seen = (residual.reshape(-1, 3) @ right.T).reshape(4, -1)
    v = np.linalg.svd((dense.reshape(-1, 3) @ right.T).reshape(4, -1), full_matrices=False)[2][:2]
    gains = np.linalg.svd(outside(outside(seen, u).T, v.T), compute_uv=False)
    np.testing.assert_allclose(found.bonds[0].gains[:2], gains[:2], rtol=1e-9)


def test_growth_lowers_the_objective_and_keeps_limits(case):
    x, problem, _ = case
    before = float(problem.objective(x))
    y = grown(problem, x, growth=1)
    assert max(y.tt_ranks) == 3 and float(problem.objective(y)) < before
    z = grown(problem, x, growth=1, max_ranks=((2, 3, 2), (1, 3, 2, 1)))
    assert (z.tucker_ranks, z.tt_ranks) == ((2, 3, 2), (1, 2, 2, 1))
    assert float(problem.objective(z)) < before
    assert grown(problem, x, growth=1, max_ranks=RANKS).tt_ranks == RANKS[1]

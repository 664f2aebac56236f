"""The update over a partition against the exact one, its gradients, and what it refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partition_cases import built, exact, forced_cells

import svgd
from kernels import Gaussian, InverseMultiquadric


def extended_sum(kernel, h, x, s):
    """The update in NumPy's extended precision."""
    z, q = x.astype(np.longdouble) / h, s.astype(np.longdouble) * h
    gap = z[:, None] - z[None, :]
    square = (gap**2).sum(-1)
    if kernel is Gaussian:
        f = slope = np.exp(-square / 2)
    else:
        f = 1 / np.sqrt(1 + square / 2)
        slope = f**3 / 2
    total = f @ q + (slope[:, :, None] * gap).sum(1)
    return (total / h / len(x)).astype(np.float64)


@pytest.mark.parametrize("kernel", [Gaussian, InverseMultiquadric])
@pytest.mark.parametrize("n", [1, 2, 500, 3000])
def test_theta_zero_is_exact(kernel, n, rng, relative_error):
    x, s = rng.normal(size=(2, n, 3))
    update = svgd.SteinUpdate(kernel(0.5), method="tree", theta=0.0)
    partition = update.partition(x)
    assert (partition.method, partition.sums, partition.num_far_pairs) == ("tree", "exact", 0)
    assert "theta = 0 opens everything" in partition.explain()
    assert svgd.SteinUpdate(kernel(0.5), theta=0.0).partition(x).method == "exact"
    assert relative_error(update(x, s, partition), exact(kernel(0.5), x, s)) < 1e-15


@pytest.mark.parametrize("kernel", [Gaussian, InverseMultiquadric])
def test_pairs_of_all_leaves_are_the_whole_sum(kernel, rng, relative_error):
    x, s = rng.normal(size=(2, 500, 3))
    options = {"leaf_size": 16, "pairing": "symmetric"}
    if kernel is Gaussian:
        # Nothing is dropped within 30 bandwidths, and no particles are farther apart.
        options["tolerance"] = 1e-200
    update, partition = built(x, "pairs", kernel(0.5), **options)
    assert partition.sums == "pairs" and partition.num_far_pairs == 0
    assert partition.num_near_leaf_pairs == partition.num_leaves**2
    found = update(x, s, partition)
    # Against the sum in extended precision the leaves are within 1e-15 ...
    assert relative_error(found, extended_sum(kernel, 0.5, x, s)) < 1e-15
    # ... and the exact update, with coordinates about one centre for all, within 1.5e-15.
    assert relative_error(found, exact(kernel(0.5), x, s)) < 2e-15


def test_the_answer_does_not_depend_on_the_chunk(rng, relative_error):
    x, s = rng.normal(size=(2, 400, 2))
    answers, gradients = {}, {}
    for chunk in (1, 7, 10**6, None):
        update = svgd.SteinUpdate(
            Gaussian(0.3), method="tree", theta=0.6, leaf_size=8, chunk_pairs=chunk
        )
        partition = update.partition(x)
        assert partition.num_far_pairs > 0

        def loss(x, s, update=update, partition=partition):
            phi = update(x, s, partition)
            return jnp.sum(phi**2), phi

        gradient, answers[chunk] = eqx.filter_jit(jax.grad(loss, (0, 1), has_aux=True))(x, s)
        gradients[chunk] = jnp.concatenate(gradient)
    for table in (answers, gradients):
        for chunk in (1, 7, None):
            assert relative_error(table[chunk], table[10**6]) < 1e-15


def test_directed_pairing_is_deprecated_and_the_same():
    with pytest.warns(DeprecationWarning, match="leave it out"):
        update = svgd.SteinUpdate(Gaussian(0.3), method="tree", pairing="directed")
    assert update == svgd.SteinUpdate(Gaussian(0.3), method="tree", pairing="symmetric")


def test_smaller_opening_angles_err_less(rng, relative_error):
    x, s = rng.normal(size=(2, 600, 3))
    kernel = InverseMultiquadric(0.5)
    errors = []
    for theta in (1.0, 0.5, 0.25):
        update = svgd.SteinUpdate(kernel, method="tree", theta=theta, leaf_size=8)
        errors.append(relative_error(update(x, s), exact(kernel, x, s)))
    assert errors[0] > errors[1] > errors[2] > 0
    # A monopole about the centre of mass errs by the square of the angle.
    assert errors[2] < 0.01


def test_far_gradients_are_those_of_the_approximated_update(rng):
    x, s, v = rng.normal(size=(3, 200, 2))
    update = svgd.SteinUpdate(InverseMultiquadric(0.5), method="tree", theta=0.9, leaf_size=4)
    partition = update.partition(x)
    assert partition.num_far_entries > 0

    def loss(t):
        return jnp.sum(update(x + t * v, s, partition) ** 2)

    loss = jax.jit(loss)
    step = 1e-5
    difference = (loss(step) - loss(-step)) / (2 * step)
    assert float(jax.grad(loss)(0.0)) == pytest.approx(float(difference), rel=1e-6)


LEAF = 8


def edge_cases(rng):
    line = np.outer(rng.normal(size=60), [1.0, -2.0, 0.5])
    plane = rng.normal(size=(60, 3)) * [1.0, 1.0, 0.0]
    ties = rng.normal(size=(200, 2))
    ties[:100] = ties[0]
    far = rng.normal(size=(60, 2))
    far[3] = 1e6
    table = {
        f"n = {n}": (rng.normal(size=(n, 2)), 1.0)
        for n in (1, 2, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF + 1)
    }
    return table | {
        "equal": (np.full((50, 3), 0.7), 1.0),
        "half equal": (ties, 0.5),
        "line": (line, 0.5),
        "plane": (plane, 0.5),
        "far particle": (far, 1.0),
        "tiny bandwidth": (rng.normal(size=(60, 2)), 1e-7),
        "huge bandwidth": (rng.normal(size=(60, 3)), 1e5),
        "d = 1": (rng.normal(size=(60, 1)), 0.5),
        "d = 10": (rng.normal(size=(60, 10)), 2.0),
    }


EDGE_CASES = tuple(edge_cases(np.random.default_rng(0)))


@pytest.mark.parametrize("name", EDGE_CASES)
def test_edge_cases_match_the_exact_update(name, rng, relative_error):
    x, h = edge_cases(rng)[name]
    s = rng.normal(size=x.shape)
    for dtype in ("float32", "float64"):
        a, b = x.astype(dtype), s.astype(dtype)
        kernel = Gaussian(h)
        expected = exact(kernel, a, b)
        size = float(jnp.abs(expected).max())
        ways = [{"theta": 1e-9, "leaf_size": LEAF}, {"leaf_size": LEAF}]
        for options in ways:
            found = svgd.SteinUpdate(kernel, method="tree", **options)(a, b)
            assert found.dtype == dtype
            # Within tolerance 1e-3 of the kernel, each of two terms.
            limit = 5e-3 if "theta" not in options else {"float32": 1e-5, "float64": 1e-13}[dtype]
            assert float(jnp.abs(found - expected).max()) <= limit * max(size, 1e-3)
        if x.shape[1] <= 3 and name != "tiny bandwidth":
            with forced_cells():
                found = svgd.SteinUpdate(kernel, method="tree")(a, b)
            assert float(jnp.abs(found - expected).max()) <= 1e-2 * max(size, 1e-3)


@pytest.mark.parametrize("how", ["ARD", "metric"])
def test_cells_are_built_in_scaled_coordinates(how, rng, relative_error):
    x = rng.normal(size=(400, 2)) * [10.0, 0.1]
    metric = np.array([[0.04, 0.5], [0.5, 400.0]])
    kernel = Gaussian([5.0, 0.05]) if how == "ARD" else Gaussian(metric=metric)
    with forced_cells():
        update = svgd.SteinUpdate(kernel, method="tree", tolerance=1e-4)
        partition = update.partition(x)
    s = rng.normal(size=x.shape) * [0.1, 10.0]
    assert partition.sums == "cells"
    assert relative_error(update(x, s, partition), exact(kernel, x, s)) < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fast"}, "method"),
        ({"pairing": "both"}, "pairing"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"theta": -1.0}, "theta"),
        ({"theta": 0.5, "tolerance": 1e-2}, "replaces"),
        ({"leaf_size": 0}, "leaf_size"),
        ({"method": "exact", "theta": 0.5}, "no effect"),
        ({"method": "exact", "chunk_pairs": 3}, "no effect"),
        ({"method": "exact", "pairing": "symmetric"}, "no effect"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        svgd.SteinUpdate(Gaussian(1.0), **options)


def test_traced_values_need_a_partition(rng):
    x = rng.normal(size=(2000, 2))
    update = svgd.SteinUpdate(Gaussian(0.5))
    with pytest.raises(ValueError, match=r"update\.partition\(particles\) outside jit"):
        jax.jit(lambda x: update(x, -x))(x)
    with pytest.raises(ValueError, match="finite"):
        update.partition(np.where(x > 3, np.nan, x))

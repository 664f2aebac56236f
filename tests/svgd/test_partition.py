"""Partitions: what they choose, what they bound, and that choices do not change the answer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memory
import svgd
from kernels import Gaussian, InverseMultiquadric
from svgd import _build, _plan, _sums
from svgd._choose import LOCATION, PAIRING, UnusedParameterWarning

CHOICES = {choice.name: choice for choice in (LOCATION, PAIRING)}


def forced_cells():
    return memory.forced("svgd.sums", "cells")


def exact(kernel, x, s):
    return svgd.SteinUpdate(kernel, method="exact")(x, s)


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


def kernel_matrix(sums, z):
    """The approximated kernel, column by column: the field of one particle's unit score."""
    n, dimension = z.shape

    def column(j):
        scores = jnp.zeros((n, dimension)).at[j].set(1.0)
        without = _sums.sum_over_cells(sums, z, jnp.zeros((n, dimension)))
        return (_sums.sum_over_cells(sums, z, scores) - without)[:, 0]

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
        sums, _ = _build.build_cells(columns, plan)
        sums = jax.tree.map(jnp.asarray, sums)
        found = jax.jit(kernel_matrix)(sums, jnp.asarray(x))
        assert np.abs(found - kernel(x, x)).max() <= tolerance * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("kernel", [Gaussian, InverseMultiquadric])
@pytest.mark.parametrize("pairing", ["directed", "symmetric"])
def test_theta_zero_is_exact(kernel, pairing, rng, relative_error):
    x, s = rng.normal(size=(2, 500, 3))
    update = svgd.SteinUpdate(kernel(0.5), method="tree", theta=0.0, leaf_size=16, pairing=pairing)
    partition = update.partition(x)
    assert partition.num_far_pairs == 0
    found = update(x, s, partition)
    # Against the sum in extended precision the tree itself is within 1e-15 ...
    assert relative_error(found, extended_sum(kernel, 0.5, x, s)) < 1e-15
    # ... and the exact update, with coordinates about one centre for all, within 1.5e-15.
    assert relative_error(found, exact(kernel(0.5), x, s)) < 2e-15


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


def test_the_answer_does_not_depend_on_chunk_or_pairing(rng, relative_error):
    x, s = rng.normal(size=(2, 400, 2))
    answers, gradients = {}, {}
    for pairing in ("directed", "symmetric"):
        for chunk in (1, 7, 10**6, None):
            update = svgd.SteinUpdate(
                Gaussian(0.3),
                method="tree",
                theta=0.6,
                leaf_size=8,
                pairing=pairing,
                chunk_pairs=chunk,
            )
            partition = update.partition(x)
            assert partition.num_far_pairs > 0

            def loss(x, s, update=update, partition=partition):
                phi = update(x, s, partition)
                return jnp.sum(phi**2), phi

            gradient, answers[pairing, chunk] = eqx.filter_jit(
                jax.grad(loss, (0, 1), has_aux=True)
            )(x, s)
            gradients[pairing, chunk] = jnp.concatenate(gradient)
    for table in (answers, gradients):
        for pairing in ("directed", "symmetric"):
            for chunk in (1, 7, None):
                assert relative_error(table[pairing, chunk], table[pairing, 10**6]) < 1e-15
        assert relative_error(table["directed", 7], table["symmetric", 7]) < 1e-14


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


def test_counts_are_directed(rng):
    x = rng.normal(size=(300, 2))
    update = svgd.SteinUpdate(Gaussian(1.0), method="tree", theta=0.0, leaf_size=10)
    partition = update.partition(x)
    assert partition.num_near_leaf_pairs == partition.num_leaves**2
    assert partition.method == "tree" and partition.num_particles == 300


def test_a_list_of_one_way_pairs_is_refused():
    with pytest.raises(ValueError, match=r"not symmetric.*\(0, 2\) but not \(2, 0\)"):
        _build.unordered_pairs([0, 1, 0, 0], [1, 0, 0, 2])
    with pytest.raises(ValueError, match="twice"):
        _build.unordered_pairs([0, 1, 0], [1, 0, 1])
    first, second = _build.unordered_pairs([0, 1, 0, 1, 2], [1, 0, 0, 1, 2])
    assert list(zip(first, second, strict=True)) == [(0, 0), (0, 1), (1, 1), (2, 2)]
    targets, sources = _build.directed_pairs(first, second)
    again = _build.unordered_pairs(targets, sources)
    assert np.array_equal(again, (first, second))


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
        ways = [{"theta": 0.0, "leaf_size": LEAF}, {"leaf_size": LEAF}]
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


@pytest.mark.parametrize("name", ["svgd.tree_location", "svgd.pairing"])
def test_both_sides_of_a_choice_do_the_same_job(name):
    below, above = CHOICES[name].workload(16)
    for a, b in zip(jax.tree.leaves(below()), jax.tree.leaves(above()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_auto_takes_what_is_cheaper(rng):
    update = svgd.SteinUpdate(Gaussian(0.5))
    small = update.partition(rng.normal(size=(300, 3)))
    assert small.method == "exact" and "exact" in small.explain()
    large = update.partition(rng.normal(size=(100_000, 2)))
    assert large.method == "tree" and large.sums == "cells"
    text = large.explain()
    for word in ("tolerance 0.001", "predicted seconds", "polynomials", "svgd.tree_location"):
        assert word in text
    wide = svgd.SteinUpdate(Gaussian(3.0)).partition(rng.normal(size=(5000, 12)))
    assert wide.method == "exact"


EXPLAINED = {
    "cells": (["cells", "far pairs", "far entries", "tiles"], ["near leaf", "leaves", "pairing"]),
    "pairs": (["leaves", "near leaf pairs (directed)", "tiles", "pairing"], ["far"]),
    "theta": (["leaves", "near leaf pairs (directed)", "far pairs", "far entries"], ["cells"]),
    "exact": (["exact (as asked)", "predicted seconds"], ["leaves", "near", "far", "tiles"]),
}


@pytest.mark.parametrize("way", EXPLAINED)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_what_does_not_apply_is_not_explained(way, backend, rng, monkeypatch):
    _, partition = built(rng.normal(size=(1500, 2)), way)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    text = partition.explain()
    said, unsaid = EXPLAINED[way]
    assert all(word in text for word in said) and not any(word in text for word in unsaid)
    assert " 0;" not in text
    assert ("unit costs of two CPU cores: guesses on gpu" in text) == (backend == "gpu")


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
        ({"method": "exact", "pairing": "directed"}, "no effect"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        svgd.SteinUpdate(Gaussian(1.0), **options)


def test_a_parameter_without_effect_warns(rng):
    update = svgd.SteinUpdate(Gaussian(0.5), method="tree", leaf_size=16)
    with forced_cells(), pytest.warns(UnusedParameterWarning, match="leaf_size"):
        update.partition(rng.normal(size=(500, 2)))


def test_traced_values_need_a_partition(rng):
    x = rng.normal(size=(2000, 2))
    update = svgd.SteinUpdate(Gaussian(0.5))
    with pytest.raises(ValueError, match=r"update\.partition\(particles\) outside jit"):
        jax.jit(lambda x: update(x, -x))(x)
    with pytest.raises(ValueError, match="finite"):
        update.partition(np.where(x > 3, np.nan, x))


def test_moving_particles_rarely_recompile(rng):
    x = rng.normal(size=(4000, 2))
    update = svgd.SteinUpdate(Gaussian(0.3))
    compiled = []

    @eqx.filter_jit
    def step(x, partition):
        compiled.append(partition)
        return x + 0.02 * update(x, -x, partition)

    for _ in range(20):
        partition = update.partition(x)
        assert partition.method == "tree"
        x = step(x, partition)
    assert len(compiled) <= 6


def test_crossing_a_boundary_jumps_by_no_more_than_the_tolerance(rng, relative_error):
    x = rng.normal(size=(500, 2))
    tolerance = 1e-2
    with forced_cells():
        update = svgd.SteinUpdate(Gaussian(0.4), method="tree", tolerance=tolerance)
        here, there = update.partition(x), update.partition(x + 1e-9 * rng.normal(size=x.shape))
        shifted = update.partition(x + 0.13)
    a = update(x, -x, here)
    assert relative_error(update(x, -x, there), a) < tolerance
    # Another lattice over the same particles stands for the largest jump there is.
    b = update(x + 0.13, -x, shifted)
    assert relative_error(b, a) < 2 * tolerance


WAYS = {
    "cells": {},
    "pairs": {},
    "theta": {"theta": 0.5},
    "exact": {"method": "exact"},
}


def built(x, way, kernel=None, **options):
    """An update and its partition, summed in a given way."""
    options = {"method": "tree"} | WAYS[way] | options
    with memory.forced("svgd.sums", "cells" if way == "cells" else "pairs"):
        update = svgd.SteinUpdate(Gaussian(0.5) if kernel is None else kernel, **options)
        return update, update.partition(x)


# What is given with the partition instead of x, and what the error says.
OTHERS = {
    "fewer": (lambda x, rng: x[:-1], "of 3000 particles in 2 dimensions, but 2999 in 2"),
    "flat": (lambda x, rng: x[:, :1], "in 2 dimensions, but 3000 in 1"),
    "shuffled": (lambda x, rng: rng.permutation(x), "in another order"),
    "reversed": (lambda x, rng: x[::-1], "in another order"),
    "drawn again": (lambda x, rng: rng.normal(size=x.shape), "from other particles"),
    "wider": (lambda x, rng: 4 * rng.normal(size=x.shape), "from other particles"),
    "narrower": (lambda x, rng: 0.1 * rng.normal(size=x.shape), "from other particles"),
}


@pytest.mark.parametrize("way", ["cells", "pairs", "theta"])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kernel", [Gaussian(0.3), Gaussian([1.0, 0.5])], ids=["h", "ARD"])
def test_a_partition_of_other_particles_is_refused(name, way, kernel, rng, dtype):
    x = rng.normal(size=(3000, 2)).astype(dtype)
    other, message = OTHERS[name]
    other = other(x, rng).astype(dtype)
    update, partition = built(x, way, kernel)
    with pytest.raises(ValueError, match=message):
        update(other, -other, partition)
    # Traced particles cannot be compared, but their number can.
    if other.shape == x.shape:
        jax.eval_shape(lambda y: update(y, -y, partition), other)
    else:
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda y: update(y, -y, partition), other)


@pytest.mark.parametrize("way", ["cells", "pairs", "theta"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": Gaussian(0.75)}, "another bandwidth"),
        ({"kernel": Gaussian(1 / 3)}, "another bandwidth"),
        ({"kernel": Gaussian([0.5, 0.75])}, "another bandwidth"),
        ({"kernel": Gaussian(metric=np.array([[4.0, 3.0], [3.0, 4.0]]))}, "another bandwidth"),
        ({"kernel": InverseMultiquadric(0.5)}, "built for Gaussian.*has InverseMultiquadric"),
        ({"method": "exact"}, 'method "exact", but the partition "tree"'),
    ],
)
def test_a_partition_of_another_update_is_refused(way, change, message, rng):
    x = rng.normal(size=(3000, 2))
    _, partition = built(x, way)
    options = {"kernel": Gaussian(0.5), "method": "tree"}
    options |= WAYS[way] if "method" not in change else {}
    with pytest.raises(ValueError, match=message):
        svgd.SteinUpdate(**options | change)(x, -x, partition)


def test_a_partition_of_another_accuracy_is_refused_even_when_traced(rng):
    x = rng.normal(size=(1200, 2))
    coarse, _ = built(x, "cells", tolerance=1e-2)
    _, partition = built(x, "cells")
    with pytest.raises(ValueError, match=r"at tolerance 0.001, but .* at tolerance 0.01"):
        jax.eval_shape(lambda y: coarse(y, -y, partition), x)
    _, partition = built(x, "theta")
    with pytest.raises(ValueError, match=r"at theta 0.5, but .* at tolerance 0.01"):
        jax.eval_shape(lambda y: coarse(y, -y, partition), x)
    # Exact sums are right whatever the particles.
    exactly, partition = built(x, "exact")
    exactly(-x, x, partition)
    svgd.SteinUpdate(Gaussian(2.0), tolerance=1e-2)(x, -x, partition)


SLOW = {
    "unmoved": (lambda x, rng: x, 1.0),
    "a step of finite differences": (lambda x, rng: x + 1e-4, 1 + 1e-4),
    "noise": (lambda x, rng: x + 0.1 * rng.normal(size=x.shape), 1.0),
    "a common move": (lambda x, rng: x + 0.2, 1.0),
    "closing in": (lambda x, rng: np.median(x, 0) + 0.9 * (x - np.median(x, 0)), 1.0),
    "spreading": (lambda x, rng: np.median(x, 0) + 1.1 * (x - np.median(x, 0)), 1.0),
    "a bandwidth being learned": (lambda x, rng: x, 1.2),
}


@pytest.mark.parametrize("way", ["cells", "pairs", "theta"])
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize(
    "shape", ["normal", "crowd", "clusters", "outlier", "line", "equal", "one"]
)
def test_slow_particles_keep_their_partition(name, way, shape, rng):
    x = rng.normal(size=(1500, 2))
    if shape == "clusters":
        x = 0.3 * x + 6 * rng.normal(size=(5, 2))[rng.integers(0, 5, 1500)]
    elif shape == "outlier":
        x[7] = 1e6
    elif shape == "line":
        x[:, 1] = 2 * x[:, 0]
    elif shape in ("crowd", "equal"):
        x = 3 + (1e-2 if shape == "crowd" else 0) * x
    elif shape == "one":
        x = x[:1]
    move, rescaled = SLOW[name]
    _, partition = built(x, way, Gaussian(0.8))
    update, _ = built(x, way, Gaussian(0.8 * rescaled))
    y = move(x, rng)
    assert np.all(np.isfinite(update(y, -y, partition)))


@pytest.mark.parametrize("n", [1, 300])
def test_equal_particles_have_room_to_move_in_their_cell(n, rng, relative_error):
    x = np.full((n, 2), 3.0)
    update, partition = built(x, "cells", Gaussian(0.8))
    y = x + 0.1 * rng.uniform(-1, 1, x.shape)
    assert relative_error(update(y, -y, partition), exact(update.kernel, y, -y)) < 2e-3


def test_a_check_inside_a_trace_sees_concrete_particles(rng):
    x = rng.normal(size=(1500, 2))
    update, partition = built(x, "cells")
    x, turned = jnp.asarray(x), jnp.asarray(x[::-1])
    scores = jnp.stack([-x, -2 * x])
    jax.jit(jax.vmap(lambda s: update(x, s, partition)))(scores)
    with pytest.raises(ValueError, match="another order"):
        jax.jit(lambda s: update(turned, s, partition))(-x)

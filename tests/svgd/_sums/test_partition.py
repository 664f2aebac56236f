"""Partitions: what they count, and what changes from one to the next as particles move."""

import copy
import dataclasses
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partition_cases import built, forced_cells

import svgd
from kernels import Gaussian
from svgd._sums.partition import Record


def test_counts_are_directed(rng):
    x = rng.normal(size=(300, 2))
    # All pairs are near in so large a bandwidth.
    _, partition = built(x, "pairs", Gaussian(100.0), leaf_size=10)
    assert partition.num_near_leaf_pairs == partition.num_leaves**2
    assert partition.method == "tree" and partition.num_particles == 300


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


@pytest.mark.parametrize("way", ["cells", "pairs", "theta", "exact"])
def test_a_compiled_function_gives_each_partition_its_own_counts(way, rng):
    x = rng.normal(size=(300, 2))
    _, first = built(x, way)
    _, second = built(x + 1e-3 * rng.normal(size=x.shape), way)
    # As if other pairs had been counted, of the same shapes.
    counts = dataclasses.replace(second.counts, num_far_pairs=2**40 + 7)
    record = Record.of(counts, dict(second.record.read()[1]))
    second = eqx.tree_at(lambda p: p.record.words, second, jnp.asarray(record.words))
    compiled = []

    @eqx.filter_jit
    def through(partition):
        compiled.append(partition)
        return partition

    for partition in (first, second, first):
        returned = through(partition)
        assert returned.counts == partition.counts and returned == partition
        assert returned.explain() == partition.explain()
    assert second.num_far_pairs == 2**40 + 7 and second != first
    assert len(compiled) <= 2 if way == "cells" else len(compiled) == 1
    with pytest.raises(ValueError, match="outside of jit"):
        jax.eval_shape(lambda p: jnp.zeros(p.num_leaves), first)


@pytest.mark.parametrize("way", ["cells", "pairs", "theta", "exact"])
def test_partitions_are_copied_and_pickled(way, rng):
    x = rng.normal(size=(300, 2))
    update, partition = built(x, way)
    for again in (copy.deepcopy(partition), pickle.loads(pickle.dumps(partition))):
        assert again == partition and again.explain() == partition.explain()
        np.testing.assert_array_equal(update(x, -x, again), update(x, -x, partition))
    assert built(x[::-1], way)[1] == partition if way == "exact" else True

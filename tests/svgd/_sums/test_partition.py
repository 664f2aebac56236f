"""Partitions: what they count, and what changes from one to the next as particles move."""

import equinox as eqx
from partition_cases import built, forced_cells

import svgd
from kernels import Gaussian


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

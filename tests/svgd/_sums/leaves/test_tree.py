"""The Morton tree, the walk and the expansion: invariants, and the host against the device."""

import numpy as np
import pytest

from svgd._sums.leaves import tree as _tree
from svgd._sums.leaves import walk as _walk

FIELDS = ("order", "start", "stop", "left", "right", "lower", "upper")


def clouds(rng, dtype):
    ties = rng.normal(size=(300, 3))
    ties[:150] = ties[0]
    line = np.outer(rng.normal(size=200), [1.0, 2.0, 0.0])
    far = rng.normal(size=(100, 2))
    far[7] = 1e6
    table = {
        "one": (rng.normal(size=(1, 2)), 4),
        "two": (rng.normal(size=(2, 1)), 1),
        "equal": (np.ones((40, 3)), 8),
        "ties": (ties, 8),
        "line": (line, 5),
        "far": (far, 4),
        "d = 10": (rng.normal(size=(200, 10)), 16),
        "d = 40": (rng.normal(size=(100, 40)), 16),
        "grid": (np.stack(np.meshgrid(*[np.arange(6.0)] * 3), -1).reshape(-1, 3), 4),
    }
    return {name: (z.astype(dtype), leaf) for name, (z, leaf) in table.items()}


NAMES = ("one", "two", "equal", "ties", "line", "far", "d = 10", "d = 40", "grid")


@pytest.mark.parametrize("name", NAMES)
def test_leaves_tile_the_particles_in_tight_boxes(name, dtype, rng):
    z, leaf_size = clouds(rng, dtype)[name]
    tree = _tree.build(z, leaf_size)
    assert np.array_equal(np.sort(tree.order), np.arange(len(z)))
    leaves = np.flatnonzero(tree.left < 0)
    ranges = sorted(zip(tree.start[leaves], tree.stop[leaves], strict=True))
    assert ranges[0][0] == 0 and ranges[-1][1] == len(z)
    assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    for node in range(len(tree.start)):
        inside = z[tree.order[tree.start[node] : tree.stop[node]]]
        assert np.array_equal(inside.min(0), tree.lower[node])
        assert np.array_equal(inside.max(0), tree.upper[node])
        if tree.left[node] >= 0:
            left, right = tree.left[node], tree.right[node]
            assert tree.start[node] == tree.start[left] and tree.stop[left] == tree.start[right]
            assert tree.stop[right] == tree.stop[node] > tree.stop[left] > tree.start[node]


def test_leaves_hold_no_more_than_asked_without_ties(rng):
    tree = _tree.build(rng.normal(size=(2000, 3)), 16)
    assert (tree.stop - tree.start)[tree.left < 0].max() <= 16


@pytest.mark.parametrize("name", ["one", "ties", "d = 40"])
def test_host_and_device_give_equal_arrays(name, dtype, rng):
    z, leaf_size = clouds(rng, dtype)[name]
    host, device = _tree.build(z, leaf_size), _tree.build_on_device(z, leaf_size)
    for field in FIELDS:
        a, b = getattr(host, field), np.asarray(getattr(device, field))
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert host.first_of_level == device.first_of_level
    for options in ({"theta": 0.6}, {"radius": 0.8}):
        walks = _walk.walk(host, **options), _walk.walk_on_device(host, **options)
        for a, b in zip(*walks, strict=True):
            np.testing.assert_array_equal(a, np.asarray(b))


def covered(tree, first, second, n):
    count = np.zeros((n, n), int)
    for a, b in zip(first, second, strict=True):
        rows = tree.order[tree.start[a] : tree.stop[a]]
        columns = tree.order[tree.start[b] : tree.stop[b]]
        count[np.ix_(rows, columns)] += 1
        if a != b:
            count[np.ix_(columns, rows)] += 1
    return count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("theta", [0.0, 0.7])
def test_every_pair_is_near_or_far_once(name, theta, rng):
    z, leaf_size = clouds(rng, np.float64)[name]
    tree = _tree.build(z, leaf_size)
    walk = _walk.walk(tree, theta=theta)
    near = covered(tree, walk.near_first, walk.near_second, len(z))
    far = covered(tree, walk.far_first, walk.far_second, len(z))
    assert np.all(near + far == 1)
    assert theta > 0 or not far.any()


@pytest.mark.parametrize("name", NAMES)
def test_only_pairs_beyond_the_radius_are_dropped(name, rng):
    z, leaf_size = clouds(rng, np.float64)[name]
    tree = _tree.build(z, leaf_size)
    walk = _walk.walk(tree, radius=0.9)
    near = covered(tree, walk.near_first, walk.near_second, len(z))
    distance = np.linalg.norm(z[:, None] - z[None, :], axis=-1)
    assert near.max() <= 1 and np.all(near[distance <= 0.9] == 1)
    assert walk.far_first.size == 0


def test_expansion_equals_the_loop():
    rng = np.random.default_rng(0)
    for case in range(500):
        ranges = rng.integers(0, 7)
        owner = rng.integers(0, 9, ranges).astype(np.int32)
        start = rng.integers(0, 50, ranges).astype(np.int32)
        count = rng.integers(0, 6, ranges).astype(np.int32) * (case % 5 > 0)
        owners = [owner[i] for i in range(ranges) for _ in range(count[i])]
        members = [m for i in range(ranges) for m in range(start[i], start[i] + count[i])]
        expansions = [_walk.expand(owner, start, count)]
        if case < 40:
            expansions.append(_walk.expand_on_device(owner, start, count))
        for found in expansions:
            assert np.asarray(found[0]).tolist() == owners
            assert np.asarray(found[1]).tolist() == members

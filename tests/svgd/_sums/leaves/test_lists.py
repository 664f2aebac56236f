"""Lists of pairs of leaves, each unordered pair once."""

import numpy as np
import pytest

from svgd._sums.leaves import lists as _lists
from svgd._sums.leaves import walk as _walk
from svgd._sums.leaves.leaves import Leaves


def test_a_list_of_one_way_pairs_is_refused():
    with pytest.raises(ValueError, match=r"not symmetric.*\(0, 2\) but not \(2, 0\)"):
        _lists.unordered_pairs([0, 1, 0, 0], [1, 0, 0, 2])
    with pytest.raises(ValueError, match="twice"):
        _lists.unordered_pairs([0, 1, 0], [1, 0, 1])
    first, second = _lists.unordered_pairs([0, 1, 0, 1, 2], [1, 0, 0, 1, 2])
    assert list(zip(first, second, strict=True)) == [(0, 0), (0, 1), (1, 1), (2, 2)]
    # Of each pair one direction, whichever it is.
    again = _lists.unordered_pairs(second[::-1], first[::-1])
    assert np.array_equal(again, (first, second))


def test_a_walk_that_lists_pairs_one_way_is_refused_where_the_list_is_built(rng, monkeypatch):
    z, walk = rng.normal(size=(200, 2)), _walk.walk

    def one_way(tree, **options):
        found = walk(tree, **options)
        a, b = (
            np.append(rows, other[-1:]) for rows, other in zip(found[:2], found[1::-1], strict=True)
        )
        return found._replace(near_first=a, near_second=b)

    monkeypatch.setattr(_walk, "walk", one_way)
    with pytest.raises(ValueError, match="not symmetric"):
        Leaves.of(z, leaf_size=8, radius=0.3)

"""Lists of pairs of leaves, unordered and directed."""

import numpy as np
import pytest

from svgd._sums import build as _build


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

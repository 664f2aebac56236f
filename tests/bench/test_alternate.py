"""Two checkouts timed in turns."""

from pathlib import Path

import pytest

from bench import alternate, report

ROOT = Path(__file__).parents[2]


def test_a_tree_beside_itself_has_the_same_rows():
    old, new = alternate.run(ROOT, ROOT, ["t3.scratch"], rounds=2, smoke=True)
    assert list(old) == list(new) == ["t3.scratch"]
    rows = [[line["params"] for line in side["t3.scratch"]["rows"]] for side in (old, new)]
    assert rows[0] == rows[1]
    assert rows[0]
    # What a program keeps does not depend on who compiles it.
    assert not any("scratch" in line for line in report.compare(old, new, 1.05).regressions)


def test_a_folder_that_is_no_checkout_is_named(tmp_path):
    with pytest.raises(ValueError, match="no checkout"):
        alternate.run(tmp_path, ROOT, None, rounds=1, smoke=True)

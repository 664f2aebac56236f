"""Exact, cells or pairs: what is chosen and how it is explained."""

import jax
import numpy as np
import pytest
from partition_cases import built, forced_cells

import memory
import svgd
from kernels import Gaussian
from svgd._sums.leaves.leaves import LOCATION


def test_both_sides_of_a_choice_do_the_same_job():
    below, above = LOCATION.workload(16)
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
    # Few particles see each other, and yet all leaves: more slots than particles, and all pairs.
    crowded = svgd.SteinUpdate(Gaussian(0.25)).partition(rng.normal(size=(5000, 8)))
    assert crowded.method == "exact"


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


@pytest.mark.parametrize("theta", [None, 0.0])
@pytest.mark.parametrize("how", ["partition", "call"])
def test_a_parameter_without_effect_warns_at_the_callers_line(theta, how, rng):
    options = {"theta": theta, "leaf_size": 16, "chunk_pairs": 4}
    update = svgd.SteinUpdate(Gaussian(0.5), method="tree", **options)
    x = rng.normal(size=(500, 2))
    message = "leaf_size, chunk_pairs"
    with forced_cells(), pytest.warns(svgd.UnusedParameterWarning, match=message) as caught:
        update.partition(x) if how == "partition" else update(x, -x)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("location", ["host", "device"])
def test_only_trees_are_built_on_the_device(location, rng):
    x = rng.normal(size=(300, 2))
    with memory.forced("svgd.tree_location", location):
        assert f"built on the {location} (crossover" in built(x, "theta")[1].explain()
        assert "built on the host" in built(x, "cells")[1].explain()

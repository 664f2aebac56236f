"""The axis of a mesh that work is split over."""

import jax
import numpy as np
import pytest

import memory


def mesh_of_one(*names):
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape([1] * len(names)), names)


@pytest.mark.parametrize(
    ("names", "axis", "expected"), [("a", "a", "a"), ("a", None, "a"), (("a", "b"), "b", "b")]
)
def test_axis_named_or_the_only_one(names, axis, expected):
    assert memory.mesh_axis(mesh_of_one(*names), axis) == expected


@pytest.mark.parametrize(
    ("mesh", "axis", "error", "words"),
    [
        (mesh_of_one("a"), "b", ValueError, "no axis 'b', only"),
        (mesh_of_one("a", "b"), None, ValueError, "say which one"),
        ([1, 2], "a", TypeError, "got list"),
    ],
)
def test_what_cannot_be_split_over_is_refused(mesh, axis, error, words):
    with pytest.raises(error, match=words):
        memory.mesh_axis(mesh, axis)

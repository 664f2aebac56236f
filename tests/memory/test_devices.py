"""The devices along an axis of a mesh. Programs on several devices are tests of who splits work."""

import jax
import jax.numpy as jnp
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


def test_devices_are_those_that_mesh_and_axis_name():
    mesh = mesh_of_one("a", "b")
    devices = memory.Devices.of(mesh, "b")
    assert devices == memory.Devices(mesh, "b") == memory.Devices.of(devices)
    assert hash(devices) == hash(memory.Devices(mesh, "b")) and devices != memory.Devices(mesh, "a")
    assert (devices.axis, devices.count) == ("b", 1)
    assert memory.Devices(mesh_of_one("a")).axis == "a"
    assert memory.Devices.of(None) is None


@pytest.mark.parametrize(
    ("mesh", "axis", "words"),
    [
        (None, "a", "give mesh= as well"),
        (mesh_of_one("a", "b"), None, "say which one"),
        (memory.Devices(mesh_of_one("a", "b"), "b"), "a", "split the axis 'b', not 'a'"),
    ],
)
def test_devices_that_nothing_names_are_refused(mesh, axis, words):
    with pytest.raises(ValueError, match=words):
        memory.Devices.of(mesh, axis)


class _Four(memory.Devices):
    """Counts four: what does not divide is found before anything is placed."""

    count = 4


@pytest.mark.parametrize(("count", "choices"), [(6, "4 or 8"), (3, "take 4")])
def test_rows_that_do_not_divide_are_named_with_those_that_do(count, choices):
    with pytest.raises(
        ValueError, match=f"a ring: {count} rows do not divide over the 4.*{choices}"
    ):
        _Four(mesh_of_one("a")).check_divides(count, "a ring", "rows")
    _Four(mesh_of_one("a")).check_divides(8, "a ring")
    assert _Four(mesh_of_one("a")).padded(count) == -(-count // 4) * 4


def test_arrays_are_placed_split_or_whole():
    devices = memory.Devices(mesh_of_one("a"))
    split = devices.place(jnp.ones((3, 2)))
    assert split.sharding == devices.sharding(0) and split.dtype == np.float64
    assert devices.place(split, along=1).sharding == devices.sharding(1)
    whole = devices.replicate({"x": jnp.ones(3)})["x"]
    assert whole.sharding == devices.sharding(None)
    # Traced rows are placed by the program that they are part of.
    assert jax.jit(lambda rows: devices.place(rows) + 1)(jnp.ones(2)).shape == (2,)

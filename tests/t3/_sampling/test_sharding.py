"""Many devices: eight of the host's, in a process of its own (the device count is fixed at start)."""

import jax
import numpy as np
import pytest
from many_devices import run_on_devices
from sampling_cases import normal, tangent, vectors

import t3

PROGRAM = """
import json, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
jax.config.update("jax_enable_x64", True)
import memory, t3
from sampling_cases import error, normal, packed, tangent, vectors

rng = np.random.default_rng(0)
shape, count, order = (6, 5, 7), 64, 2
v = tangent(rng, shape, (4, 4, 4), (4, 4, 4), (1, 4, 4, 1), (1, 4, 4, 1))
ww, pp = vectors(rng, shape, (count,)), vectors(rng, shape, (count,))
residual = tuple(normal(rng, (order + 1, count, n)) for n in shape)
out = {}

def run(mesh, summed, frame=v.frame, residual=residual, ww=ww, pp=pp, size=2):
    return t3.sharded_probe_derivatives_transpose(
        residual, ww, pp, frame, order, mesh=mesh, axis="probes", sum_over_probes=summed,
        chunk_size=size,
    )

mesh = jax.make_mesh((8,), ("probes",))
for summed in (True, False):
    one = t3.probe_derivatives_transpose(residual, ww, pp, v.frame, order, sum_over_probes=summed)
    many = run(mesh, summed)
    out[f"error {summed}"] = float(error(jax.tree.map(np.asarray, many), one))
    leaf = many.tt[1]
    out[f"split {summed}"] = leaf.sharding.shard_shape(leaf.shape)[0] < leaf.shape[0]
cut = lambda f, axis: tuple(a.take(np.arange(61), axis) for a in f)
part = cut(residual, 1), cut(ww, 0), cut(pp, 0)
one = t3.probe_derivatives_transpose(*part, v.frame, order, sum_over_probes=True)
many = run(mesh, True, residual=part[0], ww=part[1], pp=part[2])
out["error uneven"] = float(error(jax.tree.map(np.asarray, many), one))
try:
    run(mesh, False, residual=part[0], ww=part[1], pp=part[2])
except ValueError as refusal:
    out["refused"] = str(refusal)
w = packed(v)
fill = lambda f: jnp.stack([jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, 7 - a.shape[-1])]) for a in f])
many = run(mesh, True, w.frame, fill(residual), fill(ww), fill(pp))
one = t3.probe_derivatives_transpose(residual, ww, pp, w.frame, order, sum_over_probes=True)
out["error packed"] = float(error(jax.tree.map(np.asarray, many), one))

split = lambda f, spec: tuple(jax.device_put(a, NamedSharding(mesh, spec)) for a in f)
placed = (
    split(residual, PartitionSpec(None, "probes")),
    split(ww, PartitionSpec("probes")),
    split(pp, PartitionSpec("probes")),
)
text = jax.jit(lambda r, w, p: run(mesh, True, residual=r, ww=w, pp=p)).lower(*placed).compile().as_text()
out["all-reduce"] = text.count(" all-reduce(") + text.count(" all-reduce-start(")
out["all-gather"] = text.count("all-gather")
scratch = []
for devices in (1, 2, 8):
    part = jax.make_mesh((devices,), ("probes",), devices=jax.devices()[:devices])
    fn = lambda r, w, p: run(part, True, residual=r, ww=w, pp=p, size=None)
    scratch.append(memory.compiled_memory(fn, residual, ww, pp).temp_bytes)
out["scratch"] = scratch
# A mesh with explicit axes would not even let the plain functions cut across the split.
auto = jax.sharding.Mesh(np.array(jax.devices()), ("probes",))
place = lambda a, *spec: jax.device_put(a, NamedSharding(auto, PartitionSpec(*spec)))
w = tuple(place(a, "probes") for a in ww)
index = place(np.zeros((3, count), int), None, "probes")
x, scalars = v.frame.to_t3(), normal(rng, (1, count))
total = dict(sum_over_probes=True, chunk_size=None)
calls = {
    "probe transpose": lambda: t3.probe_derivatives_transpose(residual, w, pp, v.frame, order, **total),
    "apply transpose": lambda: t3.apply_derivatives_transpose(scalars, w, None, v.frame, 0, **total),
    "entries transpose": lambda: t3.entries_derivatives_transpose(scalars, index, None, v.frame, 0, **total),
    "probe": lambda: t3.probe_derivatives(x, w, None, 0),
    "apply": lambda: x.apply(w),
    "entries": lambda: x.entries(index),
}
out["warnings"] = {}
for name, call in calls.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    ours = [w for w in caught if w.category is t3.ShardedProbesWarning]
    out["warnings"][name] = [(str(w.message), w.filename) for w in ours]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def eight_devices():
    return run_on_devices(PROGRAM, 8)


def test_equal_to_one_device(eight_devices):
    for what in ("error True", "error False", "error packed", "error uneven"):
        assert eight_devices[what] < 1e-12
    assert eight_devices["split False"] and not eight_devices["split True"]


def test_compiled_program_has_one_all_reduce_and_no_all_gather(eight_devices):
    assert eight_devices["all-reduce"] == 1
    assert eight_devices["all-gather"] == 0


def test_scratch_of_a_device_falls_with_the_number_of_devices(eight_devices):
    one, two, eight = eight_devices["scratch"]
    assert eight < two < one


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        ("probe transpose", "sharded_probe_derivatives_transpose"),
        ("apply transpose", "shard_map"),
        ("entries transpose", "shard_map"),
        ("probe", "shard_map"),
        ("apply", "shard_map"),
        ("entries", "shard_map"),
    ],
)
def test_probes_split_over_devices_are_noticed(function, remedy, eight_devices):
    ((message, file),) = eight_devices["warnings"][function]
    assert remedy in message
    assert file == "<string>"  # the program itself, however many frames are between


def test_kept_results_that_do_not_divide_are_refused(eight_devices):
    assert "Append 3 probes whose residual is zero" in eight_devices["refused"]


def mesh_of_one(*names):
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape([1] * len(names)), names)


def transposed(rng, batch=(4,), **places):
    v = tangent(rng, (3,), (2,), (2,), (1, 1), (1, 1))
    residual, ww = [normal(rng, (1, *batch, 3))], vectors(rng, (3,), batch)
    return t3.sharded_probe_derivatives_transpose(residual, ww, None, v.frame, 0, **places)


def test_probes_without_an_axis_are_refused(rng):
    with pytest.raises(ValueError, match="must have a probe axis"):
        transposed(rng, (), mesh=mesh_of_one("probes"), axis="probes")


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"mesh": mesh_of_one("probes"), "axis": "rows"}, "no axis 'rows'"),
        ({"mesh": mesh_of_one("a", "b")}, "say which one"),
        ({"mesh": jax.devices(), "axis": "probes"}, "[mM]esh"),
    ],
)
def test_places_that_are_none_are_refused(places, words, rng):
    # What is no mesh may be refused by the check of the annotations, which tests have switched on.
    with pytest.raises((ValueError, TypeError), match=words):
        transposed(rng, **places)


def test_the_only_axis_need_not_be_named(rng):
    kept = transposed(rng, mesh=mesh_of_one("probes"))
    assert kept.tucker[0].shape[0] == 4

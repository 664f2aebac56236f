"""Fits over eight of the host's devices, in a process of its own (their count is fixed at start)."""

import jax
import pytest
from many_devices import run_on_devices

import t3

PROGRAM = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
jax.config.update("jax_enable_x64", True)
import memory, t3

shape, ranks = (5, 6, 4), ((2, 3, 2), (1, 2, 2, 1))
truth, noise = (t3.TuckerTensorTrain.random(jax.random.key(i), shape, *ranks) for i in (0, 1))
truth = truth / truth.norm()
start = (truth + noise * (0.3 / noise.norm())).round(ranks=ranks)
mesh = jax.make_mesh((8,), ("probes",))
rng = np.random.default_rng(0)
vectors = lambda n: tuple(rng.standard_normal((n, size)) for size in shape)
out = {}

def difference(a, b):
    return float((a.unpack() - b.unpack()).norm())

# 61 probes: the last device has fewer.
ww, pp = vectors(61), vectors(61)
probes = t3.Probe(ww, pp, 1), truth.probe_derivatives(ww, pp, 1)
index = np.stack([rng.integers(0, n, 64) for n in shape])
entries = t3.Entries(index), truth.entries(index)
options = dict(max_steps=3, regularizer=0.1, chunk_size=3)
one = t3.fit(start, *probes, **options)
many = t3.fit(start, *probes, **options, mesh=mesh, checkpoint=sys.argv[1])
out["uneven"] = difference(one.x, many.x)
out["histories"] = max(
    abs(a.objective - b.objective) + abs(a.gradient_norm - b.gradient_norm)
    for a, b in zip(one.history, many.history, strict=True)
)
out["devices of the result"] = len(many.x.tt_cores[0].devices())

# A checkpoint of many devices goes on, on one.
saved = t3.FitResult.load(sys.argv[1])
options["max_steps"] = 5
rest = t3.fit(start, *probes, **options, resume=saved)
out["resumed"] = difference(rest.x, t3.fit(start, *probes, **options).x)

# Samples that are split already, packed storage.
split = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, PartitionSpec(*spec)))
placed = t3.Entries(split(index, None, "probes")), split(entries[1], "probes")
options = dict(max_steps=3)
one = t3.fit(start.pack(), *entries, **options)
many = t3.fit(
    start.pack(), *placed, **options, mesh=mesh, axis="probes", validation=placed
)
out["placed"] = difference(one.x, many.x)
x = one.current.entries(index)
held_out = float(jnp.linalg.norm(x - entries[1]) / jnp.linalg.norm(entries[1]))
out["validation"] = abs(many.history[-1].validation - held_out)

def collectives(fn, *args):
    text = jax.jit(fn).lower(*args).compile().as_text()
    return [text.count(" all-reduce(") + text.count(" all-reduce-start("), text.count("all-gather")]

problem = t3.least_squares(start, *probes, mesh=mesh, chunk_size=3)
out["gradient"] = collectives(lambda p, x: p.gradient(x), problem, start)
frame = t3.T3Frame.from_t3(start)
v = t3.T3Tangent.random(jax.random.key(2), frame).variations
out["product"] = collectives(
    lambda p, *args: p.gauss_newton_product("manifold", *args), problem, frame, v
)

for method in ("mc_sgd", "adam"):
    run = t3.fit(start, *probes, method=method, mesh=mesh, max_steps=100, batch_size=32)
    out[method] = run.history[-1].objective / run.history[0].objective
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def eight_devices(tmp_path_factory):
    file = tmp_path_factory.mktemp("split") / "fit.npz"
    return run_on_devices(PROGRAM, 8, str(file))


@pytest.mark.parametrize("what", ["uneven", "histories", "resumed", "placed", "validation"])
def test_equal_to_one_device(what, eight_devices):
    assert eight_devices[what] < 1e-12


@pytest.mark.parametrize("what", ["gradient", "product"])
def test_compiled_program_has_one_all_reduce_and_no_all_gather(what, eight_devices):
    assert eight_devices[what] == [1, 0]


@pytest.mark.parametrize("method", ["mc_sgd", "adam"])
def test_minibatches_of_every_device_descend(method, eight_devices):
    assert eight_devices[method] < 0.3


def test_results_are_at_hand(eight_devices):
    assert eight_devices["devices of the result"] == 1


def test_a_mesh_needs_its_axis(key):
    x = t3.TuckerTensorTrain.random(key, (3, 3), (2, 2), (1, 2, 1))
    sampling, data = t3.Entries([[0, 1], [1, 2]]), [1.0, 2.0]
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("probes",))
    with pytest.raises(ValueError, match="no axis 'rows'"):
        t3.fit(x, sampling, data, mesh=mesh, axis="rows")
    with pytest.raises(ValueError, match="missing"):
        t3.fit(x, sampling, data, axis="rows")

"""Many devices: eight of the host's, in a process of its own (the device count is fixed at start)."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels
import svgd

PROGRAM = """
import contextlib, json
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
import kernels, memory, svgd

devices = np.array(jax.devices())
auto = jax.sharding.Mesh(devices, ("particles",))
explicit = jax.make_mesh((8,), ("particles",))
two = jax.make_mesh((2, 4), ("a", "b"))
G, I = kernels.Gaussian, kernels.InverseMultiquadric
metric = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.0], [0.0, 0.0, 0.5]])
rng = np.random.default_rng(0)

def error(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    norm = lambda v: float(np.linalg.norm(np.asarray(v, np.float64)))
    return max(norm(np.asarray(x) - np.asarray(y)) / norm(y) for x, y in pairs)

def update_error(n, d, kernel, mesh, axis=None, force=None, **options):
    x, s, c = (jnp.asarray(rng.normal(size=(n, d))) for _ in range(3))
    partition = None
    if options["method"] == "tree":
        partition = svgd.SteinUpdate(kernel, **options).partition(x)
    def evaluate(**where):
        def loss(kernel, x, s):
            phi = svgd.SteinUpdate(kernel, **options)(x, s, partition, **where)
            return jnp.sum(c * phi), phi
        (_, phi), gradient = jax.jit(
            jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(kernel, x, s)
        return phi, gradient
    with memory.forced("svgd.sources", force) if force else contextlib.nullcontext():
        return error(evaluate(mesh=mesh, axis=axis), evaluate())

exact, cells = {"method": "exact"}, {"method": "tree", "tolerance": 1e-2}
pairs = {"method": "tree", "theta": 0.5, "leaf_size": 32}
out = {"error": {
    "gathered, uneven": update_error(323, 3, G(metric=metric), auto, **exact),
    "ring": update_error(320, 3, I(0.7), explicit, force="ring", **exact),
    "gathered, wide": update_error(123, 12, I(np.linspace(2, 4, 12)), explicit, **exact),
    "ring, wide": update_error(120, 12, G(3.0), two, "b", force="ring", **exact),
    "cells, uneven": update_error(1501, 2, G(0.7), explicit, **cells),
    "pairs, uneven": update_error(603, 2, G(0.7), auto, **pairs, pairing="symmetric"),
}}

def run_error(mesh, update=None, n=320, **arguments):
    x = jnp.asarray(1 + rng.normal(size=(n, 2)))
    log_density = lambda x: -0.5 * jnp.sum(x**2)
    rebuild = {"rebuild_every": 3}
    one = svgd.SVGD(update).run(log_density, x, 12, **arguments, **rebuild)
    half = svgd.SVGD(update).run(log_density, x, 6, **arguments, **rebuild, mesh=mesh)
    many = svgd.SVGD(update).run(log_density, half, 6, **rebuild, mesh=mesh)
    shard = many.points.sharding.shard_shape(many.points.shape)
    assert shard == (n // 8, 2), shard
    assert many.particles.sharding.shard_shape(many.points.shape) == shard
    return error(many.particles, one.particles)

out["run"] = {
    "laplace": run_error(auto),
    "particles": run_error(explicit, whiten="particles"),
    "tree": run_error(auto, svgd.SteinUpdate(G(0.7), method="tree"), 1600),
}

def compiled(name, count):
    options, n, d = {"exact": (exact, 2**18, 8), "cells": (cells, 20000, 2)}[name]
    mesh = jax.sharding.Mesh(devices[:count], ("particles",))
    update, partition = svgd.SteinUpdate(G(0.5), **options), None
    if name == "cells":
        partition = update.partition(rng.normal(size=(n, d)))
    x = jax.ShapeDtypeStruct((n, d), float)
    return jax.jit(lambda x: update(x, -x, partition, mesh=mesh)).lower(x).compile()

def measure(name):
    programs = [compiled(name, count) for count in (1, 2, 8)]
    out[name] = {
        "scratch": [p.memory_analysis().temp_size_in_bytes for p in programs],
        "gathers": "all-gather" in programs[-1].as_text(),
        "passes on": "collective-permute" in programs[-1].as_text(),
    }

out["refused"] = []

def refused(call):
    try:
        call()
    except ValueError as caught:
        out["refused"].append(str(caught))

measure("exact")
measure("cells")
with memory.forced("svgd.sources", "ring"):
    out["gathered"] = out.pop("exact")
    measure("exact")
    out["ring"] = out.pop("exact")
    nine, update = np.ones((9, 2)), svgd.SteinUpdate(G(1.0), method="exact")
    refused(lambda: update(nine, nine, mesh=auto))
refused(lambda: svgd.SVGD().run(lambda x: -x, nine, mesh=explicit))
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def eight_devices():
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_update_and_its_gradient_equal_those_of_one_device(eight_devices):
    # Sums in another order, in float64.
    assert {k: v for k, v in eight_devices["error"].items() if not v < 1e-12} == {}


def test_a_run_equals_that_of_one_device(eight_devices):
    assert {k: v for k, v in eight_devices["run"].items() if not v < 1e-12} == {}


@pytest.mark.parametrize("way", ["gathered", "ring", "cells"])
def test_scratch_of_a_device_falls_with_the_number_of_devices(eight_devices, way):
    one, two, eight = eight_devices[way]["scratch"]
    # A ring holds a second device's rows, and of one device there is no ring.
    assert eight < two < one or (way == "ring" and eight < min(one, two))


def test_sources_are_gathered_or_passed_round_a_ring(eight_devices):
    gathered, ring = eight_devices["gathered"], eight_devices["ring"]
    assert gathered["gathers"] and not gathered["passes on"]
    assert ring["passes on"] and not ring["gathers"]


def test_particles_that_do_not_divide_are_refused_by_a_ring_and_a_run(eight_devices):
    ring, run = eight_devices["refused"]
    assert ring.startswith("sources cannot go round a ring: 9 particles do not divide")
    assert run.startswith("a run on a mesh splits its particles: 9 particles do not divide")
    assert ring.endswith("take 8 or 16") and run.endswith("take 8 or 16")


def test_a_mesh_of_one_device_changes_nothing(rng, dtype, relative_error):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("particles",))
    x = jnp.asarray(rng.normal(size=(60, 2)), dtype)
    kernel = kernels.Gaussian(np.asarray(0.7, dtype))
    for options in ({"method": "exact"}, {"method": "tree"}, {"method": "tree", "theta": 0.5}):
        update = svgd.SteinUpdate(kernel, **options)
        phi = update(x, -x, mesh=mesh)
        # The same sums; XLA may round them in another order.
        assert relative_error(phi, update(x, -x)) < 20 * np.finfo(dtype).eps
        assert phi.dtype == dtype


def mesh_of_one(*names):
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape([1] * len(names)), names)


UPDATE = svgd.SteinUpdate(kernels.Gaussian(1.0), method="tree")
X = np.ones((4, 2))
BAD = {
    "unknown axis": (lambda: UPDATE(X, X, mesh=mesh_of_one("a"), axis="b"), "no axis 'b'"),
    "which axis": (lambda: UPDATE(X, X, mesh=mesh_of_one("a", "b")), "say which one"),
    "no mesh": (lambda: UPDATE(X, X, axis="a"), "give mesh="),
    "no mesh, run": (
        lambda: svgd.SVGD().run(lambda x: -x, X, axis="a"),
        "give mesh=",
    ),
    "unknown axis, run": (
        lambda: svgd.SVGD().run(lambda x: -x, X, mesh=mesh_of_one("a"), axis="b"),
        "no axis 'b'",
    ),
    "traced": (
        lambda: jax.jit(lambda x: UPDATE(x, x, mesh=mesh_of_one("a")))(X),
        "outside jit",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_devices_are_no_mesh():
    with pytest.raises(TypeError):
        UPDATE(X, X, mesh=jax.devices())

"""Many devices: eight of the host's, in a process of its own (the device count is fixed at start)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_devices import run_on_devices

import kernels
import svgd

PROGRAM = """
import contextlib, json
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
import kernels, memory, svgd
from kernels import _tiles
from svgd._run import loop as _loop

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

def ways_of_a_run(n):
    # The compiled loop of the first run must not serve the second.
    x = jnp.asarray(1 + rng.normal(size=(n, 2)))
    sampler = svgd.SVGD(svgd.SteinUpdate(G(0.7), method="exact"))
    advance, passes_on = _loop._advance, []

    def recorded(*arguments):
        passes_on.append("collective_permute" in advance.lower(*arguments).as_text())
        return advance(*arguments)

    _loop._advance = recorded
    ends = []
    for force in ("gathered", "ring"):
        with memory.forced("svgd.sources", force):
            ends.append(sampler.run(lambda x: -x, x, 5, whiten=None, mesh=auto).particles)
    _loop._advance = advance
    return {"passes on": passes_on, "error": error(*ends)}

out["run, forced"] = ways_of_a_run(160)

def second_derivative_scratch(n, d, way):
    two = jax.sharding.Mesh(devices[:2], ("particles",))
    update = svgd.SteinUpdate(G(2.0), method="exact")
    loss = lambda x: jnp.sum(update(x, -x, mesh=two) ** 2)
    twice = jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) ** 2)))
    with memory.forced("svgd.sources", way):
        program = twice.lower(jax.ShapeDtypeStruct((n, d), float)).compile()
    return program.memory_analysis().temp_size_in_bytes

out["second derivative"] = {
    f"{way}, d={d}": [second_derivative_scratch(n, d, way) for n in (2**15, 2**16)]
    for way, d in (("gathered", 3), ("ring", 3), ("gathered", 12))
}

def takes_the_slow_path(n):
    # Far from 0, and near each other.
    x = 1e8 + rng.normal(size=(n, 2))
    looped = _tiles.Pairs._looped_sum
    _tiles.Pairs._looped_sum = lambda self, weights: jnp.full_like(self.zt, jnp.nan)
    phi = svgd.SteinUpdate(G(0.7), method="exact")(x, -x, mesh=auto)
    _tiles.Pairs._looped_sum = looped
    return not bool(jnp.all(jnp.isfinite(phi)))

out["slow"] = {str(n): takes_the_slow_path(n) for n in (323, 3)}

def compiled(name, count):
    options, n, d = {
        "exact": (exact, 2**18, 8),
        "cells": (cells, 20000, 2),
        "pairs": ({**pairs, "chunk_pairs": 1}, 20000, 2),
    }[name]
    mesh = jax.sharding.Mesh(devices[:count], ("particles",))
    update, partition = svgd.SteinUpdate(G(0.5), **options), None
    if name != "exact":
        partition = update.partition(rng.normal(size=(n, d)))
    x = jax.ShapeDtypeStruct((n, d), float)
    # The partition is an argument, so that a device's part of it counts.
    return jax.jit(lambda x, p: update(x, -x, p, mesh=mesh)).lower(x, partition).compile()

def memory_of(found):
    return found.temp_size_in_bytes + found.argument_size_in_bytes

def measure(name):
    programs = [compiled(name, count) for count in (1, 2, 8)]
    out[name] = {
        "memory": [memory_of(p.memory_analysis()) for p in programs],
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
measure("pairs")
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
    return run_on_devices(PROGRAM, 8)


def test_update_and_its_gradient_equal_those_of_one_device(eight_devices):
    # Sums in another order, in float64.
    assert {k: v for k, v in eight_devices["error"].items() if not v < 1e-12} == {}


def test_a_run_equals_that_of_one_device(eight_devices):
    assert {k: v for k, v in eight_devices["run"].items() if not v < 1e-12} == {}


@pytest.mark.parametrize("way", ["gathered", "ring", "cells", "pairs"])
def test_memory_of_a_device_falls_with_the_number_of_devices(eight_devices, way):
    one, two, eight = eight_devices[way]["memory"]
    # A ring holds a second device's rows, and of one device there is no ring.
    assert eight < two < one or (way == "ring" and eight < min(one, two))


def test_scratch_of_second_derivatives_holds_no_pairs(eight_devices):
    # In proportion to n, beside a few tiles; tiles that are kept would make it four times as much.
    scratch = eight_devices["second derivative"]
    assert {k: v for k, v in scratch.items() if not v[1] < 2.2 * v[0]} == {}


def test_a_run_obeys_what_is_forced_after_it_was_compiled(eight_devices):
    run = eight_devices["run, forced"]
    assert run["passes on"] == [False, True]
    # Sums in another order, over five steps in float64.
    assert run["error"] < 1e-12


def test_padding_does_not_make_tiles_slow(eight_devices):
    assert eight_devices["slow"] == {"323": False, "3": False}


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


@pytest.mark.parametrize("kernel", [kernels.Gaussian, kernels.InverseMultiquadric])
def test_far_clusters_in_many_dimensions_are_the_same_on_a_mesh(kernel, rng, relative_error):
    # 10^9 bandwidths apart: differences are taken pair by pair, in the gradient as well.
    x = rng.normal(size=(40, 10))
    x[::2] += 1e9
    a, scores = rng.normal(size=(2, 40, 10))
    update = svgd.SteinUpdate(kernel(3.0), method="exact")

    def both(mesh):
        return jax.value_and_grad(lambda x: jnp.sum(a * update(x, scores, mesh=mesh)))(x)

    for one, many in zip(both(None), both(mesh_of_one("particles")), strict=True):
        # Sums of 40 terms in another order.
        assert relative_error(many, one) < 1e-13


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

"""One fit on a laptop, on all devices of a machine, or on many machines: the same code.

    python examples/fit_on_many.py

runs on what JAX sees. For many processes, here or on as many machines, start each with the address
of the first, how many there are, and which one it is:

    python examples/fit_on_many.py --coordinator HOST:PORT --processes 2 --process 0 &
    python examples/fit_on_many.py --coordinator HOST:PORT --processes 2 --process 1

Every process makes only its own share of the measurements; in their place would stand a read of its
part of a file. The first process writes the state of the fit to `--checkpoint` after every step.
When a process dies, the others end within half a minute with an error, and the same command goes on from the
checkpoint, with as many processes as there are then.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import t3

SHAPE, RANKS, ORDER = (8, 9, 10), ((3, 3, 3), (1, 3, 3, 1)), 1
PROBES = 240


def measure(truth, rows):
    """Probes of some rows and what they measure: a stand-in for reading them."""
    vectors = [
        [np.random.default_rng((row, line)).standard_normal(sum(SHAPE)) for row in rows]
        for line in (0, 1)
    ]
    points, directions = (np.split(np.asarray(v), np.cumsum(SHAPE)[:-1], axis=1) for v in vectors)
    return points, directions, truth.probe_derivatives(points, directions, ORDER)


def shared_out(mesh):
    """Measurements as arrays that are split over all devices, each process giving its part."""
    truth = t3.TuckerTensorTrain.random(jax.random.key(0), SHAPE, *RANKS)
    truth = truth / truth.norm()
    known = {}

    def array(family, mode, probe_axis, shape):
        split = NamedSharding(mesh, PartitionSpec(*[None] * probe_axis, "probes"))

        def part(index):
            rows = range(*index[probe_axis].indices(PROBES))
            if rows not in known:
                known[rows] = measure(truth, rows)
            return np.asarray(known[rows][family][mode])

        return jax.make_array_from_callback(shape, split, part)

    points, directions = (
        tuple(array(family, i, 0, (PROBES, n)) for i, n in enumerate(SHAPE)) for family in (0, 1)
    )
    data = tuple(array(2, i, 1, (ORDER + 1, PROBES, n)) for i, n in enumerate(SHAPE))
    return t3.Probe(points, directions, ORDER), data


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinator", help="address of the first process, HOST:PORT")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="go on from this file, and keep it")
    parser.add_argument("--gradient", type=Path, help="write the gradient at the start here")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.processes > 1:
        # Ships with jaxlib; accelerators bring their own.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            options.coordinator,
            options.processes,
            options.process,
            initialization_timeout=600,
            # A process that has been silent for so long is taken for dead, and ends the others.
            heartbeat_timeout_seconds=30,
            shutdown_timeout_seconds=300,
        )

    mesh = Mesh(np.asarray(jax.devices()), ("probes",))
    sampling, data = shared_out(mesh)
    start = t3.TuckerTensorTrain.random(jax.random.key(1), SHAPE, *RANKS)
    start = start / start.norm()
    first = jax.process_index() == 0

    if options.gradient:
        problem = t3.least_squares(start, sampling, data, mesh=mesh)
        gradient = jax.jit(lambda problem, x: problem.gradient(x)[1])(problem, start)
        if first:
            np.savez(options.gradient, *map(np.asarray, jax.tree.leaves(gradient)))

    def watch(record, x):
        if first:
            count = jax.process_count()
            print(f"[{count} process{'es' if count > 1 else ''}] {record}", flush=True)
        time.sleep(options.pause)

    earlier = None
    if options.checkpoint and options.checkpoint.exists():
        earlier = t3.FitResult.load(options.checkpoint)
    result = t3.fit(
        start,
        sampling,
        data,
        mesh=mesh,
        gradient_tolerance=1e-10,
        callback=watch,
        checkpoint=options.checkpoint,
        resume=earlier,
    )
    if first:
        devices = mesh.devices.size
        print(
            f"{result.reason} after {result.step} steps on {devices} device{'s' if devices > 1 else ''}"
        )


if __name__ == "__main__":
    main()

"""Whole runs of SVGD over a tree that is built again for every step, beside exact runs."""

import contextlib
import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np

import kernels
import svgd
from bench import harness

DIMENSION, BANDWIDTH, TOLERANCE = 3, 0.5, 6e-3


def log_density(x):
    return -0.5 * jnp.sum(x**2)


@contextlib.contextmanager
def counted_compilations():
    """The names of the programs that JAX compiles meanwhile, from its compilation log."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record):
            words = record.getMessage().split()
            if words[:3] == ["Finished", "XLA", "compilation"]:
                found.append(words[4])

    logger, handler = logging.getLogger("jax"), Handler()
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with jax.log_compiles():
            yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def run(method: str, n: int, steps: int, seed: int):
    kernel = kernels.Gaussian(np.float32(BANDWIDTH))
    begin = 1 + np.random.default_rng(seed).normal(size=(n, DIMENSION)).astype(np.float32)
    update = svgd.SteinUpdate(kernel, method=method)
    if method == "tree":
        update = svgd.SteinUpdate(kernel, method=method, tolerance=TOLERANCE)
    sampler = svgd.SVGD(update)
    return jax.block_until_ready(sampler.run(log_density, begin, steps).particles)


def discrepancy(x, y) -> float:
    """The maximum mean discrepancy under a kernel as wide as the target."""
    double = (np.asarray(rows, np.float64) for rows in (x, y))
    squared = svgd.mmd_squared(*double, kernels.Gaussian(1.0))
    return float(jnp.sqrt(jnp.maximum(squared, 0)))


@harness.case("svgd.tree.run")
def whole_runs(smoke: bool):
    """Particles end where exact ones do, up to what a run's start leaves in them; float32."""
    n, steps = (600, 5) if smoke else (10_000, 200)
    params = {"n": n, "d": DIMENSION, "h": BANDWIDTH, "steps": steps, "dtype": "float32"}
    with counted_compilations() as compiled:
        tree = run("tree", n, steps, 0)
    programs = len(compiled)
    exact, other = run("exact", n, steps, 0), run("exact", n, steps, 1)
    noise = discrepancy(exact, other)
    timings = {
        method: harness.measure(functools.partial(run, method, n, steps, 0), repeats=1, jit=False)
        for method in ("tree", "exact")
    }
    yield harness.row(
        peer="ours",
        timing=timings["tree"],
        error=harness.relative_error(tree, exact),
        against="particles of the exact run",
        note=f"MMD to the exact run {discrepancy(tree, exact):.1e}, between exact runs from two "
        f"starts {noise:.1e}; {programs} programs compiled",
        **params,
    )
    yield harness.row(peer="ours, exact", timing=timings["exact"], **params)

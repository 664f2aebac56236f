"""`python -m bench posteriors`: the default call on every posterior, beside as many independent draws."""

import argparse
import time

import jax

import svgd
from bench.posteriors.posterior import POSTERIORS, Posterior
from bench.posteriors.reference import evaluate, independent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench posteriors", description=__doc__)
    parser.add_argument("names", nargs="*", help="all when none is named")
    parser.add_argument("--particles", type=int, nargs="*", default=[1000, 5000])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    missing = [name for name in options.names if name not in POSTERIORS]
    if missing:
        print(f"no posterior is called {', '.join(missing)}; known: {', '.join(POSTERIORS)}")
        return 2
    for name in options.names or POSTERIORS:
        for num_particles in options.particles:
            particles, seconds = ours(POSTERIORS[name], num_particles, options.seed)
            print(f"{name}, {num_particles:,} particles, {seconds:.1f} s: ", end="")
            print(evaluate(name, particles))
            print(f"    as many independent draws: {independent(name, num_particles)}", flush=True)
    return 0


def ours(posterior: Posterior, num_particles: int, seed: int = 0):
    """The particles of the default call, and its seconds, compilation included."""
    start = posterior.start(num_particles, seed)
    began = time.perf_counter()
    state = svgd.SVGD().run(posterior.log_density, start)
    particles = jax.block_until_ready(state.particles)
    return particles, time.perf_counter() - began

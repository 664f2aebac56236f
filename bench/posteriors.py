"""Three real posteriors beside reference draws: `python -m bench posteriors --data FOLDER`.

The data and 10,000 reference draws of each come from posteriordb, one `.npz` a posterior. Every one
is sampled as a user would who has read no more than the first example: particles from N(0, I) in the
model's own coordinates, wherever the posterior is, and `svgd.SVGD().run(log_density, particles)`.
Beside it blackjax's SVGD with its own defaults (median bandwidth, exp(-r^2 / l) kernel) and Adam at
0.1, from the first 200 of the same particles, with as many more steps: the same number of score
evaluations. (Its step sorts the distances of all pairs, which at 5000 particles takes seconds.)

Each parameter's line shows the error of the mean in reference standard deviations, the ratio of the
standard deviations, and the ratio of the distances between the 5 % and 95 % quantiles. The exit status
is 1 if one of our means is off by more than 0.05 standard deviations or one of our standard
deviations by more than 6 %.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import svgd

MEAN_TOLERANCE = 0.05
DEVIATION_TOLERANCE = 0.06


def linear_regression(covariate, response):
    """response ~ N(b1 + b2 covariate, sigma^2), flat on b and sigma, for (b1, b2, log sigma)."""

    def log_density(p):
        residual = response - p[0] - p[1] * covariate
        return normal(residual, p[2]) + p[2]

    return log_density


def kidiq(data):
    flat = linear_regression(data["mom_iq"], data["kid_score"])
    # sigma ~ half-Cauchy(0, 2.5)
    return lambda p: flat(p) - jnp.log1p((jnp.exp(p[2]) / 2.5) ** 2)


def earnings(data):
    return linear_regression(data["height"], jnp.log(data["earn"]))


def sblrc(data):
    """y ~ N(X b, sigma^2), b ~ N(0, 10^2), sigma ~ half-N(0, 10^2), for (b, log sigma)."""

    def log_density(p):
        b, log_sigma = p[:-1], p[-1]
        prior = -0.5 * jnp.sum((b / 10) ** 2) - 0.5 * (jnp.exp(log_sigma) / 10) ** 2
        return normal(data["y"] - data["X"] @ b, log_sigma) + prior + log_sigma

    return log_density


def normal(residual, log_sigma):
    """Log-density of residuals under N(0, sigma^2), up to a constant."""
    standard = residual * jnp.exp(-log_sigma)
    return -0.5 * jnp.sum(standard**2) - residual.shape[0] * log_sigma


POSTERIORS = {
    "kidiq-kidscore_momiq": kidiq,
    "earnings-logearn_height": earnings,
    "sblrc-blr": sblrc,
}


def load(folder: Path, name: str, dtype):
    """The log-density of a posterior, its reference draws and the names of its parameters."""
    with np.load(folder / f"{name}.npz") as file:
        draws, names = file["draws"], [str(n) for n in file["names"]]
        data = {k: jnp.asarray(file[k], dtype) for k in file.files if k not in ("draws", "names")}
    return POSTERIORS[name](data), draws, names


def ours(log_density, particles):
    state = svgd.SVGD().run(log_density, particles)
    return jax.block_until_ready(state.particles), int(state.step)


def blackjax_svgd(log_density, particles, steps):
    import blackjax
    import optax

    sampler = blackjax.svgd(jax.grad(log_density), optax.adam(0.1))
    state = sampler.init(particles)

    @jax.jit
    def run(state):
        return jax.lax.fori_loop(0, steps, lambda _, state: sampler.step(state), state)

    return jax.block_until_ready(run(state).particles)


def compare(particles, draws) -> np.ndarray:
    """(parameters, 3): error of the mean, ratio of deviations, ratio of quantile distances."""
    x = np.asarray(particles, np.float64).copy()
    x[:, -1] = np.exp(x[:, -1])

    def distance(values):
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        return high - low

    deviation = draws.std(axis=0)
    shift = (x.mean(axis=0) - draws.mean(axis=0)) / deviation
    return np.stack([shift, x.std(axis=0) / deviation, distance(x) / distance(draws)], axis=1)


def show(label: str, names: list[str], table: np.ndarray, seconds: float) -> None:
    print(f"  {label}, {seconds:.1f} s with compilation")
    print(f"    {'':10s}{'mean off by':>12s}{'sd ratio':>11s}{'5-95 % ratio':>14s}")
    for name, (shift, deviation, quantile) in zip(names, table, strict=True):
        print(f"    {name:10s}{shift:+9.3f} sd{deviation:11.3f}{quantile:14.3f}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench posteriors")
    parser.add_argument("--data", type=Path, required=True, help="folder of the .npz files")
    parser.add_argument("--particles", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument(
        "--blackjax-particles",
        type=int,
        default=200,
        help="the steps follow, so that the score evaluations are as many as ours",
    )
    parser.add_argument("--only", choices=POSTERIORS, nargs="*", default=list(POSTERIORS))
    parser.add_argument("--no-peer", action="store_true", help="without blackjax")
    options = parser.parse_args(arguments)
    missing = [n for n in options.only if not (options.data / f"{n}.npz").exists()]
    if missing:
        print(f"not found in {options.data}: {', '.join(missing)}")
        return 2
    previous = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    try:
        return _run(options)
    finally:
        jax.config.update("jax_enable_x64", previous)


def _run(options) -> int:
    good = True
    for name in options.only:
        log_density, draws, names = load(options.data, name, options.dtype)
        shape = (options.particles, len(names))
        particles = jax.random.normal(jax.random.key(options.seed), shape, options.dtype)
        start = time.perf_counter()
        sampled, steps = ours(log_density, particles)
        seconds = time.perf_counter() - start
        table = compare(sampled, draws)
        print(f"{name}: {options.particles} particles, {steps} steps, {options.dtype}")
        show("svgd.SVGD()", names, table, seconds)
        worst = np.abs(table[:, 0]).max(), np.abs(table[:, 1] - 1).max()
        within = worst[0] <= MEAN_TOLERANCE and worst[1] <= DEVIATION_TOLERANCE
        good &= bool(within)
        verdict = "within" if within else "NOT within"
        print(
            f"    worst mean {worst[0]:.3f} sd, worst sd {worst[1]:.1%}: {verdict} "
            f"{MEAN_TOLERANCE} sd and {DEVIATION_TOLERANCE:.0%}"
        )
        if not options.no_peer:
            _peer(options, log_density, draws, names, particles, steps)
        print(flush=True)
    return 0 if good else 1


def _peer(options, log_density, draws, names, particles, steps) -> None:
    count = min(options.blackjax_particles, options.particles)
    steps = steps * options.particles // count
    start = time.perf_counter()
    try:
        sampled = blackjax_svgd(log_density, particles[:count], steps)
    except ImportError as error:
        print(f"  blackjax not installed ({error})")
        return
    except Exception as error:
        print(f"  blackjax failed: {type(error).__name__}: {str(error).splitlines()[0]}")
        return
    seconds = time.perf_counter() - start
    label = f"blackjax.svgd, {count} particles, {steps} steps: as many score evaluations"
    show(label, names, compare(sampled, draws), seconds)


if __name__ == "__main__":
    raise SystemExit(main())

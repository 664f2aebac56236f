"""A hundred thousand particles on a banana: Stein updates over a tree of cells, beside exact ones.

The target bends a Gaussian in the plane:

    x ~ N(0, 1.5^2),    y | x ~ N(0.5 (x^2 - 1.5^2), 0.5^2),

so its means, standard deviations and density are known. Both runs start from the same standard normal
cloud and take the same Adam steps along the Stein update. The tree carries the particles asked for,
and is rebuilt at every step. An exact step costs the square of their number, so a few steps are timed
at the full number and the exact picture is of fewer particles. The script prints the time of a step
both ways and the moments, draws both runs over the target's contours, and fails if a mean is off by
more than 10 % of a standard deviation, or a standard deviation by more than 10 %: the arms of the
banana fill last, and that of y is still 4 % short at the end.

    python examples/banana.py [--particles N] [--exact-particles N] [--steps N] [--smoke] [--figure FILE]

Source of the target: Haario, Saksman and Tamminen, Adaptive proposal distribution for random walk
Metropolis algorithm (1999), section 3, with other constants.
"""

import argparse
import math
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import svgd
from kernels import Gaussian

WIDTH, BEND, NOISE = 1.5, 0.5, 0.5
MEANS = np.array([0.0, 0.0])
DEVIATIONS = np.array([WIDTH, (2 * (BEND * WIDTH**2) ** 2 + NOISE**2) ** 0.5])
BANDWIDTH = np.float32(0.5)
LEARNING_RATE = 0.2
TOLERANCE = 0.1
TIMED_EXACT_STEPS = 2


def log_density(point):
    """Log-density of one (x, y)."""
    x, y = point
    middle = BEND * (x**2 - WIDTH**2)
    constant = float(np.log(2 * np.pi * WIDTH * NOISE))
    return -0.5 * (x / WIDTH) ** 2 - 0.5 * ((y - middle) / NOISE) ** 2 - constant


def make_step(update, optimiser):
    """One compiled step, given the partition (None for the exact update)."""

    @eqx.filter_jit
    def step(particles, state, partition, rate):
        scores = jax.vmap(jax.grad(log_density))(particles)
        phi = update(particles, scores, partition)
        # optax mixes dtypes, which a caller may have forbidden.
        with jax.numpy_dtype_promotion("standard"):
            moves, state = optimiser.update(-phi, state)
        return particles + rate * moves, state

    return step


def run(method, particles, steps):
    """Particles after the steps, and the median seconds of a step, partition included."""
    update = svgd.SteinUpdate(Gaussian(BANDWIDTH), method=method)
    optimiser = optax.adam(1.0)
    # From the full rate to zero along half a cosine.
    rates = LEARNING_RATE * (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2
    step, state = make_step(update, optimiser), optimiser.init(particles)
    seconds, like = [], None
    for rate in rates.astype(np.float32):
        start = time.perf_counter()
        partition = None
        if method == "tree":
            partition = update.partition(particles, like)
            like = partition.shapes
        particles, state = jax.block_until_ready(
            step(particles, state, partition, jnp.asarray(rate))
        )
        seconds.append(time.perf_counter() - start)
    # The first step compiles.
    return np.asarray(particles, np.float64), float(np.median(seconds[1:]))


def report(name, particles) -> bool:
    """Prints the moments beside the target's; whether they are within the tolerance."""
    shift = np.abs(particles.mean(0) - MEANS) / DEVIATIONS
    stretch = np.abs(particles.std(0) / DEVIATIONS - 1)
    print(f"{name}, {len(particles):,} particles")
    for k, axis in enumerate("xy"):
        print(
            f"    {axis}: mean {particles[:, k].mean():7.4f} (target {MEANS[k]:.4f}, off by "
            f"{shift[k]:.2%} sd), sd {particles[:, k].std():.4f} (target {DEVIATIONS[k]:.4f}, off by "
            f"{stretch[k]:.2%})"
        )
    return bool(max(shift.max(), stretch.max()) <= TOLERANCE)


def draw(runs, path: Path) -> None:
    """Each run's particles over contours of the target, and how full its arms are.

    Args:
        runs: (name, particles, seconds of a step).
        path: of the figure.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).parent / "steintrain.mplstyle")
    x, y = np.meshgrid(np.linspace(-7.2, 7.2, 400), np.linspace(-4, 23, 400), indexing="ij")
    middle = BEND * (x**2 - WIDTH**2)
    depth = (x / WIDTH) ** 2 + ((y - middle) / NOISE) ** 2
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.6), width_ratios=(1, 1, 0.9))
    for place, (name, particles, seconds), color in zip(axes, runs, ("C0", "C1"), strict=False):
        place.plot(*particles.T, ".", ms=1.2, alpha=0.35, color=color, rasterized=True)
        # Contours that hold a share s of the target: chi^2 with two degrees is -2 log(1 - s) there.
        levels = [-2 * np.log(1 - share) for share in (0.5, 0.9, 0.99, 0.9999)]
        place.contour(x, y, depth, levels=levels, colors="#22303c", linewidths=0.9)
        place.plot(
            [], [], color="#22303c", linewidth=0.9, label="50, 90, 99, 99.99 % of the target"
        )
        place.set(
            xlabel="x",
            xlim=(-7.2, 7.2),
            ylim=(-4, 23),
            title=f"{name}: {len(particles):,} particles, {_milliseconds(seconds)} a step",
        )
    axes[0].set_ylabel("y")
    axes[0].legend(loc="upper center")

    # The tail of x, which is normal: how often |x| is beyond so many standard deviations.
    far = np.linspace(0, 4, 200)
    for (name, particles, _), color in zip(runs, ("C0", "C1"), strict=True):
        beyond = np.sort(np.abs(particles[:, 0]) / WIDTH)
        share = 1 - np.searchsorted(beyond, far) / len(beyond)
        axes[2].semilogy(far, np.where(share > 0, share, np.nan), color=color, label=name)
    normal = np.array([math.erfc(value / 2**0.5) for value in far])
    axes[2].semilogy(far, normal, "--", color="#22303c", label="target")
    axes[2].set(
        xlabel="|x| in standard deviations",
        ylabel="share of particles beyond",
        title="More particles reach further into the arms",
        ylim=(2e-5, 1.2),
    )
    axes[2].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--particles", type=int, default=100_000)
    parser.add_argument("--exact-particles", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--smoke", action="store_true", help="few particles, for tests")
    parser.add_argument("--figure", type=Path, default=Path(__file__).parent / "figures/banana.png")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.particles, options.exact_particles = 2000, 1000

    start = jax.random.normal(jax.random.key(0), (options.particles, 2), jnp.float32)
    tree, tree_seconds = run("tree", start, options.steps)
    _, exact_seconds = run("exact", start, 1 + TIMED_EXACT_STEPS)
    few = start[: options.exact_particles]
    exact, few_seconds = run("exact", few, options.steps)
    print(
        f"{options.particles:,} particles, {options.steps} steps: {1e3 * tree_seconds:.0f} ms a step "
        f"over the tree, {1e3 * exact_seconds:.0f} ms exact (median of {TIMED_EXACT_STEPS}): "
        f"{exact_seconds / tree_seconds:.1f} times as long\n"
    )
    good = [report("tree", tree), report("exact", exact)]
    runs = [("all pairs", exact, few_seconds), ("tree", tree, tree_seconds)]
    try:
        draw(runs, options.figure)
        print(f"\nfigure: {options.figure}")
    except ImportError:
        print("\nno figure: pip install matplotlib")
    print("within 10 % of the target" if all(good) else "NOT within 10 % of the target")
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())

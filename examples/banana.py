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


def draw(panels, path: Path) -> None:
    """Histograms of (title, particles) side by side, over the target's contours."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ink, orange = "#22303c", "#d9692a"
    plt.rcParams.update(
        {"axes.edgecolor": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink}
    )
    x, y = np.meshgrid(np.linspace(-5, 5, 300), np.linspace(-3.5, 9, 300), indexing="ij")
    middle = BEND * (x**2 - WIDTH**2)
    density = np.exp(-0.5 * (x / WIDTH) ** 2 - 0.5 * ((y - middle) / NOISE) ** 2)
    density /= 2 * np.pi * WIDTH * NOISE
    edges = [np.linspace(-5, 5, 61), np.linspace(-3.5, 9, 76)]
    figure, axes = plt.subplots(1, 2, figsize=(12, 5), layout="constrained", sharey=True)
    images = []
    for place, (title, particles) in zip(axes, panels, strict=True):
        counts, _, _ = np.histogram2d(*particles.T, bins=edges, density=True)
        images.append(place.pcolormesh(*edges, counts.T, cmap="Blues", vmin=0, vmax=density.max()))
        # Contours that hold 50, 90 and 99 % of the target: heights fall as exp(-chi^2 / 2).
        levels = density.max() * np.array([0.01, 0.1, 0.5])
        place.contour(x, y, density, levels=levels, colors=orange, linewidths=1.1)
        place.plot([], [], color=orange, linewidth=1.1, label="50, 90 and 99 % of the target")
        place.spines[["top", "right"]].set_visible(False)
        place.set(xlabel="x (no unit)", title=title)
    axes[0].set_ylabel("y (no unit)")
    axes[0].legend(frameon=False, loc="upper center")
    figure.colorbar(images[-1], ax=axes, label="density (1 / unit area)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


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
    panels = [
        (f"exact: {len(exact):,} particles, {1e3 * few_seconds:.0f} ms a step "
         f"({1e3 * exact_seconds:,.0f} ms with {len(tree):,})", exact),
        (f"tree: {len(tree):,} particles, {1e3 * tree_seconds:.0f} ms a step", tree),
    ]  # fmt: skip
    try:
        draw(panels, options.figure)
        print(f"\nfigure: {options.figure}")
    except ImportError:
        print("\nno figure: pip install matplotlib")
    print("within 10 % of the target" if all(good) else "NOT within 10 % of the target")
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Would the O-rings have failed? A logistic regression, sampled by SVGD and checked by quadrature.

The space shuttle Challenger was launched at 31 F and lost. Of the 23 flights before it whose
boosters were recovered, seven had shown distress of an O-ring, most of them on cold days. The
model: on a flight at temperature t (in F), distress has probability

    1 / (1 + exp(-(intercept + slope t))),
    intercept ~ N(0, 50^2),    slope ~ N(0, 1^2),

priors that say next to nothing: they allow any curve from flat to a step. The two parameters differ
in scale by a factor of 70 and correlate at -0.99; the sampler is given neither fact, and starts from
particles around (0, 0). Its answers stand beside the same numbers by two-dimensional quadrature, and
the script fails if a mean is off by more than 5 % of a posterior standard deviation, or a standard
deviation by more than 5 %.

    python examples/oring.py [--particles N] [--figure FILE]

Data: Dalal, Fowlkes and Hoadley, Risk analysis of the space shuttle (1989), table 1.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import svgd

TEMPERATURES = np.array(
    [66, 70, 69, 68, 67, 72, 73, 70, 57, 63, 70, 78, 67, 53, 67, 75, 70, 81, 76, 79, 75, 76, 58.0]
)
DISTRESS = np.zeros(23)
DISTRESS[[1, 8, 9, 10, 13, 20, 22]] = 1
PRIOR_DEVIATIONS = np.array([50.0, 1.0])
LAUNCH = 31.0
NAMES = ("intercept", "slope per F")
TOLERANCE = 0.05


def log_density(parameters):
    """Log-posterior of one (intercept, slope), up to a constant."""
    dtype = parameters.dtype
    logits = parameters[0] + parameters[1] * jnp.asarray(TEMPERATURES, dtype)
    # log p for distress, log(1 - p) for none.
    signs = jnp.asarray(2 * DISTRESS - 1, dtype)
    likelihood = jnp.sum(jax.nn.log_sigmoid(signs * logits))
    return likelihood - 0.5 * jnp.sum((parameters / jnp.asarray(PRIOR_DEVIATIONS, dtype)) ** 2)


def maximum_likelihood() -> np.ndarray:
    """The fit without priors, by Newton's method: it checks the copy of the data."""
    design = np.stack([np.ones(23), TEMPERATURES], axis=1)
    fit = np.zeros(2)
    for _ in range(25):
        p = 1 / (1 + np.exp(-design @ fit))
        information = (design * (p * (1 - p))[:, None]).T @ design
        fit = fit + np.linalg.solve(information, design.T @ (DISTRESS - p))
    return fit


class Quadrature:
    """The posterior on a grid of 1200 by 1200: weights, moments and quantiles."""

    def __init__(self):
        # Logits at 70 F and the slope are nearly uncorrelated: a grid in them wastes little.
        middle, slope = np.linspace(-8, 6, 1200), np.linspace(-1.6, 0.4, 1200)
        self.slope = np.broadcast_to(slope[None, :], (1200, 1200))
        self.intercept = middle[:, None] - 70 * self.slope
        log_posterior = -0.5 * (self.intercept / PRIOR_DEVIATIONS[0]) ** 2
        log_posterior = log_posterior - 0.5 * (self.slope / PRIOR_DEVIATIONS[1]) ** 2
        for temperature, distress in zip(TEMPERATURES, DISTRESS, strict=True):
            logits = self.intercept + temperature * self.slope
            log_posterior -= np.logaddexp(0, np.where(distress, -logits, logits))
        weights = np.exp(log_posterior - log_posterior.max())
        self.log_posterior = log_posterior
        self.weights = weights / weights.sum()
        edge = max(self.weights[[0, -1]].sum(), self.weights[:, [0, -1]].sum())
        assert edge < 1e-6, "the grid cuts the posterior off"

    def mean(self, values) -> float:
        return float((self.weights * values).sum())

    def deviation(self, values) -> float:
        return self.mean((values - self.mean(values)) ** 2) ** 0.5

    def quantiles(self, values, levels) -> np.ndarray:
        order = np.argsort(values, axis=None)
        return np.interp(levels, np.cumsum(self.weights.ravel()[order]), np.ravel(values)[order])

    def level(self, mass: float) -> float:
        """The log-posterior above which this share of the mass lies."""
        heights = np.sort(self.log_posterior, axis=None)[::-1]
        weights = np.exp(heights - heights[0])
        return heights[np.searchsorted(np.cumsum(weights) / weights.sum(), mass)]


def probability(intercept, slope, temperature):
    return 1 / (1 + np.exp(-(intercept + slope * temperature)))


def report(particles: np.ndarray, exact: Quadrature) -> bool:
    """Prints the comparison; whether it is within the tolerance."""
    good = True
    print(f"{'':24s}{'SVGD':>10s}{'quadrature':>12s}{'off by':>10s}")
    for name, values, grid in zip(NAMES, particles.T, (exact.intercept, exact.slope), strict=True):
        mean, deviation = exact.mean(grid), exact.deviation(grid)
        shift = abs(values.mean() - mean) / deviation
        stretch = abs(values.std() / deviation - 1)
        good &= shift <= TOLERANCE and stretch <= TOLERANCE
        print(f"{name + ', mean':24s}{values.mean():10.4f}{mean:12.4f}{shift:8.2%} sd")
        print(f"{name + ', sd':24s}{values.std():10.4f}{deviation:12.4f}{stretch:10.2%}")
    ours = probability(*particles.T, LAUNCH)
    grid = probability(exact.intercept, exact.slope, LAUNCH)
    low, high = np.quantile(ours, [0.05, 0.95])
    exact_low, exact_high = exact.quantiles(grid, [0.05, 0.95])
    print(f"\nProbability of distress at {LAUNCH:.0f} F, mean and 90 % interval")
    print(f"    SVGD        {ours.mean():.4f}  [{low:.4f}, {high:.4f}]")
    print(f"    quadrature  {exact.mean(grid):.4f}  [{exact_low:.4f}, {exact_high:.4f}]")
    return bool(good)


def draw(particles: np.ndarray, exact: Quadrature, path: Path) -> None:
    """The particles over the posterior's contours, and the predictive curve over the data."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).parent / "steintrain.mplstyle")
    ink, blue, orange = "#22303c", "C0", "C1"
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))

    # In (intercept, slope) the posterior is a needle; the log-odds at 70 F open it up.
    across, slopes = particles[:, 0] + 70 * particles[:, 1], particles[:, 1]
    left.scatter(across, slopes, s=7, color=blue, alpha=0.45, linewidths=0, label="SVGD particles")
    left.contour(
        exact.intercept + 70 * exact.slope,
        exact.slope,
        exact.log_posterior,
        levels=[exact.level(share) for share in (0.99, 0.9, 0.5)],
        colors=ink,
        linewidths=1.3,
        linestyles="solid",
    )
    left.plot(
        [], [], color=ink, linewidth=1.3, label="50, 90 and 99 % of the posterior, quadrature"
    )
    left.set(
        xlim=(-4.2, 1.4),
        ylim=(-0.83, 0.16),
        xlabel="log-odds of distress at 70 F",
        ylabel="slope (1/F)",
        title="The particles fill the posterior that quadrature finds",
    )
    left.legend(loc="upper left")

    temperature = np.linspace(28, 84, 200)
    curves = probability(particles[:, :1], particles[:, 1:], temperature)
    low, high = np.quantile(curves, [0.05, 0.95], axis=0)
    right.fill_between(
        temperature, low, high, color=blue, alpha=0.2, linewidth=0, label="90 % of curves"
    )
    right.plot(temperature, curves.mean(0), color=blue, linewidth=2, label="posterior mean")
    # Marks below and above the axis, since flights are outcomes and no probabilities; those at one
    # temperature are stacked.
    seen: dict[tuple[float, float], int] = {}
    heights = []
    for key in zip(TEMPERATURES, DISTRESS, strict=True):
        seen[key] = seen.get(key, 0) + 1
        step = 0.035 * seen[key]
        heights.append(1.03 + step if key[1] else -0.03 - step)
    outcomes = np.asarray(DISTRESS, bool)
    for happened, marker, label in (
        (True, "^", "flight with distress"),
        (False, "o", "flight without"),
    ):
        chosen = outcomes == happened
        right.scatter(
            TEMPERATURES[chosen],
            np.asarray(heights)[chosen],
            s=26,
            marker=marker,
            color=ink,
            facecolors=ink if happened else "none",
            zorder=3,
            label=label,
        )
    for edge in (0, 1):
        right.axhline(edge, color=ink, linewidth=0.6, alpha=0.4)
    right.axvline(LAUNCH, color=orange, linewidth=1.5, linestyle="--")
    right.annotate(
        f"Challenger, {LAUNCH:.0f} F",
        (LAUNCH, 0.42),
        xytext=(LAUNCH + 1.2, 0.42),
        color=orange,
        va="center",
    )
    right.set(
        xlim=(28, 84),
        ylim=(-0.22, 1.16),
        yticks=np.linspace(0, 1, 6),
        xlabel="temperature at launch (F)",
        ylabel="probability of O-ring distress",
        title="At 31 F, distress was all but certain",
    )
    right.legend(loc=(0.03, 0.2))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--particles", type=int, default=2000)
    parser.add_argument("--figure", type=Path, default=Path(__file__).parent / "figures/oring.png")
    options = parser.parse_args(arguments)

    fit = maximum_likelihood()
    print(f"maximum likelihood: intercept {fit[0]:.2f}, slope {fit[1]:.3f}")
    if not np.allclose(fit, [15.04, -0.232], atol=[0.005, 0.0005]):
        print("the data are not the published ones")
        return 2

    start = time.perf_counter()
    particles = jax.random.normal(jax.random.key(0), (options.particles, 2))
    state = svgd.SVGD().run(log_density, particles)
    particles = np.asarray(state.particles, np.float64)
    print(
        f"{options.particles} particles, {int(state.step)} steps of SVGD "
        f"in {time.perf_counter() - start:.1f} s\n"
    )
    exact = Quadrature()
    good = report(particles, exact)
    try:
        draw(particles, exact, options.figure)
        print(f"\nfigure: {options.figure}")
    except ImportError:
        print("\nno figure: pip install matplotlib")
    verdict = "within" if good else "NOT within"
    print(f"{verdict} 5 % of quadrature")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""A posterior without the model: sampled from a tensor that interpolates it.

A rod of uneven conductivity is heated evenly; its material cools by radiation:

    -(exp(m(x)) u'(x))' + u(x)^3 = 5,    u(0) = u(1) = 0,
    m(x) = theta_1 c_1(x) + ... + theta_4 c_4(x),    theta_k ~ N(0, 1),

with waves c_k that grow finer and smaller. Five sensors read the temperature u with an error of one per
cent; what was the conductivity? Every evaluation of the posterior solves the equation, and a sampler asks for
tens of thousands, with gradients. Here the five readings are made a tensor once, by `t3.cross` on a grid
of 10 to 14 Chebyshev points for each parameter: 84,000 entries, of which it asks for a few. `svgd.SVGD` then
samples both posteriors, with the equation and with the tensor, from the same start.

The errors drawn for two of the five sensors are large (2.0 and -2.6 of their standard deviation), so the
truth lies at the edge of both posteriors; what is compared is the posteriors.

The script fails if the means of the two differ by more than 5 % of a posterior standard deviation, or
the standard deviations by more than 5 %.

    python examples/surrogate_posterior.py [--particles N] [--steps N] [--figure FILE]
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import svgd
import t3

CELLS = 24
SENSORS = np.array([3, 7, 11, 15, 19])  # inner points of the grid
TRUE = np.array([0.8, -1.0, 0.6, 0.9])
NOISE = 0.01  # of the largest reading
REACH, NODES = 4.0, (14, 12, 10, 10)  # the tensor knows parameters in [-4, 4]
CENTRES = (np.arange(CELLS) + 0.5) / CELLS
WAVES = np.stack([np.cos(np.pi * k * CENTRES) * 0.5 / (1 + k) for k in range(4)])
BASES = [t3.basis.chebyshev(n, -REACH, REACH) for n in NODES]


def solve(theta):
    """Temperature at the inner points, by Newton's method on finite volumes."""
    conductivity = jnp.exp(theta @ jnp.asarray(WAVES, theta.dtype)) * CELLS**2
    below = jnp.append(0.0, conductivity[1:-1])
    above = jnp.append(conductivity[1:-1], 0.0)
    middle = conductivity[:-1] + conductivity[1:]

    def newton(u, _):
        flux = middle * u - below * jnp.roll(u, 1) - above * jnp.roll(u, -1)
        step = jax.lax.linalg.tridiagonal_solve(
            -below, middle + 3 * u**2, -above, (flux + u**3 - 5)[:, None]
        )
        return u - step[:, 0], None

    return jax.lax.scan(newton, jnp.zeros(CELLS - 1, theta.dtype), length=6)[0]


def by_equation(theta):
    """The five readings, by the equation."""
    return solve(theta)[SENSORS]


def by_tensor(x):
    """The five readings, by a tensor whose modes are the four parameters and the sensor."""

    def readings(theta):
        vectors = [basis(value) for basis, value in zip(BASES, theta, strict=True)]
        sensors = jnp.eye(len(SENSORS), dtype=theta.dtype)
        return x.apply([*(jnp.broadcast_to(v, (len(SENSORS), v.size)) for v in vectors), sensors])

    return readings


def log_posterior(readings, data):
    def log_density(theta):
        misfit = (readings(theta) - data) / (NOISE * jnp.max(data))
        return -0.5 * jnp.sum(misfit**2) - 0.5 * jnp.sum(theta**2)

    return log_density


def make_tensor():
    """Cross interpolation of the readings: the tensor, and how many times the equation was solved."""
    solved = set()
    batch = jax.jit(jax.vmap(by_equation))

    def entries(index):
        # An entry is one sensor of a solution: every solution is made once for a batch.
        points, place = np.unique(index[:4], axis=1, return_inverse=True)
        solved.update(map(tuple, points.T.tolist()))
        theta = np.stack([b.nodes[row] for b, row in zip(BASES, points, strict=True)], axis=1)
        padded = np.pad(theta, [(0, -len(theta) % 256), (0, 0)], mode="edge")
        values = [np.asarray(batch(part)) for part in np.split(padded, len(padded) // 256)]
        return np.concatenate(values)[place.ravel(), index[4]]

    found = t3.cross(entries, (*NODES, len(SENSORS)), tolerance=1e-4, key=jax.random.key(0))
    return found, len(solved)


def sample(name, log_density, start, steps):
    began = time.perf_counter()
    state = svgd.SVGD().run(log_density, start, num_steps=steps)
    seconds = time.perf_counter() - began
    print(f"SVGD by the {name:9s} {len(start)} particles, {steps} steps: {seconds:5.1f} s")
    return np.asarray(state.particles)


def report(equation, tensor) -> bool:
    """Prints the comparison; whether it is within 5 %."""
    good = True
    print(f"{'':9s}{'truth':>8s}{'by the equation':>20s}{'by the tensor':>20s}{'off by':>18s}")
    for k, (a, b) in enumerate(zip(equation.T, tensor.T, strict=True)):
        shift, stretch = abs(a.mean() - b.mean()) / a.std(), abs(b.std() / a.std() - 1)
        good &= bool(shift <= 0.05 and stretch <= 0.05)
        both = "".join(f"{v.mean():12.3f} +- {v.std():.2f}" for v in (a, b))
        print(f"theta_{k + 1:<3d}{TRUE[k]:8.2f}{both}{shift:10.2%} sd{stretch:8.2%}")
    return good


def draw(equation, tensor, solved, evaluations, path):
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).parent / "steintrain.mplstyle")
    figure, (left, right) = plt.subplots(1, 2)
    left.scatter(
        *equation.T[[1, 3]], s=46, facecolors="none", edgecolors="C0", linewidths=1.1,
        label=f"by the equation: over {evaluations:,} solves with gradients",
    )  # fmt: skip
    left.scatter(
        *tensor.T[[1, 3]], s=9, color="C1", linewidths=0,
        label=f"by the tensor: {solved:,} solves",
    )  # fmt: skip
    left.plot(*TRUE[[1, 3]], "+", ms=13, mew=2.2, color="#22303c", label="truth")
    left.set(xlabel="theta_2 (no unit)", ylabel="theta_4 (no unit)")
    # Room for the legend above the particles.
    low, high = left.get_ylim()
    left.set_ylim(low, high + 0.38 * (high - low))
    left.set_title("Particles by the tensor fall into those by the equation")
    left.legend(loc="upper left")

    for particles, label, style in (
        (equation, "by the equation", {"color": "C0", "alpha": 0.3, "linewidth": 0}),
        (tensor, "by the tensor", {"facecolor": "none", "edgecolor": "C1", "linewidth": 1.3}),
    ):
        low, high = np.quantile(np.exp(particles @ WAVES), [0.05, 0.95], axis=0)
        right.fill_between(CENTRES, low, high, label=f"90 % of particles, {label}", **style)
    right.plot(CENTRES, np.exp(TRUE @ WAVES), color="#22303c", label="truth")
    right.set(xlabel="position on the rod (its length)", ylabel="conductivity (no unit)")
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.3 * (high - low))
    right.set_title("What five sensors tell of the conductivity is the same")
    right.legend(loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"figure: {path}")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--particles", type=int, default=150)
    parser.add_argument("--steps", type=int, default=120)
    default = Path(__file__).parent / "figures" / "surrogate_posterior.png"
    parser.add_argument("--figure", type=Path, default=default)
    options = parser.parse_args(arguments)

    rng = np.random.default_rng(3)
    exact = np.asarray(by_equation(jnp.asarray(TRUE)))
    data = jnp.asarray(exact + NOISE * exact.max() * rng.standard_normal(len(exact)))

    began = time.perf_counter()
    found, solved = make_tensor()
    making = time.perf_counter() - began
    print(
        f"tensor of the readings: {found.evaluations:,} of {np.prod(found.x.shape):,} entries, "
        f"{solved:,} solves, error {found.error:.0e}, ranks to {max(found.x.tt_ranks)}: {making:.1f} s"
    )

    start = jnp.asarray(rng.standard_normal((options.particles, 4)))
    equation = sample("equation", log_posterior(by_equation, data), start, options.steps)
    tensor = sample("tensor", log_posterior(by_tensor(found.x), data), start, options.steps)
    good = report(equation, tensor)
    evaluations = options.particles * options.steps
    draw(equation, tensor, solved, evaluations, options.figure)
    if not good:
        print("the posterior by the tensor is not that by the equation")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

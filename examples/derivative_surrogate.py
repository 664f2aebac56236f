"""A cheap stand-in for a PDE, learned from its derivatives along lines.

A body with an uneven conductivity is heated; its material cools by radiation:

    -(exp(m(x)) u'(x))' + u(x)^3 = 5,    u(0) = u(1) = 0,    q(m) = mean of u on [1/4, 1/2].

The parameter m is the log-conductivity at 40 points, a priori a smooth Gaussian field. The quantity q
costs a nonlinear solve. Its Taylor polynomial of degree three around m = 0 would be a cheap
stand-in, but the third derivative has 64,000 entries of which no solver hands out a single one. What
a differentiable solver does hand out is derivatives along a line: with g = grad q,

    g(s p), d/ds g(s p), d^2/ds^2 g(s p)    at s = 0,

for the price of a few linear solves. All of them are probe derivatives of one tensor. Let T be the
symmetric tensor with 41^3 entries for which ``T[v, v, v]`` at v = (1, h) is the Taylor polynomial at
h. Along ``v = (1, 0) + s (0, p)``, the probes ``T[v, v, .]`` have the derivatives

    (1/3) ((3 - t) d^(t-1)/ds^(t-1) p.g,    d^t/ds^t g),    t = 0, 1, 2,

and ``3 q`` in place of the first number at t = 0. The script computes them for a few hundred random
directions, trains a Tucker tensor train on them with Adam, and compares the stand-in, on parameters
that it has not seen, with Taylor expansions of degree one and two whose derivatives are exact.

    python examples/derivative_surrogate.py [--directions W] [--steps N] [--figure FILE]
"""

import argparse
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import t3

POINTS = 40
RANK = 10
SPREAD = 0.6  # prior standard deviation of m at a point
CORRELATION = 0.25


def solve(log_conductivity):
    """Temperature at the inner points, by Newton's method on finite volumes."""
    n = POINTS - 1
    width = 1 / POINTS
    # m lives in the cells, u between them.
    conductivity = jnp.exp(log_conductivity) / width**2
    diffusion = (
        jnp.diag(conductivity[:-1] + conductivity[1:])
        - jnp.diag(conductivity[1:-1], 1)
        - jnp.diag(conductivity[1:-1], -1)
    )

    def newton(u, _):
        residual = diffusion @ u + u**3 - 5
        return u - jnp.linalg.solve(diffusion + jnp.diag(3 * u**2), residual), None

    return jax.lax.scan(newton, jnp.zeros(n, conductivity.dtype), length=7)[0]


def quantity(log_conductivity):
    """Mean temperature on [1/4, 1/2]."""
    return jnp.mean(solve(log_conductivity)[POINTS // 4 - 1 : POINTS // 2])


@jax.jit
@jax.vmap
def line_derivatives(direction):
    """Derivatives 0, 1, 2 at s = 0 of grad q(s direction), for each direction: ``(W, 3, POINTS)``."""
    gradient = jax.grad(quantity)
    zero = jnp.zeros_like(direction)
    along = lambda fn: lambda m: jax.jvp(fn, (m,), (direction,))[1]  # noqa: E731
    first = along(gradient)
    return jnp.stack([gradient(zero), first(zero), along(first)(zero)])


def probe_data(directions):
    """Points, directions and probe derivatives ``(3, W, POINTS + 1)`` of the tensor to be found."""
    count = len(directions)
    gradients = jnp.swapaxes(line_derivatives(directions), 0, 1)
    along = jnp.einsum("twn,wn->tw", gradients, directions)
    value = jnp.full(count, quantity(jnp.zeros(POINTS)))
    first = jnp.stack([3 * value, 2 * along[0], along[1]])
    jets = jnp.concatenate([first[..., None], gradients], axis=-1) / 3
    base = jnp.zeros((count, POINTS + 1)).at[:, 0].set(1.0)
    return base, jnp.pad(directions, ((0, 0), (1, 0))), jets


def prior_samples(rng, count):
    """Smooth Gaussian fields at the cell centres."""
    centres = (np.arange(POINTS) + 0.5) / POINTS
    distance = np.abs(centres[:, None] - centres)
    covariance = SPREAD**2 * np.exp(-0.5 * (distance / CORRELATION) ** 2)
    factor = np.linalg.cholesky(covariance + 1e-8 * np.eye(POINTS))
    return jnp.asarray(rng.standard_normal((count, POINTS)) @ factor.T)


def train(x, base, directions, jets, steps, rate=0.02):
    """Adam on the relative squared errors of the three derivatives, all directions at once."""
    scale = jnp.sqrt(jnp.mean(jets**2, axis=(1, 2)))[:, None, None]
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def loss(x):
        # The tensor is symmetric: the same vectors, and the same data, for each of its modes.
        predicted = x.probe_derivatives([base] * 3, [directions] * 3, order=2)
        return sum(jnp.mean(((p - jets) / scale) ** 2) for p in predicted) / 3

    @eqx.filter_jit
    def run(x):
        def step(carry, _):
            x, state = carry
            value, gradient = eqx.filter_value_and_grad(loss)(x)
            updates, state = optimizer.update(gradient, state)
            return (eqx.apply_updates(x, updates), state), value

        (x, _), losses = jax.lax.scan(step, (x, optimizer.init(x)), length=steps)
        return x, losses

    return run(x)


def draw(stand_ins, exact, losses, path: Path) -> None:
    """What each stand-in gets wrong on parameters not seen, and the training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).parent / "steintrain.mplstyle")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), width_ratios=(1.3, 1))
    left.axhline(0, color="#22303c", linewidth=0.9, label="no error")
    marks = {
        "linear, exact": ".",
        "quadratic, exact": ".",
        "cubic, exact": "x",
        "cubic, learned": ".",
    }
    for (name, marker), color in zip(marks.items(), ("C5", "C0", "C2", "C1"), strict=True):
        error = np.asarray(stand_ins[name] - exact)
        left.plot(exact, error, marker, ms=5, color=color, label=name, alpha=0.8)
    spread = float(np.std(exact))
    left.set(
        xlabel="mean temperature q on [1/4, 1/2] by the solver (scaled)",
        ylabel="stand-in minus solver",
        title="The learned cubic errs as the exact one does, a quarter of the linear",
        ylim=(-1.2 * spread, 1.2 * spread),
    )
    left.legend(ncols=2)
    right.semilogy(losses, color="C1")
    right.set(
        xlabel="step of Adam",
        ylabel="mean squared relative error of the derivatives",
        title="Training on derivatives along lines",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directions", type=int, default=300)
    parser.add_argument("--steps", type=int, default=6000)
    default = Path(__file__).parent / "figures" / "derivative_surrogate.png"
    parser.add_argument("--figure", type=Path, default=default)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)

    start = time.perf_counter()
    base, directions, jets = probe_data(prior_samples(rng, options.directions))
    print(
        f"{options.directions} directions, three derivatives each: {time.perf_counter() - start:.1f} s"
    )

    start = time.perf_counter()
    shape, ranks = (POINTS + 1,) * 3, (RANK,) * 3
    x = t3.TuckerTensorTrain.random(jax.random.key(0), shape, ranks, (1, RANK, RANK, 1))
    # Unit-size entries in every core make a tensor that is far too large.
    x = jax.tree.map(lambda core: 0.3 * core / core.shape[0] ** 0.5, x)
    x, losses = train(x, base, directions, jets, options.steps)
    parameters = sum(core.size for core in jax.tree.leaves(x))
    print(
        f"{parameters:,} numbers for {(POINTS + 1) ** 3:,} entries, {options.steps} steps of Adam: "
        f"{time.perf_counter() - start:.1f} s; root mean squared relative error of the data "
        f"{float(jnp.sqrt(losses[-1])):.4f}"
    )

    held_out = prior_samples(rng, 300)
    exact = jax.vmap(quantity)(held_out)
    value, gradient = jax.value_and_grad(quantity)(jnp.zeros(POINTS))
    hessian = jax.jacfwd(jax.grad(quantity))(jnp.zeros(POINTS))
    linear = value + held_out @ gradient
    quadratic = linear + 0.5 * jnp.einsum("wi,ij,wj->w", held_out, hessian, held_out)
    lifted = jnp.pad(held_out, ((0, 0), (1, 0)), constant_values=1.0)
    learned = x.apply([lifted] * 3)
    # The expansion that is being learned, by a solver call for every held-out parameter.
    third = jnp.einsum("wn,wn->w", line_derivatives(held_out)[:, 2], held_out)
    cubic = quadratic + third / 6

    stand_ins = {
        "linear, exact": linear,
        "quadratic, exact": quadratic,
        "cubic, learned": learned,
        "cubic, exact": cubic,
    }
    spread = jnp.std(exact)
    errors = {n: float(jnp.sqrt(jnp.mean((v - exact) ** 2)) / spread) for n, v in stand_ins.items()}
    print("held-out error, relative to the standard deviation of q:")
    for name, error in errors.items():
        print(f"    {name:18s} {error:.4f}")

    draw(stand_ins, exact, losses, options.figure)
    print(f"figure: {options.figure}")
    if not errors["cubic, learned"] < 1.15 * errors["cubic, exact"] < errors["quadratic, exact"]:
        raise SystemExit("the surrogate is not as good as the expansion that it was to learn")


if __name__ == "__main__":
    main()

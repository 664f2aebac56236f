"""A Bayesian neural network: thirty networks that repel each other, beside thirty that do not.

A network with one hidden layer predicts the progression of diabetes from ten measurements of a patient:

    y ~ N(f(x), sigma^2),    f(x) = w_2 . tanh(W_1 x + b_1) + b_2,

with standard normal priors of weights in units of one over the root of the inputs of a layer, and of
log sigma. Its 552 parameters are sampled by SVGD: a particle is a network, every step sees a minibatch,
and the particles' repulsion keeps them apart. Beside it stands a deep ensemble, which is as many networks
from the same starts, each by itself on its way to the posterior's mode by the same optimiser, minibatches
and number of steps; and one network alone. What is compared on patients that none has seen: the mean
log-likelihood of the mixture of their predictions (larger is better), the error of its mean, how often
its central 90 % interval holds the truth, and the time.

    python examples/bayesian_network.py [--steps N] [--splits N] [--figure FILE]

Data: Efron, Hastie, Johnstone and Tibshirani, Least angle regression (2004), as scikit-learn ships them.
Deep ensembles: Lakshminarayanan, Pritzel and Blundell, Simple and scalable predictive uncertainty
estimation using deep ensembles (2017).
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import kernels
import svgd

HIDDEN = 46
NETWORKS = 30
BATCH = 64
RATE = 0.01


def load_data(split: int):
    """Standardised inputs and outputs, (train, test); a fifth is held out."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    order = np.random.default_rng(split).permutation(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    scale = lambda a: ((a - a[train].mean(0)) / a[train].std(0)).astype(np.float32)  # noqa: E731
    x, y = scale(x), scale(y)
    return (x[train], y[train]), (x[test], y[test])


def start(key, count: int, inputs: int):
    """Networks drawn from the prior, in units in which all parameters are standard normal."""
    shapes = {
        "w1": (inputs, HIDDEN),
        "b1": (HIDDEN,),
        "w2": (HIDDEN,),
        "b2": (1,),
        "log_sigma": (1,),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, (count, *shape), jnp.float32)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def predict(network, x):
    """Mean at each input, and log sigma."""
    hidden = jnp.tanh(x @ network["w1"] / x.shape[1] ** 0.5 + network["b1"])
    return hidden @ network["w2"] / HIDDEN**0.5 + network["b2"][0], network["log_sigma"][0]


def make_log_density(x, y):
    """Of one network, from a minibatch drawn by the key: prior, and likelihood scaled to all data."""

    def log_density(network, key):
        rows = jax.random.choice(key, len(x), (BATCH,), replace=False)
        mean, log_sigma = predict(network, x[rows])
        z = (y[rows] - mean) * jnp.exp(-log_sigma)
        likelihood = -0.5 * jnp.mean(z**2) - log_sigma
        prior = -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(network))
        return len(x) * likelihood + prior

    return log_density


def sample(log_density, networks, key, steps):
    """SVGD in the coordinates of the prior, whose scales are 1.

    With far fewer particles than dimensions a kernel as wide as the cloud moves all particles alike, and
    what tells them apart decays only slowly. At the median heuristic's width a particle follows mostly
    its own score, and is kept from the others.
    """
    update = svgd.SteinUpdate(kernels.Gaussian(svgd.median_bandwidth(networks)))
    sampler = svgd.SVGD(update, optax.adam(RATE))
    return sampler.run(log_density, networks, steps, key=key, whiten=None).particles


def train_apart(log_density, networks, key, steps):
    """The same steps on each network alone: a deep ensemble."""
    optimizer = optax.adam(RATE)
    gradient = jax.vmap(jax.grad(log_density), in_axes=(0, None))

    @jax.jit
    def run(networks, key):
        def step(carry, key):
            networks, state = carry
            uphill = gradient(networks, key)
            change, state = optimizer.update(jax.tree.map(jnp.negative, uphill), state)
            return (optax.apply_updates(networks, change), state), None

        carry = networks, optimizer.init(networks)
        return jax.lax.scan(step, carry, jax.random.split(key, steps))[0][0]

    return run(networks, key)


def judge(networks, x, y) -> dict[str, float]:
    """Log-likelihood, error and coverage of a mixture of networks."""
    means, log_sigmas = jax.vmap(predict, in_axes=(0, None))(networks, x)
    sigma = jnp.exp(log_sigmas)[:, None]
    each = -0.5 * ((y - means) / sigma) ** 2 - jnp.log(sigma) - 0.5 * jnp.log(2 * jnp.pi)
    mixture = jax.nn.logsumexp(each, axis=0) - jnp.log(len(means))
    below = jnp.mean(jax.scipy.stats.norm.cdf((y - means) / sigma), axis=0)
    return {
        "log-likelihood": float(jnp.mean(mixture)),
        "rms error": float(jnp.sqrt(jnp.mean((jnp.mean(means, 0) - y) ** 2))),
        "in 90 % interval": float(jnp.mean((below > 0.05) & (below < 0.95))),
        "spread of means": float(jnp.mean(jnp.std(means, axis=0))),
        "below": np.asarray(below),
    }


def draw(below: dict[str, np.ndarray], path: Path) -> None:
    """How often the truth lies below each predicted quantile."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).parent / "steintrain.mplstyle")
    figure, axes = plt.subplots(figsize=(6.4, 5))
    level = np.linspace(0, 1, 101)
    axes.axline((0, 0), slope=0, color="#22303c", linewidth=0.9, label="calibrated")
    for name, values in below.items():
        share = np.searchsorted(np.sort(values), level) / len(values)
        axes.plot(level, share - level, label=name)
    axes.set(
        xlabel="predicted probability",
        ylabel="observed share minus predicted",
        title="How often the truth lies below a predicted quantile",
        xlim=(0, 1),
    )
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument(
        "--splits", type=int, default=2, help="random splits of the data to average"
    )
    default = Path(__file__).parent / "figures" / "bayesian_network.png"
    parser.add_argument("--figure", type=Path, default=default)
    options = parser.parse_args(arguments)

    ways = {"SVGD": sample, "deep ensemble": train_apart}
    found: dict[str, list[dict]] = {name: [] for name in (*ways, "one network")}
    seconds = dict.fromkeys(found, 0.0)
    for split in range(options.splits):
        (x, y), test = load_data(split)
        log_density = make_log_density(jnp.asarray(x), jnp.asarray(y))
        networks = start(jax.random.key(split), NETWORKS, x.shape[1])
        for name, way in ways.items():
            begun = time.perf_counter()
            trained = way(log_density, networks, jax.random.key(100 + split), options.steps)
            jax.block_until_ready(trained)
            seconds[name] += time.perf_counter() - begun
            found[name].append(judge(trained, *test))
        alone = jax.tree.map(lambda leaf: leaf[:1], trained)
        found["one network"].append(judge(alone, *test))

    columns = [name for name in found["SVGD"][0] if name != "below"]
    print(f"{NETWORKS} networks, {options.steps} steps, mean of {options.splits} splits")
    print(f"{'':15s}" + "".join(f"{name:>18s}" for name in columns) + f"{'seconds':>10s}")
    means = {
        name: {c: np.mean([row[c] for row in rows]) for c in columns}
        for name, rows in found.items()
    }
    for name, row in means.items():
        time_text = f"{seconds[name] / options.splits:10.1f}" if name in ways else ""
        print(f"{name:15s}" + "".join(f"{row[c]:18.3f}" for c in columns) + time_text)
    try:
        draw(
            {n: np.concatenate([r["below"] for r in rows]) for n, rows in found.items()},
            options.figure,
        )
        print(f"figure: {options.figure}")
    except ImportError:
        print("no figure: pip install matplotlib")
    gain = means["SVGD"]["log-likelihood"] - means["deep ensemble"]["log-likelihood"]
    good = gain > -0.01
    print("as good as a deep ensemble, or better" if good else "NOT as good as a deep ensemble")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

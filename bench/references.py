"""Makes what `bench/posteriors/data` holds: `python -m bench.references [NAME ...] [--observe FOLDER]`.

Every posterior gets the moments and marginal quantiles of 2,000,000 exact draws (1,000,000 in more
than 20 dimensions), but for the logistic regression, for which there are none: its reference is a run
of NUTS (numpyro, float64, 32 chains of 4,000 draws after 1,000 of warm-up, about ten minutes on two
cores). Sets of independent draws are made from the exact sampler, or from the quantiles joined by the
correlation of normal scores.

`--observe` writes the data sets again: those of posteriordb from the `.npz` files of a folder, those
that were made from a seed.
"""

import argparse
import importlib
import time
from pathlib import Path

import jax
import numpy as np

from bench.posteriors.posterior import DATA, POSTERIORS
from bench.posteriors.reference import LEVELS, SCORES


def observe(folder: Path) -> None:
    for name, source, keys in (
        ("kidiq", "kidiq-kidscore_momiq", ("kid_score", "mom_iq")),
        ("sblrc", "sblrc-blr", ("X", "y")),
        ("gp", "gp-regr", ("x", "y")),
        ("eight_schools", "eight_schools", ("y", "sigma")),
    ):
        with np.load(folder / f"{source}.npz") as file:
            np.savez_compressed(DATA / f"{name}.npz", **{key: file[key] for key in keys})
    with np.load(folder / "earnings-logearn_height.npz") as file:
        height, log_earn = file["height"], np.log(file["earn"])
    np.savez_compressed(DATA / "earnings.npz", height=height, log_earn=log_earn)

    rng = np.random.default_rng(2)
    for count, size in ((10, 5), (80, 5)):
        theta = 1 + rng.standard_normal(count)
        y = theta[:, None] + rng.standard_normal((count, size))
        within = np.sum((y - y.mean(1, keepdims=True)) ** 2)
        np.savez_compressed(DATA / f"groups{count}.npz", means=y.mean(1), within=within)
    x = 0.5 * rng.standard_normal((250, 1)) + rng.standard_normal((250, 24))
    x = x.astype(np.float32)
    logit = 0.3 + x @ (rng.standard_normal(24) * (np.arange(24) < 8))
    y = (rng.random(250) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    np.savez_compressed(DATA / "logistic.npz", x=x, y=y)


def long_run(posterior) -> np.ndarray:
    """Draws of NUTS, one row each."""
    from numpyro.infer import MCMC, NUTS

    chains = 32
    kernel = NUTS(potential_fn=lambda p: -posterior.log_density(p))
    mcmc = MCMC(
        kernel,
        num_warmup=1000,
        num_samples=4000,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = 0.1 * np.asarray(posterior.start(chains, dtype="float64"))
    mcmc.run(jax.random.key(1), init_params=start)
    chains_draws = np.asarray(mcmc.get_samples(group_by_chain=True))
    between = chains_draws.mean(1).var(0) / chains_draws.var((0, 1))
    print(f"    variance of the chains' means over that of draws: {between.max():.2e}")
    return chains_draws.reshape(-1, posterior.dimension)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.references", description=__doc__)
    parser.add_argument("names", nargs="*", help="all when none is named")
    parser.add_argument("--observe", type=Path, help="folder of posteriordb's .npz files")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    if options.observe:
        observe(options.observe)
    # Read after `observe`, for they hold the data sets.
    importlib.import_module("bench.posteriors.models")

    for name in options.names or POSTERIORS:
        posterior, start = POSTERIORS[name], time.perf_counter()
        rng = np.random.default_rng(1)
        if posterior.draws is None:
            draws = long_run(posterior)
        else:
            draws = posterior.draws(rng, 2_000_000 if posterior.dimension <= 20 else 1_000_000)
        quantiles = np.quantile(draws, LEVELS, axis=0)
        mean, deviation = draws.mean(0), draws.std(0)
        if posterior.deviations is not None:
            mean, deviation = np.zeros(posterior.dimension), np.array(posterior.deviations)
        standard = (quantiles - mean) / deviation
        np.savez_compressed(
            DATA / f"reference-{name.replace(' ', '-')}.npz",
            mean=mean,
            deviation=deviation,
            standard_quantiles=standard.astype(np.float32),
            correlation=_normal_scores(draws, quantiles).astype(np.float32),
        )
        print(f"{name}: {len(draws):,} draws, {time.perf_counter() - start:.0f} s", flush=True)
    return 0


def _normal_scores(draws, quantiles) -> np.ndarray:
    """The correlation of the draws' normal scores."""
    some = draws[:: max(1, len(draws) // 200_000)]
    columns = zip(some.T, quantiles.T, strict=True)
    scores = np.stack([np.interp(column, knots, SCORES) for column, knots in columns], 1)
    return np.corrcoef(scores, rowvar=False)


if __name__ == "__main__":
    raise SystemExit(main())

"""Posteriors of data: small regressions, groups, eight schools, a Gaussian process."""

import functools

import jax.numpy as jnp
import numpy as np

from bench.posteriors.exact import grid_draws, groups_draws, groups_evidence, regression_draws
from bench.posteriors.posterior import Posterior, indexed, observations, register


def _cast(data, dtype):
    return {key: jnp.asarray(value, dtype) for key, value in data.items()}


def _normal(residual, log_sigma):
    """Log-density of residuals under N(0, sigma^2), up to a constant."""
    return -0.5 * jnp.sum((residual * jnp.exp(-log_sigma)) ** 2) - residual.shape[0] * log_sigma


def _line(name, about, data, covariate, response, log_prior, numpy_prior):
    """response ~ N(b1 + b2 covariate, sigma^2), flat on b, for (b1, b2, log sigma)."""
    x, y = data[covariate], data[response]

    def log_density(p):
        here = _cast(data, p.dtype)
        residual = here[response] - p[0] - p[1] * here[covariate]
        return _normal(residual, p[2]) + p[2] + log_prior(p[2])

    def draws(rng, n):
        design = np.stack([np.ones_like(x), x], 1)
        return regression_draws(rng, n, design, y, lambda s: s + numpy_prior(s), 0.0)

    return Posterior(name, about, ("b[1]", "b[2]", "log sigma"), log_density, draws)


def _kidiq():
    return _line(
        "kidiq",
        "posteriordb kidiq-kidscore_momiq: 434 scores on mothers' IQ, nothing centred",
        observations("kidiq"),
        "mom_iq",
        "kid_score",
        lambda s: -jnp.log1p((jnp.exp(s) / 2.5) ** 2),
        lambda s: -np.log1p((np.exp(s) / 2.5) ** 2),
    )


def _earnings():
    return _line(
        "earnings",
        "posteriordb earnings-logearn_height: 1,192 incomes on heights, nothing centred",
        observations("earnings"),
        "height",
        "log_earn",
        jnp.zeros_like,
        np.zeros_like,
    )


def _sblrc():
    data = observations("sblrc")

    def log_density(p):
        here = _cast(data, p.dtype)
        b, s = p[:-1], p[-1]
        prior = -0.5 * jnp.sum((b / 10) ** 2) - 0.5 * (jnp.exp(s) / 10) ** 2
        return _normal(here["y"] - here["X"] @ b, s) + prior + s

    def draws(rng, n):
        def prior(s):
            return s - 0.5 * (np.exp(s) / 10) ** 2

        return regression_draws(rng, n, data["X"], data["y"], prior, 0.01)

    about = "posteriordb sblrc-blr: linear regression, five slopes"
    return Posterior("sblrc", about, (*indexed("b", 5), "log sigma"), log_density, draws)


def _logistic():
    data = observations("logistic")

    def log_density(p):
        here = _cast(data, p.dtype)
        logit = p[0] + here["x"] @ p[1:]
        return -0.5 * jnp.sum(p**2) + jnp.sum(here["y"] * logit - jnp.logaddexp(0.0, logit))

    about = "250 made observations, 24 correlated covariates, b ~ N(0, 1)"
    return Posterior("logistic", about, ("b[0]", *indexed("b", 24)), log_density, None)


def _groups(count, size):
    """y_ij ~ N(theta_j, sigma^2), theta_j ~ N(mu, tau^2), mu ~ N(0, 5^2), tau, sigma ~ half-N(0, 2^2)."""
    data = observations(f"groups{count}")
    means, within = data["means"], data["within"].item()

    def log_density(p):
        mu, tau, sigma, theta = p[0], p[1], p[2], p[3:]
        here = _cast(data, p.dtype)
        prior = -0.5 * (mu / 5) ** 2 - jnp.sum(jnp.exp(2 * p[1:3])) / 8 + tau + sigma
        precision = jnp.exp(-2 * sigma)
        likelihood = (
            -0.5 * precision * (size * jnp.sum((here["means"] - theta) ** 2) + here["within"])
        )
        return prior + likelihood - count * size * sigma + _normal(theta - mu, tau)

    def draws(rng, n):
        short = -16.0 if count < 20 else -1.0
        axes = [np.linspace(short, 2.0 if count < 20 else 1.0, 901), np.linspace(-0.9, 0.9, 301)]
        log_tau, log_sigma = np.meshgrid(*axes, indexing="ij")
        tau, sigma = np.exp(log_tau.ravel()), np.exp(log_sigma.ravel())
        evidence = groups_evidence(means, sigma[:, None] / size**0.5, tau, 5.0)
        evidence += -count * (size - 1) * np.log(sigma) - 0.5 * within / sigma**2
        prior = log_tau + log_sigma - (np.exp(2 * log_tau) + np.exp(2 * log_sigma)) / 8
        logs = grid_draws(rng, n, axes, prior + evidence.reshape(log_tau.shape))
        tau, sigma = np.exp(logs).T
        mu, theta = groups_draws(rng, means, sigma[:, None] / size**0.5, tau, 5.0)
        return np.concatenate([mu[:, None], logs, theta], axis=1)

    about = f"intercepts of {count} groups of {size}, their mean, spread and noise"
    names = ("mu", "log tau", "log sigma", *indexed("theta", count))
    return Posterior(f"{count} groups", about, names, log_density, draws)


def _schools_draws(rng, n):
    data = observations("eight_schools")
    axis = np.linspace(-16.0, 6.0, 8001)
    tau = np.exp(axis)
    log_prior = axis - np.log1p((tau / 5) ** 2)
    evidence = groups_evidence(data["y"], data["sigma"], tau, 5.0)
    log_tau = grid_draws(rng, n, [axis], log_prior + evidence)
    mu, theta = groups_draws(rng, data["y"], data["sigma"], np.exp(log_tau[:, 0]), 5.0)
    return mu[:, None], log_tau, theta


def _schools(centred):
    """y_j ~ N(theta_j, sigma_j^2), theta_j ~ N(mu, tau^2), mu ~ N(0, 5^2), tau ~ half-Cauchy(0, 5)."""
    data = observations("eight_schools")

    def log_density(p):
        here = _cast(data, p.dtype)
        mu, log_tau, rest = p[0], p[1], p[2:]
        prior = -0.5 * (mu / 5) ** 2 - jnp.log1p((jnp.exp(log_tau) / 5) ** 2) + log_tau
        if centred:
            theta, given = rest, _normal(rest - mu, log_tau)
        else:
            theta, given = mu + jnp.exp(log_tau) * rest, -0.5 * jnp.sum(rest**2)
        return prior + given - 0.5 * jnp.sum(((here["y"] - theta) / here["sigma"]) ** 2)

    def draws(rng, n):
        mu, log_tau, theta = _schools_draws(rng, n)
        rest = theta if centred else (theta - mu) / np.exp(log_tau)
        return np.concatenate([mu, log_tau, rest], axis=1)

    kind = "centred" if centred else "non-centred"
    names = ("mu", "log tau", *indexed("theta" if centred else "z", 8))
    shape = "neck" if centred else "one"
    return Posterior(f"schools {kind}", f"eight schools, {kind}", names, log_density, draws, shape)


def _process():
    data = observations("gp")
    x, y = data["x"], data["y"]
    squares = (x[:, None] - x) ** 2

    def log_density(p):
        rho, alpha, sigma = jnp.exp(p[0]), jnp.exp(p[1]), jnp.exp(p[2])
        covariance = alpha**2 * jnp.exp(-jnp.asarray(squares, p.dtype) / (2 * rho**2))
        factor = jnp.linalg.cholesky(covariance + sigma * jnp.eye(len(x), dtype=p.dtype))
        standard = jnp.linalg.solve(factor, jnp.asarray(y, p.dtype))
        likelihood = -0.5 * standard @ standard - jnp.sum(jnp.log(jnp.diagonal(factor)))
        prior = 24 * p[0] - 4 * rho - 0.5 * (alpha / 2) ** 2 - 0.5 * sigma**2
        return likelihood + prior + jnp.sum(p)

    def draws(rng, n):
        axes = [np.linspace(*ends, 121) for ends in ((0.6, 2.9), (-2.6, 2.6), (-6.0, 1.8))]
        return grid_draws(rng, n, axes, _process_grid(tuple(map(tuple, axes))))

    @functools.lru_cache
    def _process_grid(axes):
        rho, alpha, sigma = (np.exp(np.asarray(axis)) for axis in axes)
        log_values = np.empty((len(rho), len(alpha), len(sigma)))
        for i, length in enumerate(rho):
            # One eigendecomposition serves every amplitude and every noise.
            values, vectors = np.linalg.eigh(np.exp(-squares / (2 * length**2)))
            inner = alpha[:, None, None] ** 2 * np.maximum(values, 0) + sigma[None, :, None]
            log_values[i] = -0.5 * np.sum((vectors.T @ y) ** 2 / inner + np.log(inner), axis=2)
            log_values[i] += 25 * np.log(length) - 4 * length
        log_values += (np.log(alpha) - 0.5 * (alpha / 2) ** 2)[None, :, None]
        return log_values + (np.log(sigma) - 0.5 * sigma**2)[None, None, :]

    about = "posteriordb gp-regr: length scale, amplitude and noise of 11 observations"
    names = ("log rho", "log alpha", "log sigma")
    return Posterior("gaussian process", about, names, log_density, draws)


for _posterior in (
    _kidiq(),
    _earnings(),
    _sblrc(),
    _logistic(),
    _groups(10, 5),
    _groups(80, 5),
    _schools(centred=False),
    _schools(centred=True),
    _process(),
):
    register(_posterior)

"""Exact draws of posteriors that are normal given a few parameters, and those few by a fine grid."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator


def grid_draws(
    rng: Generator, n: int, axes: Sequence[np.ndarray], log_values: np.ndarray
) -> np.ndarray:
    """Draws of a density given on an even grid, (n, axes): a cell by its mass, then a place in it.

    Raises:
        ValueError: where more than 1e-6 of the mass lies on the edge of the grid.
    """
    mass = np.exp(log_values - log_values.max())
    mass /= mass.sum()
    for axis in range(mass.ndim):
        lying = np.moveaxis(mass, axis, 0)
        if lying[0].sum() + lying[-1].sum() > 1e-6:
            raise ValueError(f"axis {axis} of the grid is too short: {lying[[0, -1]].sum((1,))}")
    cells = np.searchsorted(np.cumsum(mass.ravel()), rng.random(n), side="right")
    places = np.unravel_index(np.minimum(cells, mass.size - 1), mass.shape)
    return np.stack(
        [
            axis[place] + (axis[1] - axis[0]) * (rng.random(n) - 0.5)
            for axis, place in zip(axes, places, strict=True)
        ],
        axis=1,
    )


def regression_draws(
    rng: Generator, n: int, x: np.ndarray, y: np.ndarray, log_prior, precision: float
) -> np.ndarray:
    """y ~ N(x b, sigma²), b ~ N(0, 1 / precision): draws of (b, log sigma).

    `log_prior` is that of log sigma.
    """
    gram, moment, square = x.T @ x, x.T @ y, y @ y
    fitted = np.sum((y - x @ np.linalg.solve(gram, moment)) ** 2) / len(y)
    axis = 0.5 * np.log(fitted) + np.linspace(-0.8, 0.8, 4001) * (100 / len(y)) ** 0.5
    values, vectors = np.linalg.eigh(gram)
    rotated = vectors.T @ moment
    inner = values / np.exp(2 * axis)[:, None] + precision
    ratio = rotated / np.exp(2 * axis)[:, None]
    log_values = (
        log_prior(axis)
        - len(y) * axis
        - 0.5 * square / np.exp(2 * axis)
        + 0.5 * np.sum(ratio**2 / inner, axis=1)
        - 0.5 * np.sum(np.log(inner), axis=1)
    )
    log_sigma = grid_draws(rng, n, [axis], log_values)
    scale = np.exp(2 * log_sigma)
    inner = values / scale + precision
    b = rotated / scale / inner + rng.standard_normal((n, x.shape[1])) / np.sqrt(inner)
    return np.concatenate([b @ vectors.T, log_sigma], axis=1)


def groups_draws(
    rng: Generator, means: np.ndarray, errors: np.ndarray, tau: np.ndarray, width: float
) -> tuple[np.ndarray, np.ndarray]:
    """means_j ~ N(theta_j, errors_j²), theta_j ~ N(mu, tau²), mu ~ N(0, width²), given tau and errors.

    Args:
        means: (J,).
        errors: (J,), (n, 1) or (n, J).
        tau: (n,).

    Returns:
        mu (n,) and theta (n, J).
    """
    weight = np.ones_like(means) / (errors**2 + tau[:, None] ** 2)
    precision = weight.sum(1) + width**-2
    mu = (weight * means).sum(1) / precision + rng.standard_normal(len(tau)) / np.sqrt(precision)
    inner = errors**-2 + tau[:, None] ** -2
    center = (means * errors**-2 + mu[:, None] * tau[:, None] ** -2) / inner
    return mu, center + rng.standard_normal(center.shape) / np.sqrt(inner)


def groups_evidence(
    means: np.ndarray, errors: np.ndarray, tau: np.ndarray, width: float
) -> np.ndarray:
    """log p(means | tau, errors) of the same model, mu and theta integrated out; (n,)."""
    weight = np.ones_like(means) / (errors**2 + tau[:, None] ** 2)
    total = weight.sum(1) + width**-2
    center = (weight * means).sum(1) / total
    return (
        0.5 * np.sum(np.log(weight), axis=1)
        - 0.5 * np.log(total)
        - 0.5 * np.sum(weight * means**2, axis=1)
        + 0.5 * total * center**2
    )

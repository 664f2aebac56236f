"""Tensors of functions: error against evaluations, beside teneva's cross approximation.

(Its `cross_act`, marked a draft, fails on grids of equal sizes; xfac is on no package index.)

A peer is told the tolerance on 1,000 entries that it does not pay for, and gets the start rank and
growth, out of several, with which it needs the fewest evaluations; repeated entries are free for
all. Ours chooses its ranks, and pays for the entries that estimate its error.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

import t3
from bench import harness

BUDGET = 200_000


def _grid(low, high, size):
    return np.linspace(low, high, size)


def mixed(d=5, size=16):
    """An exponential over a polynomial, plus products of waves, on [0, 1]^5."""

    def value(x):
        waves = np.sin(3 * x[0] * x[1]) * np.cos(2 * x[2] + x[3] * x[4])
        return np.exp(-x.sum(0) / 2) / (1 + (x**2).sum(0)) + 0.3 * waves

    return value, [_grid(0, 1, size)] * d


def oscillatory(d=10, size=16):
    """Genz's family 1."""
    weights = 9 * np.arange(1, d + 1) / np.arange(1, d + 1).sum()
    return lambda x: np.cos(0.6 * np.pi + weights @ x), [_grid(0, 1, size)] * d


def corner_peak(d=8, size=16):
    """Genz's family 3."""
    weights = 1.85 * np.arange(1, d + 1) / np.arange(1, d + 1).sum()
    return lambda x: (1 + weights @ x) ** -(d + 1.0), [_grid(0, 1, size)] * d


def product_peak(d=5, size=16):
    """Genz's families 2 and 6: a product of peaks, cut off beyond a corner."""
    middle = np.linspace(0.3, 0.7, d)[:, None]

    def value(x):
        peaks = np.prod(1 / (0.04 + (x - middle) ** 2), axis=0)
        return np.where((x[0] < 0.8) & (x[1] < 0.6), peaks, 0.0)

    return value, [_grid(0, 1, size)] * d


def rosenbrock(d=7, size=16):
    """A polynomial in seven variables on [-2, 2]^7."""

    def value(x):
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum(0)

    return value, [_grid(-2, 2, size)] * d


def gaussian(d=6, size=20):
    """The density of six correlated normal variables (0.4 between neighbours), on [-3, 3]^6."""
    apart = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    precision = np.linalg.inv(0.4**apart)

    def value(x):
        return np.exp(-0.5 * np.sum(x * (precision @ x), axis=0))

    return value, [_grid(-3, 3, size)] * d


def heated_body(d=6, size=9, points=40):
    """Mean temperature of part of a radiating body, its log-conductivity a sum of d waves."""
    cells = (np.arange(points) + 0.5) / points
    waves = np.stack([np.cos(np.pi * k * cells) / (1 + k) for k in range(d)])

    @jax.jit
    @functools.partial(jax.vmap, in_axes=1)
    def solve(x):
        conductivity = jnp.exp(jnp.asarray(waves.T) @ x) * points**2
        inner = conductivity[1:-1]
        diffusion = (
            jnp.diag(conductivity[:-1] + conductivity[1:])
            - jnp.diag(inner, 1)
            - jnp.diag(inner, -1)
        )

        def newton(u, _):
            change = jnp.linalg.solve(diffusion + jnp.diag(3 * u**2), diffusion @ u + u**3 - 5)
            return u - change, None

        u = jax.lax.scan(newton, jnp.zeros(points - 1), length=7)[0]
        return jnp.mean(u[points // 4 - 1 : points // 2])

    def value(x):
        # One shape of batch: compiled once.
        padded = np.pad(x, [(0, 0), (0, -x.shape[1] % 512)], mode="edge")
        blocks = np.split(padded, padded.shape[1] // 512, axis=1)
        return np.concatenate([np.asarray(solve(block)) for block in blocks])[: x.shape[1]]

    return value, [_grid(-1, 1, size)] * d


FUNCTIONS = (mixed, oscillatory, corner_peak, product_peak, rosenbrock, heated_body, gaussian)


@harness.case("t3.cross")
def cross(smoke: bool):
    for make in FUNCTIONS[:2] if smoke else FUNCTIONS:
        value, nodes = make()
        shape = tuple(map(len, nodes))
        entries = functools.partial(_entries, value, nodes)
        rng = np.random.default_rng(0)
        fresh = np.stack([rng.integers(0, n, 20_000) for n in shape])
        exact = entries(fresh)
        for tolerance in (1e-2,) if smoke else (1e-2, 1e-4, 1e-6):
            params = {
                "function": make.__name__,
                "d": len(shape),
                "N": shape[0],
                "tolerance": tolerance,
                "dtype": "float64",
            }
            yield harness.row(
                peer="ours", **_ours(entries, shape, tolerance, fresh, exact), **params
            )
            run = functools.partial(_cross, entries, shape, tolerance, fresh, exact, smoke)
            yield harness.peer_row("teneva cross", run, **params)


def _entries(value, nodes, index):
    return value(np.stack([line[row] for line, row in zip(nodes, index, strict=True)]))


def _ours(entries, shape, tolerance, fresh, exact):
    """The median of three keys."""
    runs = []
    for seed in range(3):
        began = time.perf_counter()
        key = jax.random.key(seed)
        with jax.enable_x64(True):
            found = t3.cross(entries, shape, tolerance=tolerance, key=key, budget=BUDGET)
            seconds = time.perf_counter() - began
            error = harness.relative_error(found.x.entries(fresh), exact)
        runs.append((found.evaluations, error, found, seconds))
    count, error, found, seconds = sorted(runs, key=lambda run: run[0])[1]
    counts = ", ".join(f"{run[0]:,}" for run in runs)
    return {
        "timing": _timing(seconds),
        "error": error,
        "against": "20,000 random entries",
        "note": f"{count:,} evaluations in {found.calls} calls (three keys: {counts}); estimated "
        f"error {found.error:.1e}; ranks to {max(*found.x.tucker_ranks, *found.x.tt_ranks)}",
    }


def _cross(entries, shape, tolerance, fresh, exact, smoke):
    import teneva

    held_out, held_values = fresh.T[:1000], exact[:1000]
    best = None
    for rank, growth in ((1, (1, 1)), (2, (1, 2)), *((r, (0, 0)) for r in range(2, 41))):
        if smoke and rank > 3:
            break
        if best and not growth[1] and rank > best[3]:
            break
        info, most = {}, best[0] if best else BUDGET
        began = time.perf_counter()
        np.random.seed(0)  # noqa: NPY002 - the peer draws from the global state
        x = teneva.cross(
            lambda rows: entries(rows.T),
            teneva.rand(list(shape), rank, seed=0),
            m=most,
            nswp=4 if not growth[1] else 20,
            dr_min=growth[0],
            dr_max=growth[1],
            info=info,
            cache={},
            I_vld=held_out,
            y_vld=held_values,
            e_vld=tolerance,
        )
        seconds = time.perf_counter() - began
        reached = info["stop"] == "e_vld"
        if reached and (best is None or info["m"] < best[0]):
            error = harness.relative_error(teneva.get_many(x, fresh.T), exact)
            best = info["m"], error, seconds, int(max(teneva.ranks(x))), rank, growth
    if best is None:
        return {"note": f"not within {BUDGET:,} evaluations"}
    count, error, seconds, reached, rank, growth = best
    return {
        "timing": _timing(seconds),
        "error": error,
        "against": "20,000 random entries",
        "note": f"{count:,} evaluations; ranks to {reached}; best setting: start of rank {rank}, "
        f"growth {growth}",
    }


def _timing(seconds):
    return harness.Timing(0.0, seconds, seconds, 0.0, None, 1)

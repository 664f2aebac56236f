"""The exact Stein update beside the plain broadcast form, blackjax and pykeops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import svgd
from bench import harness, peers
from kernels import Gaussian
from kernels._tiles import MAX_UNROLLED

DTYPES = ("float32", "float64")


def grid(*sizes):
    """(n, d, dtype, h) of every size in both types. h grows with the distances between particles, as
    any rule for it would have it."""
    return [(n, d, dtype, 0.5 * (d / 3) ** 0.5) for n, d in sizes for dtype in DTYPES]


LOW = grid(*((n, d) for n in (1_000, 10_000) for d in (2, 3, 10)), (16_384, 3))
WIDE = grid((4_096, 1_000), (1_000, 100), (4_096, 100))
LARGE = [size for size in grid((100_000, 2), (100_000, 3), (100_000, 10)) if size[2] == "float32"]
SMOKE_SIZES = [(64, 3, "float32", 0.5), (64, 10, "float64", 1.0)]

# The broadcast form holds arrays of n^2 d numbers, its derivative about four: timed up to this size.
BROADCAST_LIMIT = 3e8


def problem(n, d, dtype, h):
    x = jnp.asarray(1.2 * np.random.default_rng(0).normal(size=(n, d)), dtype)
    return Gaussian(np.asarray(h, dtype)), x, -x


def broadcast(kernel, x, s):
    """The form that one writes down first: every pair's difference, (n, n, d), at once."""
    h2 = kernel.bandwidth.astype(x.dtype) ** 2
    difference = x[:, None] - x[None, :]
    k = jnp.exp(-jnp.sum(difference**2, axis=-1) / (2 * h2))
    return jnp.mean(k[:, :, None] * (s[None, :] + difference / h2), axis=1)


def loss(update, kernel, x, s):
    return jnp.sum(jnp.cos(update(kernel, x, s)))


def gradient(update):
    return jax.value_and_grad(functools.partial(loss, update), argnums=(0, 1, 2))


def exact_update(kernel, x, s):
    return svgd.SteinUpdate(kernel, method="exact")(x, s)


def reference(kernel, x, s, targets=512):
    """phi in float64 at the first particles, from the plain form."""
    h2 = float(kernel.bandwidth) ** 2
    x, s = np.asarray(x, np.float64), np.asarray(s, np.float64)
    phi = np.empty((min(targets, len(x)), x.shape[1]))
    for i in range(len(phi)):
        difference = x[i] - x
        k = np.exp(-np.sum(difference**2, axis=1) / (2 * h2))
        phi[i] = np.mean(k[:, None] * (s + difference / h2), axis=0)
    return phi


@harness.case("svgd.exact")
def exact(smoke: bool):
    yield from rows(SMOKE_SIZES if smoke else LOW)


@harness.case("svgd.exact.wide")
def wide(smoke: bool):
    """Many dimensions, as in Bayesian neural networks: distances come from matrix products."""
    yield from rows([(64, 100, "float32", 3.0)] if smoke else WIDE)


@harness.case("svgd.exact.large")
def large(smoke: bool):
    yield from rows([(96, 3, "float32", 0.5)] if smoke else LARGE)


def rows(sizes):
    for n, d, dtype, h in sizes:
        kernel, x, s = problem(n, d, dtype, h)
        params = {"n": n, "d": d, "dtype": dtype}
        expected = reference(kernel, x, s)
        # In few dimensions each unordered pair is evaluated once; in many, products are the limit.
        evaluations = n * (n - 1) / 2 if d <= MAX_UNROLLED else n * n
        work = {"exponentials": evaluations, "matmul_flops": n * n * (4 * d + 2)}
        stages = {"forward": exact_update, "gradient": gradient(exact_update)}
        timings = harness.paired(stages, kernel, x, s, repeats=3 if n * n * d > 5e9 else 7)
        value = jax.jit(exact_update)(kernel, x, s)
        error = harness.relative_error(value[: len(expected)], expected)
        ratio = timings["gradient"].min_seconds / timings["forward"].min_seconds
        slope_error, against = gradient_error(kernel, x, s)
        yield harness.row(
            peer="ours", timing=timings["forward"], **params, stage="forward", work=work,
            error=error, against="plain form in float64",
        )  # fmt: skip
        yield harness.row(
            peer="ours", timing=timings["gradient"], **params, stage="gradient",
            error=slope_error, against=against, note=f"{ratio:.2f} times the forward",
        )  # fmt: skip
        for stage, job in {"forward": broadcast, "gradient": gradient(broadcast)}.items():
            size = n * n * d * (1 if stage == "forward" else 4)
            name = {"peer": "broadcast", **params, "stage": stage}
            if size > BROADCAST_LIMIT:
                note = f"arrays of {size * x.dtype.itemsize / 1e9:.0f} GB: not run"
                yield harness.row(**name, note=note)
                continue
            timing = harness.measure(job, kernel, x, s, repeats=2 if n < 5_000 else 1)
            ratio = timing.min_seconds / timings[stage].min_seconds
            yield harness.row(**name, timing=timing, note=f"ours is {ratio:.1f} times faster")
        ours = timings["forward"].min_seconds
        for peer, update in {
            "blackjax": peers.blackjax_stein,
            "numpyro": peers.numpyro_stein,
        }.items():
            if n * n * d <= BROADCAST_LIMIT:
                run = functools.partial(peer_figures, update, kernel, x, s, expected, ours)
                yield harness.peer_row(peer, run, **params, stage="forward")
            else:
                note = f"sums over {n * n * d / 1e9:.1f}e9 coordinates: not run"
                yield harness.row(peer=peer, **params, stage="forward", note=note)
        if d <= 100 and n * n * d <= 5e9:
            pykeops = functools.partial(
                peer_figures, peers.pykeops_stein, kernel, x, s, expected, ours, jit=False
            )
            yield harness.peer_row("pykeops", pykeops, **params, stage="forward")
        else:
            note = "compiles a formula of all coordinates" if d > 100 else "minutes"
            yield harness.row(peer="pykeops", **params, stage="forward", note=f"{note}: not run")


def gradient_error(kernel, x, s):
    """Of the gradients in bandwidth, particles and scores, the worst, and what it is against."""
    double = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (kernel, x, s))
    size = x.shape[0] ** 2 * x.shape[1]
    if size <= BROADCAST_LIMIT:
        against, expected = "autodiff of the broadcast form in float64", gradient(broadcast)
    elif x.dtype == jnp.float32 and size <= 1e11:
        against, expected = "the same in float64", gradient(exact_update)
    else:
        return None, ""
    _, got = jax.jit(gradient(exact_update))(kernel, x, s)
    _, wanted = jax.jit(expected)(*double)
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    return max(harness.relative_error(one, two) for one, two in pairs), against


def peer_figures(peer, kernel, x, s, expected, ours, jit=True):
    update, rows = peer(kernel, x, s)
    timing = harness.measure(update, rows, repeats=2 if len(rows) < 5_000 else 1, jit=jit)
    value = (jax.jit(update) if jit else update)(rows)
    return {
        "timing": timing,
        "error": harness.relative_error(value[: len(expected)], expected),
        "against": "plain form in float64",
        "note": f"ours is {timing.min_seconds / ours:.1f} times faster",
    }

"""Fits: Newton steps against t3toolbox, and a real tensor completed from a part of its entries."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

import memory
import t3
from bench import harness
from t3._fit.methods import newton_cg as _newton

# d modes of size N, all Tucker and inner train ranks r, order K, W probes
SIZE, SMOKE_SIZE = (5, 50, 20, 2, 4096), (3, 6, 2, 1, 16)
STEPS = 3


def _problem(d, mode, rank, order, count):
    """Exact jets of a random tensor, and a start half its norm away."""
    shape, ranks = (mode,) * d, ((rank,) * d, (1, *[rank] * (d - 1), 1))
    truth = t3.TuckerTensorTrain.random(jax.random.key(0), shape, *ranks, dtype=jnp.float64)
    truth = truth.round(ranks=truth.minimal_ranks)
    ranks = truth.tucker_ranks, truth.tt_ranks
    truth = truth / truth.norm()
    rng = np.random.default_rng(0)
    points, directions = (
        tuple(rng.standard_normal((count, mode)) for _ in range(d)) for _ in range(2)
    )
    away = t3.TuckerTensorTrain.random(jax.random.key(1), shape, *ranks, dtype=jnp.float64)
    start = (truth + away * (0.5 / away.norm())).round(ranks=ranks)
    data = truth.probe_derivatives(points, directions, order)
    return start, t3.Probe(points, directions, order), data


@harness.case("t3.fit")
def newton(smoke: bool):
    """Wall time of a fixed number of Newton steps, from one start on the same data, warm."""
    size = SMOKE_SIZE if smoke else SIZE
    names = dict(zip(("d", "mode", "rank", "order", "probes"), size, strict=True))
    params = {**names, "dtype": "float64", "stage": f"{STEPS} newton_cg steps"}
    with jax.enable_x64(True):
        start, sampling, data = _problem(*size)
        for storage, x0 in (("ragged", start), ("packed", start.pack())):
            run = lambda x0=x0: t3.fit(x0, sampling, data, max_steps=STEPS)  # noqa: E731
            result = run()
            timing = harness.measure(lambda run=run: run().x, repeats=1, jit=False)
            yield harness.row(
                peer="ours",
                storage=storage,
                timing=timing,
                note=f"objective {result.history[-1].objective:.4g}, "
                f"products {sum(r.detail.get('products', 0) for r in result.history)}, "
                f"scratch {_our_scratch(x0, sampling, data) / 2**20:.0f} MiB",
                **params,
            )
        yield harness.peer_row(
            "t3toolbox", lambda: _peer_newton(start, sampling, data), storage="packed", **params
        )


def _our_scratch(x0, sampling, data) -> int:
    problem = t3.least_squares(x0, sampling, data)
    method = t3.NewtonCG()
    look = method.look(problem, x0, 0)

    def step(problem, x, look):
        return _newton.newton_step(
            problem,
            method.geometry,
            x,
            look,
            look.gradient_norm,
            max_cg_steps=200,
            forcing_power=0.5,
        )

    return memory.compiled_memory(step, problem, x0, look).temp_bytes or 0


def _peer_newton(start, sampling, data):
    from t3toolbox import (
        optimizers,
        tucker_tensor_train,
        uniform_manifold,
        uniform_tucker_tensor_train,
    )
    from t3toolbox.backend import optimizers as backend

    x = tucker_tensor_train.TuckerTensorTrain(
        tuple(map(np.asarray, start.tucker_cores)), tuple(map(np.asarray, start.tt_cores))
    )
    x = uniform_tucker_tensor_train.UniformTuckerTensorTrain.from_t3(x)
    seen = {}

    def run(steps=STEPS, callback=None):
        seen["stats"] = optimizers.newton_cg(
            uniform_manifold.UNIFORM_MANIFOLD,
            "probe_derivatives",
            (list(sampling.ww), list(sampling.pp)),
            list(map(np.asarray, data)),
            x,
            order=sampling.order,
            max_newton=steps,
            use_jit=True,
            callback=callback,
        )[1]
        return seen["stats"]["losses"]

    def scratch(info):
        solve = jax.jit(backend._cg_core, static_argnums=(4,))
        compiled = solve.lower(info.lm, info.lm.gradient, 1.0, 200, True).compile()
        seen["scratch"] = harness.scratch_bytes(compiled)

    run(1, scratch)
    timing = harness.measure(run, repeats=1, jit=False)
    products = sum(record.get("cg_iters") or 0 for record in seen["stats"]["history"])
    return {
        "timing": timing,
        "note": f"products {products}, scratch {seen['scratch'] / 2**20:.0f} MiB (conjugate gradients)",
    }


@harness.case("t3.completion")
def completion(smoke: bool):
    """A measured tensor that ships with tensorly, from 30 % of its entries."""
    for name in ("covid19_serology",) if smoke else ("covid19_serology", "kinetic"):
        params = {"data": name, "dtype": "float64", "stage": "completion"}
        try:
            import tensorly.datasets as sets
        except ImportError as error:
            yield harness.row(peer="ours", note=f"no data: {error}", **params)
            return
        tensor = np.asarray(getattr(sets, f"load_{name}")()["tensor"], np.float64)
        tensor = tensor / np.std(tensor)
        rng = np.random.default_rng(0)
        known = rng.random(tensor.shape) < 0.3
        with jax.enable_x64(True):
            began = time.perf_counter()
            x, note = _complete(tensor, known, rng, smoke)
            note += f", {time.perf_counter() - began:.1f} s with compilation"
            yield harness.row(
                peer="ours",
                error=harness.relative_error(np.asarray(x.to_dense())[~known], tensor[~known]),
                against="entries held out",
                note=note,
                **params,
            )
        for kind in ("parafac", "tucker"):
            run = functools.partial(_peer, kind, tensor, known, smoke)
            yield harness.peer_row(f"tensorly {kind}", run, **params)


def _complete(tensor, known, rng, smoke):
    """Rank continuation with a tenth of the known entries for validation."""
    entries = rng.permutation(np.argwhere(known)).T
    held = entries.shape[1] // 10
    check, train = entries[:, :held], entries[:, held:]
    d = tensor.ndim
    start = t3.TuckerTensorTrain.zeros(tensor.shape, (1,) * d, (1,) * (d + 1), dtype=jnp.float64)
    tries = []
    for ridge in (0.1,) if smoke else (1e-3, 1e-2, 1e-1):
        found = t3.fit_growing_ranks(
            start,
            t3.Entries(train),
            tensor[tuple(train)],
            validation=(t3.Entries(check), tensor[tuple(check)]),
            regularizer=ridge,
            max_stages=1 if smoke else 6,
            max_steps=1 if smoke else 40,
        )
        tries.append((min(found.errors), ridge, found.x))
    _, ridge, x = min(tries, key=lambda line: line[0])
    return x, f"ranks {x.tucker_ranks} {x.tt_ranks}, regularizer {ridge}"


def _peer(kind, tensor, known, smoke):
    """The rank that does best on the held-out entries themselves: better than a user could know."""
    import tensorly
    from tensorly import decomposition

    tries = []
    for rank in (1,) if smoke else range(1, 6):
        ranks = rank if kind == "parafac" else [min(rank, size) for size in tensor.shape]
        began = time.perf_counter()
        found = getattr(decomposition, kind)(
            tensor * known,
            rank=ranks,
            mask=known,
            n_iter_max=2 if smoke else 200,
            init="random",
            random_state=0,
        )
        back = tensorly.cp_to_tensor if kind == "parafac" else tensorly.tucker_to_tensor
        error = harness.relative_error(back(found)[~known], tensor[~known])
        taken = time.perf_counter() - began
        tries.append((error, f"rank {rank}, {taken:.1f} s"))
    error, note = min(tries)
    return {"error": error, "note": note, "against": "entries held out"}

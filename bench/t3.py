"""Probe-derivative transposes: time and scratch against t3toolbox, gradients, compile times."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

import memory
import t3
from bench import harness

# d modes of size N, all Tucker and inner train ranks r, order K, W probes
SIZES = [(5, 50, 20, 3, 2048), (6, 64, 32, 3, 2048), (6, 128, 64, 2, 1024)]
SMOKE_SIZES = [(2, 4, 2, 1, 6)]


def _problem(d, mode, rank, order, count, dtype):
    """A frame of random cores, and random residuals, points and directions."""
    rng = np.random.default_rng(0)
    bonds = [1, *[rank] * (d - 1), 1]

    def normal(*shape, scale=1.0):
        return jnp.asarray(scale * rng.standard_normal(shape), dtype)

    def train():
        return tuple(
            normal(bonds[i], rank, bonds[i + 1], scale=(bonds[i] * rank) ** -0.5) for i in range(d)
        )

    up = tuple(normal(rank, mode, scale=mode**-0.5) for _ in range(d))
    frame = t3.T3Frame(up, train(), train(), train())
    residual = tuple(normal(order + 1, count, mode) for _ in range(d))
    points, directions = (tuple(normal(count, mode) for _ in range(d)) for _ in range(2))
    return frame, residual, points, directions


def _summed_transpose(order, chunk):
    """The job that most cases time: the transpose, added over probes."""

    def run(frame, residual, points, directions):
        return t3.probe_derivatives_transpose(
            residual, points, directions, frame, order, sum_over_probes=True, chunk_size=chunk
        )

    return run


def _sizes(d, mode, rank, order, count, **more):
    return {"d": d, "N": mode, "r": rank, "K": order, "W": count, **more}


def transpose_flops(d, mode, rank, order, count):
    """Stated operation count: the products that every probe and mode needs, inner modes only.

    Four products with a train core for the K + 3 slots, the jets over their small matrices (two
    walks and the outer products), and the products with Tucker cores on both ways.
    """
    slots, jets = order + 3, order + 1
    core = 4 * 2 * slots * rank**3
    small = 3 * 2 * (jets * (jets + 1) // 2 + 4 * jets) * rank**2
    tucker = 2 * 2 * slots * rank * mode
    ends = 2 * (4 * 2 * slots * rank**2 + tucker)
    return count * ((d - 2) * (core + small + tucker) + ends)


def _padded(core, rank):
    left, _, right = core.shape
    return jnp.pad(core, ((0, rank - left), (0, 0), (0, rank - right)))


def _peer_transpose(frame, size, dtype):
    """t3toolbox's uniform transpose with the chunk that it estimates itself."""
    from t3toolbox.backend import sampling_derivatives as peer

    d, mode, rank, order, count = size
    uniform = (
        jnp.stack(frame.up_tucker),
        *(
            jnp.stack([_padded(core, rank) for core in family])
            for family in (frame.down_tt, frame.left_tt, frame.right_tt)
        ),
    )
    chunk = peer.estimate_chunk_size(
        (mode,) * d, (rank,) * d, (1, *[rank] * (d - 1), 1), order, count, dtype=np.dtype(dtype)
    )

    def run(residual, points, directions):
        return peer.tv_probe_derivatives_transpose(
            *(jnp.stack(family) for family in (residual, points, directions)),
            uniform,
            order,
            sum_over_probes=True,
            chunk_size=chunk,
        )

    return jax.jit(run), chunk


@harness.case("t3.transpose")
def transpose(smoke: bool):
    jobs = [(size, "float32") for size in (SMOKE_SIZES if smoke else SIZES)]
    if not smoke:
        jobs.append((SIZES[1], "float64"))
        # Fewer and more probes: what grows with them.
        jobs += [((*SIZES[0][:-1], count), "float32") for count in (512, 8192)]
    for size, dtype in jobs:
        # The peer's constants are float64: with that type enabled, its float32 is not.
        with jax.enable_x64(dtype == "float64"):
            yield from _transpose_rows(size, dtype)


def _transpose_rows(size, dtype):
    *_, order, count = size
    frame, *data = _problem(*size, dtype)
    params = _sizes(*size, dtype=dtype)
    packed = frame.pack()

    def ours(frame, chunk):
        return jax.jit(functools.partial(_summed_transpose(order, chunk), frame))

    jobs = {"auto": ours(frame, "auto"), "auto, packed": ours(packed, "auto")}
    for chunk in (32, 128):
        if chunk < count:
            jobs[str(chunk)] = ours(frame, chunk)
    try:
        jobs["peer"], peer_chunk = _peer_transpose(frame, size, dtype)
    except ImportError:
        peer_chunk = None
    timings = harness.paired(jobs, *data, repeats=3)
    peer_flat = _flat(jobs["peer"](*data), frame) if peer_chunk else None
    for name, timing in timings.items():
        if name != "peer":
            error = None
            if peer_flat is not None and name.startswith("auto"):
                error = harness.relative_error(_flat(jobs[name](*data), frame), peer_flat)
            yield harness.row(
                **params,
                chunk=name,
                peer="ours",
                timing=timing,
                error=error,
                against="" if error is None else "t3toolbox",
                work={"matmul_flops": transpose_flops(*size)},
            )
    if peer_chunk is not None:
        peer = timings["peer"]
        best = timings["auto"]
        yield harness.row(
            **params,
            chunk="its own",
            peer="t3toolbox",
            timing=peer,
            note=f"in chunks of {peer_chunk}; ours (auto): "
            f"{peer.min_seconds / best.min_seconds:.1f} times faster, scratch "
            f"{peer.scratch_bytes / best.scratch_bytes:.0f} times smaller",
        )
    else:
        yield harness.row(**params, peer="t3toolbox", note="not installed")


def _flat(variations, frame):
    """All entries of a result in one vector, padding left out."""
    if isinstance(variations, t3.T3Variations):
        variations = frame.unpack_variations(variations)
        tucker, train = variations.tucker, variations.tt
    else:
        tucker, train = variations
        train = [
            core[: down.shape[0], :, : down.shape[2]]
            for core, down in zip(train, frame.down_tt, strict=True)
        ]
    return np.concatenate([np.ravel(core) for core in (*tucker, *train)])


@harness.case("t3.gradient")
def gradient(smoke: bool):
    for size in SMOKE_SIZES if smoke else SIZES:
        *_, order, count = size
        frame, target, points, directions = _problem(*size, "float32")
        x = t3.TuckerTensorTrain(frame.up_tucker, frame.left_tt)

        def loss(x, chunk, order=order, data=(target, points, directions)):
            jets = x.probe_derivatives(data[1], data[2], order, chunk_size=chunk)
            return sum(jnp.sum(jnp.square(a - b)) for a, b in zip(jets, data[0], strict=True))

        def plain(x, order=order, data=(target, points, directions)):
            jets = t3.Probe(None).sample_chunk(x.train, order + 1, data[1], data[2])
            return sum(jnp.sum(jnp.square(a - b)) for a, b in zip(jets, data[0], strict=True))

        auto = functools.partial(loss, chunk="auto")
        jobs = {
            ("ours", "forward"): auto,
            ("ours", "gradient"): jax.value_and_grad(auto),
            ("autodiff, unchunked", "forward"): plain,
            ("autodiff, unchunked", "gradient"): jax.value_and_grad(plain),
        }
        jobs = {name: jax.jit(job) for name, job in jobs.items()}
        timings = harness.paired(jobs, x, repeats=3)
        reference = _flat_cores(jobs["autodiff, unchunked", "gradient"](x)[1])
        error = harness.relative_error(_flat_cores(jobs["ours", "gradient"](x)[1]), reference)
        forward = timings["ours", "forward"].min_seconds
        for (peer, stage), timing in timings.items():
            ours = peer == "ours" and stage == "gradient"
            yield harness.row(
                **_sizes(*size, dtype="float32", stage=stage),
                peer=peer,
                timing=timing,
                error=error if ours else None,
                against="autodiff" if ours else "",
                note=f"{timing.min_seconds / forward:.2f} times the forward" if ours else "",
            )


def _flat_cores(x):
    return np.concatenate([np.ravel(core) for core in jax.tree.leaves(x)])


@harness.case("t3.compile")
def compile_time(smoke: bool):
    """Compile time over the number of modes: flat when packed and given stacked inputs."""
    order, count, mode, rank = 2, 64, 8, 4
    for d in (2,) if smoke else (6, 12, 24, 48):
        frame, residual, points, directions = _problem(d, mode, rank, order, count, "float32")
        stacked = tuple(jnp.stack(family) for family in (residual, points, directions))
        jobs = {
            "packed": (frame.pack(), *stacked),
            "ragged": (frame, residual, points, directions),
        }
        for storage, args in jobs.items():
            params = _sizes(d, mode, rank, order, count, storage=storage)
            if storage == "ragged" and d > 12:
                yield harness.row(**params, peer="ours", note="compiles each mode: not run")
                continue
            timing = harness.measure(_summed_transpose(order, 16), *args, repeats=3)
            yield harness.row(**params, peer="ours", timing=timing)


@harness.case("t3.scratch")
def scratch(smoke: bool):
    """Scratch that XLA reports, over the chunk and over the number of probes; nothing runs."""
    jobs = [(SMOKE_SIZES[0], 4)]
    if not smoke:
        d, mode, rank, order, _ = SIZES[1]
        jobs = [((d, mode, rank, order, 2048), c) for c in (16, 32, 64, 128)]
        jobs += [((d, mode, rank, order, w), 64) for w in (4096, 16384)]
        jobs += [((6, 128, 128, 5, 32_000), "auto")]
    for size, chunk in jobs:
        problem = jax.eval_shape(lambda size=size: _problem(*size, "float32"))
        report = memory.compiled_memory(_summed_transpose(size[3], chunk), *problem)
        yield harness.row(
            **_sizes(*size, dtype="float32", chunk=chunk),
            peer="ours",
            note=f"compiled only: {memory.format_bytes(report.temp_bytes or math.nan)} of scratch",
        )

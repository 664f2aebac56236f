"""How many probes to work on at a time.

Two sizes matter. The scratch of a chunk should stay comparable to what is resident anyway (inputs
and outputs), or within a budget: XLA's own accounting says what a probe costs. And a chunk runs
fastest when its matrices stay in the processor's cache between the product that writes them and the
one that reads them: a measured number of bytes. ``"auto"`` takes the smaller of the two, but not so
few probes that the products of the chunk become slow.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import memory
from t3._sampling.probe import Probe
from t3._sampling.sampling import Sampling
from t3._tensor.network import HoleTrains, Network
from t3._tensor.ranks import FrameRanks

ChunkSize = int | np.integer | None | Literal["auto"]

# Products of fewer probes run well below the rate of the others, also where their matrices exceed
# the cache: for them, scratch may be this many times what is resident.
FULL_RATE = 64
SLACK = 4
# Bytes of scratch that fit a processor's cache anyway: below, chunks would save nothing.
SMALL = 2**18

_PROBE = Probe(None)


def estimate_chunk_size(
    mode_shapes: Sequence[int],
    tucker_ranks: Sequence[int],
    tt_ranks: Sequence[int],
    order: int,
    n_probes: int,
    *,
    n_tangent: int = 1,
    stack_shape: Sequence[int] = (),
    n_shards: int = 1,
    dtype: Any = None,
) -> int:
    """Chunk of the probe-derivative transpose whose scratch is comparable to what is resident.

    Resident are residuals, points and directions, so that a share of the probes has a share of the
    chunk; together with the scratch they stay below twice of themselves. Scratch is measured from
    two compilations of one chunk on abstract ragged cores, cached by sizes: an upper bound for
    packed cores. Both gradients are in it, the train cores' (``r^2``) and the Tucker cores' (N).
    Nothing runs; call it outside of jit, or inside, where shapes are static.

    Args:
        mode_shapes: ``N_i``, length d.
        tucker_ranks: ``n_i``, length d.
        tt_ranks: ``r_0 .. r_d``, length d + 1.
        order: highest derivative K.
        n_probes: W over all devices.
        n_tangent: tangents at the frame that are worked on together (by ``jax.vmap``).
        stack_shape: base points that are worked on together (by ``jax.vmap``).
        n_shards: devices that W is split over; the answer is for one device's share. Of points that
            are split already: ``n_shards=t3.probe_shards(ww)``.
        dtype: default float32.

    Returns:
        An int in [1, probes of one shard]; all of them where everything fits.

    Raises:
        ValueError: sizes of the wrong number, a negative order, n_shards below 1.
    """
    sizes, count, dtype = _checked(mode_shapes, tucker_ranks, tt_ranks, order, dtype)
    stacks = n_tangent * int(np.prod(stack_shape, dtype=int))
    local = -(-n_probes // n_shards) if n_shards > 0 else n_probes
    resident = local * _input_bytes(_PROBE, sizes.shape, count, stacks, dtype)
    return _largest(max(resident, SMALL), sizes, count, n_probes, n_shards, stacks, dtype, least=1)


def max_chunk_size_within(
    mode_shapes: Sequence[int],
    tucker_ranks: Sequence[int],
    tt_ranks: Sequence[int],
    order: int,
    n_probes: int,
    target_bytes: float,
    *,
    n_tangent: int = 1,
    stack_shape: Sequence[int] = (),
    n_shards: int = 1,
    dtype: Any = None,
) -> int:
    """Largest chunk of the probe-derivative transpose whose scratch stays within a budget.

    Args:
        target_bytes: budget for one device.

    All else as in `estimate_chunk_size`.

    Raises:
        ValueError: also when not even one probe fits.
    """
    sizes, count, dtype = _checked(mode_shapes, tucker_ranks, tt_ranks, order, dtype)
    stacks = n_tangent * int(np.prod(stack_shape, dtype=int))
    return _largest(target_bytes, sizes, count, n_probes, n_shards, stacks, dtype)


def _largest(
    budget: float,
    sizes: FrameRanks,
    count: int,
    n_probes: int,
    n_shards: int,
    stacks: int,
    dtype: np.dtype,
    least: int = 0,
) -> int:
    """The largest chunk whose scratch stays within a budget; `least` where none does.

    A loop holds slices of its inputs, its sum and what a chunk adds to it, and a number for each
    probe. What chunks leave over is a second body of the compiled program, whose scratch XLA keeps
    apart from that of the loop: both count.
    """
    per_probe = stacks * _probe_bytes(_PROBE, sizes, count, dtype)
    whole = memory.chunk_size_within(per_probe, max(budget, least * per_probe), n_probes, n_shards)
    local = max(1, -(-n_probes // n_shards))
    if whole == local:
        return local
    budget -= 2 * stacks * _sum_bytes(sizes, dtype) + 4 * local
    per_probe += _input_bytes(_PROBE, sizes.shape, count, stacks, dtype)
    most = max(1, int(budget // per_probe))
    return next(size for size in range(most, 0, -1) if size + local % size <= most)


def resolve_chunk_size(
    chunk_size: ChunkSize,
    network: Network,
    n_probes: int,
    count: int,
    *,
    form: Sampling,
    n_shards: int = 1,
) -> int | None:
    """The chunk to run with: `chunk_size` itself, or what ``"auto"`` means for these shapes.

    Args:
        chunk_size: as the user gave it.
        network: a frame or a Tucker tensor train.
        n_probes: W over all devices.
        count: orders computed.
        form: the sampling.
        n_shards: devices that W is split over.
    """
    if chunk_size is None:
        return None
    if not isinstance(chunk_size, str):
        return memory.checked_integer("chunk_size", chunk_size, 1)
    if chunk_size != "auto":
        raise ValueError(f'chunk_size must be an int, None or "auto", got {chunk_size!r}.')
    local = -(-n_probes // n_shards)
    sizes, dtype = network.hole_sizes, np.dtype(network.dtype)
    in_cache = cache_chunk_size(sizes, local, dtype, form.slots(count))
    if in_cache >= local:
        return None
    resident = _resident_bytes(form, sizes, count, local, 1, dtype)
    per_probe = _probe_bytes(form, sizes, count, dtype, network.is_packed)
    balanced = memory.balanced_chunk_size(per_probe, resident, local)
    size = max(min(in_cache, balanced), min(FULL_RATE, SLACK * balanced))
    if size >= local:
        return None
    # A divisor of W leaves no remainder, which would be a second body in the compiled program with
    # scratch of its own. None near: better a remainder than small chunks.
    divisors = (c for c in range(size, size // 2, -1) if local % c == 0)
    return next(divisors, size)


def cache_chunk_size(sizes: FrameRanks, n_probes: int, dtype: np.dtype, slots: int) -> int:
    """Probes whose matrices (slots times bond times bond) fill the cache."""
    per_probe = slots * max(*sizes.left, *sizes.right) ** 2 * dtype.itemsize
    if CACHE.choose(n_probes * per_probe) == "whole":
        return n_probes
    return max(1, int(CACHE.active_threshold() // per_probe))


def _checked(mode_shapes, tucker_ranks, tt_ranks, order, dtype):
    d = len(mode_shapes)
    if len(tucker_ranks) != d or len(tt_ranks) != d + 1:
        raise ValueError(
            f"for {d} mode_shapes expected {d} tucker_ranks and {d + 1} tt_ranks, got "
            f"{len(tucker_ranks)} and {len(tt_ranks)}."
        )
    order = operator.index(order)
    if order < 0:
        raise ValueError(f"order must be from 0 on, got {order}.")
    dtype = jax.dtypes.canonicalize_dtype(np.float32 if dtype is None else dtype)
    shape, n, r = tuple(mode_shapes), tuple(tucker_ranks), tuple(tt_ranks)
    # Orders above d - 1 are zero and are not computed.
    return FrameRanks(shape, n, n, r, r), min(order, d - 1) + 1, np.dtype(dtype)


def _resident_bytes(
    form: Sampling, sizes: FrameRanks, count: int, n_probes: int, stacks: int, dtype: np.dtype
) -> float:
    """Bytes of residuals, points, directions and the summed gradient."""
    inputs = n_probes * _input_bytes(form, sizes.shape, count, stacks, dtype)
    return inputs + stacks * _sum_bytes(sizes, dtype)


def _input_bytes(
    form: Sampling, shape: tuple[int, ...], count: int, stacks: int, dtype: np.dtype
) -> int:
    """Bytes of a probe's residual, point and direction."""
    return dtype.itemsize * (stacks * count * form.numbers(shape) + 2 * sum(shape))


def _sum_bytes(sizes: FrameRanks, dtype: np.dtype) -> int:
    """Bytes of the summed gradient."""
    tucker = sum(n * size for n, size in zip(sizes.down, sizes.shape, strict=True))
    train = sum(a * n * b for a, n, b in zip(sizes.left, sizes.up, sizes.right[1:], strict=False))
    return dtype.itemsize * (tucker + train)


@functools.lru_cache(maxsize=256)
def _probe_bytes(
    form: Sampling, sizes: FrameRanks, count: int, dtype: np.dtype, packed: bool = False
) -> float:
    """Scratch of a chunk for each further probe, read from XLA."""
    shape, up, down, left, right = sizes
    modes = len(shape)

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    def family(*axes):
        """Cores with these axes, one tuple of sizes for each."""
        if packed:
            return array(modes, *(max(axis) for axis in axes))
        return tuple(array(*core) for core in zip(*axes, strict=True))

    left_in, left_out, right_in, right_out = left[:-1], left[1:], right[:-1], right[1:]
    holes = HoleTrains(
        family(up, shape),
        family(left_in, down, right_out),
        family(left_in, up, left_out),
        family(right_in, up, right_out),
        array(left[0]),
        array(right[-1]),
    )
    widths = [max(shape)] * modes if packed else shape
    vectors = [array(1, n) for n in widths]
    points = [jax.ShapeDtypeStruct((1,), jnp.int32)] * modes if form.indexed else vectors
    values = widths if form.by_mode else [form.value_shape(shape)]
    residual = [[array(1, *np.atleast_1d(v).tolist())] * count for v in values]
    fn = functools.partial(_chunk_of_rows, form=form, count=count, packed=packed)
    rows = (points, vectors if count > 1 else None, residual)
    return memory.row_bytes(fn, rows, holes, key=("t3 transpose", form, count, packed))


def _chunk_of_rows(rows, holes, *, form: Sampling, count: int, packed: bool):
    points, directions, residual = rows
    residual = [jnp.stack(values) for values in residual]
    if packed:
        points = jnp.stack(points)
        directions = None if directions is None else jnp.stack(directions)
    if not form.by_mode:
        residual = residual[0]
    elif packed:
        residual = jnp.stack(residual)
    return form.transpose_chunk(holes, count, points, directions, residual, keep=False)


def _cache_workload(size: int):
    """One chunk whose matrices take `size` bytes, or the same probes in two."""
    d, n, r, order = 4, 48, 32, 3
    probes = max(4, size // ((order + 3) * r * r * 4))
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    tucker = tuple(draw(r, n) for _ in range(d))
    down, left, right = (tuple(draw(r, r, r) / r for _ in range(d)) for _ in range(3))
    holes = HoleTrains(tucker, down, left, right, draw(r), draw(r))
    points, directions = (tuple(draw(probes, n) for _ in range(d)) for _ in range(2))
    residual = tuple(draw(order + 1, probes, n) for _ in range(d))

    @functools.partial(jax.jit, static_argnums=0)
    def run(chunk_size, points, directions, residual):
        def chunk(rows):
            first, count = rows[0], rows.shape[0]
            cut = lambda a: jax.lax.dynamic_slice_in_dim(a, first, count, a.ndim - 2)  # noqa: E731
            inputs = jax.tree.map(cut, (points, directions, residual))
            return _PROBE.transpose_chunk(holes, order + 1, *inputs, keep=False)

        return memory.map_sum(chunk, jnp.arange(probes), chunk_size=chunk_size)

    whole = functools.partial(run, probes, points, directions, residual)
    cut = functools.partial(run, -(-probes // 2), points, directions, residual)
    return whole, cut


CACHE = memory.register(
    memory.Crossover(
        name="t3.chunk",
        threshold={"cpu": 2**21, "gpu": 2**28},
        unit="bytes of matrices in a chunk",
        below="whole",
        above="cut",
        evidence=(
            "cpu: the summed transpose on two cores, float32, milliseconds at chunks of 8, 16, 32, "
            "64, 128, 256. d 5, N 50, r 20, K 3, W 2048 (0.01 MiB of matrices a probe): 82, 58, 60, "
            "47, 40, 40. d 6, N 64, r 32, K 3, W 2048 (0.023 MiB): 217, 172, 123, 108, 103, 122. "
            "d 6, N 128, r 64, K 2, W 1024 (0.078 MiB): 429, 303, 257, 222, 231, 276. So chunks "
            "below 64 probes are slow at every rank, and above it the threshold's choices of 128, "
            "64 and 64 lie within 5 % of the fastest. gpu: not measured; large enough to fill the "
            "device"
        ),
        workload=_cache_workload,
    )
)

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
from t3._sampling import transpose_chunks as chunks
from t3._tensor.ranks import FrameRanks, T3Ranks

ChunkSize = int | np.integer | None | Literal["auto"]

# Products of fewer probes run well below the rate of the others, also where their matrices exceed
# the cache: for them, scratch may be this many times what is resident.
FULL_RATE = 64
SLACK = 4


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

    Resident are residuals, points, directions and the summed gradient. Scratch is measured from
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
    sizes, order, dtype = _checked(mode_shapes, tucker_ranks, tt_ranks, order, dtype)
    stacks = n_tangent * int(np.prod(stack_shape, dtype=int))
    local = -(-n_probes // n_shards) if n_shards > 0 else n_probes
    resident = _resident_bytes(sizes, order + 1, local, stacks, dtype)
    return memory.balanced_chunk_size(
        stacks * _probe_bytes(sizes, order, dtype), resident, n_probes, n_shards
    )


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
    sizes, order, dtype = _checked(mode_shapes, tucker_ranks, tt_ranks, order, dtype)
    stacks = n_tangent * int(np.prod(stack_shape, dtype=int))
    per_probe = stacks * _probe_bytes(sizes, order, dtype)
    size = memory.chunk_size_within(per_probe, target_bytes, n_probes, n_shards)
    if size == max(1, -(-n_probes // n_shards)):
        return size
    # Several chunks may leave a remainder, and XLA keeps its scratch apart from that of the loop.
    return memory.chunk_size_within(2 * per_probe, target_bytes, n_probes, n_shards)


def resolve_chunk_size(
    chunk_size: ChunkSize,
    network: Any,
    n_probes: int,
    count: int,
    *,
    free: bool,
    n_shards: int = 1,
) -> int | None:
    """The chunk to run with: `chunk_size` itself, or what ``"auto"`` means for these shapes.

    Args:
        chunk_size: as the user gave it.
        network: a frame or a Tucker tensor train.
        n_probes: W over all devices.
        count: orders computed.
        free: probe, or apply and entries.
        n_shards: devices that W is split over.
    """
    if not isinstance(chunk_size, str):
        return chunk_size
    if chunk_size != "auto":
        raise ValueError(f'chunk_size must be an int, None or "auto", got {chunk_size!r}.')
    local = -(-n_probes // n_shards)
    sizes, dtype = frame_sizes(network), np.dtype(network.dtype)
    in_cache = cache_chunk_size(sizes, local, count, dtype, free=free)
    if in_cache >= local:
        return None
    order = count - 1
    resident = _resident_bytes(sizes, count, local, 1, dtype, free=free)
    per_probe = _probe_bytes(sizes, order, dtype, free, network.is_packed)
    balanced = memory.balanced_chunk_size(per_probe, resident, local)
    size = max(min(in_cache, balanced), min(FULL_RATE, SLACK * balanced))
    if size >= local:
        return None
    # A divisor of W leaves no remainder, which would be a second body in the compiled program with
    # scratch of its own. None near: better a remainder than small chunks.
    divisors = (c for c in range(size, size // 2, -1) if local % c == 0)
    return next(divisors, size)


def cache_chunk_size(
    sizes: FrameRanks, n_probes: int, count: int, dtype: np.dtype, *, free: bool = True
) -> int:
    """Probes whose matrices (slots times bond times bond) fill the cache."""
    slots = min(count, 2) + (count if free else 0)
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
    return FrameRanks(shape, n, n, r, r), min(order, d - 1), np.dtype(dtype)


def frame_sizes(network: Any) -> FrameRanks:
    """True sizes of a frame, or of a tensor whose cores stand on every side of its holes."""
    s = network.sizes
    if isinstance(s, T3Ranks):
        return FrameRanks(s.shape, s.tucker, s.tucker, s.tt, s.tt)
    return s


def _resident_bytes(
    sizes: FrameRanks, count: int, n_probes: int, stacks: int, dtype: np.dtype, *, free: bool = True
) -> float:
    """Bytes of residuals, points, directions and the summed gradient."""
    numbers = sum(sizes.shape)
    residual = stacks * count * (numbers if free else 1)
    tucker = sum(n * size for n, size in zip(sizes.down, sizes.shape, strict=True))
    train = sum(a * n * b for a, n, b in zip(sizes.left, sizes.up, sizes.right[1:], strict=False))
    return dtype.itemsize * (n_probes * (residual + 2 * numbers) + stacks * (tucker + train))


@functools.lru_cache(maxsize=256)
def _probe_bytes(
    sizes: FrameRanks, order: int, dtype: np.dtype, free: bool = True, packed: bool = False
) -> float:
    """Scratch of a chunk for each further probe, read from XLA."""
    shape, up, down, left, right = sizes
    modes = len(shape)
    array = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)  # noqa: E731

    def family(*axes):
        """Cores with these axes, one tuple of sizes for each."""
        if packed:
            return array(modes, *(max(axis) for axis in axes))
        return tuple(array(*core) for core in zip(*axes, strict=True))

    left_in, left_out, right_in, right_out = left[:-1], left[1:], right[:-1], right[1:]
    trains = chunks.HoleTrains(
        family(up, shape),
        family(left_in, down, right_out),
        family(left_in, up, left_out),
        family(right_in, up, right_out),
        array(left[0]),
        array(right[-1]),
    )
    widths = [max(shape)] * modes if packed else shape
    points = [array(1, n) for n in widths]
    residual = [[array(1, n)] * (order + 1) for n in widths] if free else [array(1)] * (order + 1)
    fn = functools.partial(_chunk_of_rows, order=order, free=free, packed=packed)
    rows = (points, points if order else None, residual)
    return memory.row_bytes(fn, rows, trains, key=("t3 transpose", order, free, packed))


def _chunk_of_rows(rows, trains, *, order: int, free: bool, packed: bool):
    points, directions, residual = rows
    residual = [jnp.stack(jets) for jets in residual] if free else jnp.stack(residual)
    if packed:
        points = jnp.stack(points)
        directions = None if directions is None else jnp.stack(directions)
        residual = jnp.stack(residual) if free else residual
    chunk = chunks.probe_transpose_chunk if free else chunks.apply_transpose_chunk
    return chunk(trains, order + 1, points, directions, residual, keep=False)


def _cache_workload(size: int):
    """One chunk whose matrices take `size` bytes, or the same probes in two."""
    d, n, r, order = 4, 48, 32, 3
    probes = max(4, size // ((order + 3) * r * r * 4))
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    trains = chunks.HoleTrains(
        tuple(draw(r, n) for _ in range(d)),
        *(tuple(draw(r, r, r) / r for _ in range(d)) for _ in range(3)),
        draw(r),
        draw(r),
    )
    points, directions = (tuple(draw(probes, n) for _ in range(d)) for _ in range(2))
    residual = tuple(draw(order + 1, probes, n) for _ in range(d))

    @functools.partial(jax.jit, static_argnums=0)
    def run(chunk_size, points, directions, residual):
        def chunk(rows):
            first, count = rows[0], rows.shape[0]
            cut = lambda a: jax.lax.dynamic_slice_in_dim(a, first, count, a.ndim - 2)  # noqa: E731
            inputs = jax.tree.map(cut, (points, directions, residual))
            return chunks.probe_transpose_chunk(trains, order + 1, *inputs, keep=False)

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

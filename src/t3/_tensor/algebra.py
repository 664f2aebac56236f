"""Arithmetic on Tucker tensor trains: sums, products, inner products, norms."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from t3._tensor.bonds import orthogonal_parts
from t3._tensor.packing import Cores, compact, concat_index, is_packed, kron_index, map_modes, sweep
from t3._tensor.ranks import T3Ranks


def squash(
    tucker_cores: Cores, tt_cores: Cores, sizes: T3Ranks, left_end: Array, right_end: Array
) -> tuple[Cores, T3Ranks]:
    """Contract the end bonds with ones; they become 1. Returns train cores and sizes."""
    r = (1, *sizes.tt[1:-1], 1)
    if r == sizes.tt:
        return tt_cores, sizes
    if is_packed(tt_cores):
        pad = max(r)
        first = (
            jnp.zeros_like(tt_cores[0]).at[0].set(jnp.einsum("a,anb->nb", left_end, tt_cores[0]))
        )
        tt_cores = tt_cores.at[0].set(first)
        last = tt_cores[-1] @ right_end
        tt_cores = tt_cores.at[-1].set(jnp.zeros_like(tt_cores[-1]).at[:, :, 0].set(last))
        return tt_cores[:, :pad, :, :pad], sizes._replace(tt=r)
    cores = list(tt_cores)
    cores[0] = jnp.einsum("a,anb->nb", left_end, cores[0])[None]
    cores[-1] = (cores[-1] @ right_end)[..., None]
    return tuple(cores), sizes._replace(tt=r)


def leveled(tucker_cores: Cores, tt_cores: Cores) -> tuple[Cores, Cores]:
    """The same tensor with its size spread evenly over its cores, by powers of two, that is, exactly.

    Summands that carry their size in different cores would underflow in each other's blocks. Concrete
    cores that are far from it stay as they are.
    """
    if _is_level((tucker_cores, tt_cores)):
        return tucker_cores, tt_cores
    families = (tucker_cores, tt_cores)
    largest = [jnp.asarray(map_modes(lambda c: jnp.max(jnp.abs(c)), f)) for f in families]
    largest = stop_gradient(jnp.concatenate(largest))
    largest = largest if largest.dtype.itemsize >= 4 else largest.astype(np.float32)
    # Whatever is zero or not finite stays as it is.
    exponents = jnp.where((largest > 0) & jnp.isfinite(largest), jnp.frexp(largest)[1], 0)
    share, left = jnp.divmod(jnp.sum(exponents, dtype=np.int32), np.int32(len(largest)))
    extra = (jnp.arange(len(largest), dtype=left.dtype) < left).astype(left.dtype)
    shifts = share + extra - exponents

    # In two steps: the whole shift may be out of the range of a factor.
    def scaled(core, shift):
        half = shift // 2
        return core * _power_of_two(half, core.dtype) * _power_of_two(shift - half, core.dtype)

    d = len(largest) // 2
    tucker, train = shifts[:d], shifts[d:]
    if not is_packed(tucker_cores):
        tucker, train = tuple(tucker), tuple(train)
    return map_modes(scaled, tucker_cores, tucker), map_modes(scaled, tt_cores, train)


def _is_level(families: tuple[Cores, Cores]) -> bool:
    """Whether cores are concrete and of sizes between 1e-3 and 1e3, seen on the host: nothing compiles."""
    cores = jax.tree.leaves(families)
    if any(isinstance(core, jax.core.Tracer) for core in cores):
        return False
    if is_packed(families[0]):
        cores = [mode for core in cores for mode in np.asarray(core)]
    sizes = [float(np.abs(np.asarray(core)).max()) for core in cores]
    # Whatever is zero or not finite is no reason.
    return all(1e-3 < size < 1e3 for size in sizes if 0 < size < np.inf)


def _power_of_two(exponent: Array, dtype: Any) -> Array:
    """2 to a whole power, exactly: the exponent's bits of a float."""
    double = dtype == np.float64
    bias, digits = (1023, 52) if double else (127, 23)
    bits = (exponent.astype(np.int64 if double else np.int32) + bias) << digits
    return jax.lax.bitcast_convert_type(bits, np.float64 if double else np.float32).astype(dtype)


def add_cores(
    a: tuple[Cores, Cores], sizes_a: T3Ranks, b: tuple[Cores, Cores], sizes_b: T3Ranks
) -> tuple[Cores, Cores, T3Ranks]:
    """Block cores of the sum. All ranks add, the end bonds too."""
    a, b = leveled(*a), leveled(*b)

    def tucker(x, y):
        return jnp.concatenate([x, y])

    def train(x, y):
        top = jnp.pad(x, [(0, 0), (0, y.shape[1]), (0, y.shape[2])])
        bottom = jnp.pad(y, [(0, 0), (x.shape[1], 0), (x.shape[2], 0)])
        return jnp.concatenate([top, bottom])

    plus = lambda s, t: tuple(i + j for i, j in zip(s, t, strict=True))  # noqa: E731
    sizes = T3Ranks(
        sizes_a.shape, plus(sizes_a.tucker, sizes_b.tucker), plus(sizes_a.tt, sizes_b.tt)
    )
    tucker_cores = map_modes(tucker, a[0], b[0])
    tt_cores = map_modes(train, a[1], b[1])
    if is_packed(tt_cores):
        ranks = concat_index(sizes_a.tucker, a[0].shape[1], sizes_b.tucker)
        bonds = concat_index(sizes_a.tt, a[1].shape[1], sizes_b.tt)
        tucker_cores = compact(tucker_cores, ranks)
        tt_cores = compact(tt_cores, bonds[:-1], ranks, bonds[1:])
    return tucker_cores, tt_cores, sizes


def multiply_cores(
    a: tuple[Cores, Cores], sizes_a: T3Ranks, b: tuple[Cores, Cores], sizes_b: T3Ranks
) -> tuple[Cores, Cores, T3Ranks]:
    """Kronecker cores of the entrywise product. All ranks multiply, the end bonds too."""

    def tucker(x, y):
        return jnp.einsum("nN,mN->nmN", x, y).reshape(-1, x.shape[1])

    def train(x, y):
        product = jnp.einsum("anb,cmd->acnmbd", x, y)
        return product.reshape([i * j for i, j in zip(x.shape, y.shape, strict=True)])

    times = lambda s, t: tuple(i * j for i, j in zip(s, t, strict=True))  # noqa: E731
    sizes = T3Ranks(
        sizes_a.shape, times(sizes_a.tucker, sizes_b.tucker), times(sizes_a.tt, sizes_b.tt)
    )
    tucker_cores = map_modes(tucker, a[0], b[0])
    tt_cores = map_modes(train, a[1], b[1])
    if is_packed(tt_cores):
        ranks = kron_index(sizes_a.tucker, sizes_b.tucker, b[0].shape[1])
        bonds = kron_index(sizes_a.tt, sizes_b.tt, b[1].shape[1])
        tucker_cores = compact(tucker_cores, ranks)
        tt_cores = compact(tt_cores, bonds[:-1], ranks, bonds[1:])
    return tucker_cores, tt_cores, sizes


@jax.jit
def scaled_inner(
    a: tuple[Cores, Cores], ends_a: tuple[Array, Array], b: tuple[Cores, Cores], ends_b
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Inner product as ``value * exp(log_scale)``, so that no intermediate overflows.

    Cost: d (N n^2 + n r^3) multiply-adds.
    """

    def step(carry, mode):
        gram, log_scale = carry
        tucker_a, tt_a, tucker_b, tt_b = mode
        half = jnp.einsum("ac,anb->cnb", gram, tt_a)
        half = jnp.einsum("cnb,nm->cmb", half, tucker_a @ tucker_b.T)
        gram = jnp.einsum("cmb,cmd->bd", half, tt_b)
        size = stop_gradient(jnp.max(jnp.abs(gram)))
        size = jnp.where(size > 0, size, jnp.ones_like(size))
        return (gram / size, log_scale + jnp.log(size)), None

    start = (jnp.outer(ends_a[0], ends_b[0]), jnp.zeros((), a[0][0].dtype))
    (gram, log_scale), _ = sweep(step, start, (*a, *b))
    return ends_a[1] @ gram @ ends_b[1], log_scale


@partial(jax.jit, static_argnums=2)
def scaled_norm(
    tucker_cores: Cores, tt_cores: Cores, sizes: T3Ranks
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Frobenius norm as ``value * exp(log_scale)``; end bonds must be 1.

    The value comes from a QR sweep, so a small difference of large tensors keeps its digits; the
    derivative comes from the inner product, and is zero at zero.
    """

    def value(cores):
        tucker, train, log_scale = _unit_cores(*cores)
        parts = orthogonal_parts(tucker, train, sizes)
        return jnp.sqrt(jnp.sum(parts.right[0] ** 2)), log_scale

    @jax.custom_jvp
    def run(cores):
        return value(cores)

    @run.defjvp
    def run_jvp(primals, tangents):
        norm, log_scale = value(primals[0])

        def half_square(cores):
            held = (*map(stop_gradient, cores),)
            train = cores[1]
            first = jnp.zeros(train[0].shape[:1], train[0].dtype).at[0].set(1)
            ends = (first, jnp.zeros(train[-1].shape[2:], first.dtype).at[0].set(1))
            inner, scale = scaled_inner(cores, ends, held, ends)
            # In units of the norm: d|x| = <x, dx> / |x|.
            unit = jnp.exp(stop_gradient(scale) - 2 * log_scale)
            return inner * unit

        change = jax.jvp(half_square, primals, tangents)[1]
        positive = norm > 0
        slope = jnp.where(positive, change / jnp.where(positive, norm, 1), 0)
        return (norm, log_scale), (slope, jnp.zeros_like(log_scale))

    return run((tucker_cores, tt_cores))


def _unit_cores(tucker_cores: Cores, tt_cores: Cores) -> tuple[Cores, Cores, Array]:
    """Cores scaled to entries of at most 1, with train cores balanced by their size."""

    def scale(b, g):
        most_b, most_g = jnp.max(jnp.abs(b)), jnp.max(jnp.abs(g))
        most_b = jnp.where(most_b > 0, most_b, 1).astype(b.dtype) * np.sqrt(b.shape[1]).astype(
            b.dtype
        )
        most_g = jnp.where(most_g > 0, most_g, 1).astype(g.dtype)
        return b / most_b, g / most_g, jnp.log(most_b) + jnp.log(most_g)

    tucker, train, logs = map_modes(scale, tucker_cores, tt_cores)
    return tucker, train, jnp.sum(jnp.asarray(logs))

"""What a fit depends on, in a few numbers: whether a result can go on under a call.

Sums modulo 2^32 of the bits of an array, each times a number made of its position. They are exact in
any order, and zeros add nothing, so they depend neither on devices nor on padding.
"""

import zlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from t3._fit.problem import LeastSquares
from t3._fit.units import Units
from t3._tensor.packing import is_packed
from t3._tensor.ranks import T3Ranks

_SEEDS = (0x243F6A88, 0x85A308D3)  # of the two sums


def fingerprint(
    problem: LeastSquares,
    sampling: Any,
    method: Any,
    held_out: LeastSquares | None,
    units: Units,
    sizes: T3Ranks,
) -> dict[str, str]:
    """One text for each part; equal texts, equal parts (but for one chance in 2^64)."""
    parts = {
        "method": f"{type(method).__name__} on {type(method.geometry).__name__}",
        "dtype": np.dtype(problem.dtype).name,
        "sampling": f"{type(sampling).__name__} of order {sampling.highest}, {_where(problem)}",
        "data": f"{_text(problem.measured.data)} times {units.data}",
        "objective": _small((problem.square_weight, problem.ridge, units.weight)),
        "ranks": f"{tuple(sizes.tucker)} {tuple(sizes.tt)}",
        "validation": "none",
    }
    if held_out is not None:
        parts["validation"] = f"{_where(held_out)} {_text(held_out.measured.data)}"
    return parts


def different(earlier: dict[str, str], now: dict[str, str]) -> list[str]:
    """Names of the parts that differ."""
    return [name for name, text in now.items() if earlier.get(name) != text]


def _where(problem: LeastSquares) -> str:
    probes = problem.measured.probes
    return f"{_text(probes.points)} {_text(probes.directions)}"


def _small(tree: Any) -> str:
    parts = [np.asarray(leaf, np.float64).tobytes() for leaf in jax.tree.leaves(tree)]
    return f"{zlib.crc32(b'|'.join(parts)):08x}"


def _text(family: Any) -> str:
    if family is None:
        return "none"
    cores = family if is_packed(family) else tuple(family)
    return "".join(f"{int(number):08x}" for number in _sums(cores))


@eqx.filter_jit
def _sums(family: Any) -> list[jax.Array]:
    if is_packed(family):
        return [_sum(family, jnp.uint32(seed)) for seed in _SEEDS]
    return [
        sum(
            (_sum(a, _mixed(jnp.uint32(seed), jnp.uint32(mode))) for mode, a in enumerate(family)),
            jnp.uint32(0),
        )
        for seed in _SEEDS
    ]


def _sum(a: jax.Array, place: jax.Array) -> jax.Array:
    word = {1: jnp.uint8, 2: jnp.uint16}.get(a.dtype.itemsize, jnp.uint32)
    bits = jax.lax.bitcast_convert_type(a, word).astype(jnp.uint32)
    place = jnp.broadcast_to(place, bits.shape)
    for axis in range(bits.ndim):
        place = _mixed(place, jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis))
    return jnp.sum(bits * (place | jnp.uint32(1)), dtype=jnp.uint32)


def _mixed(place: jax.Array, index: jax.Array) -> jax.Array:
    """A number made of two, each bit of which depends on all of theirs."""
    place = (place ^ index) * jnp.uint32(0x9E3779B1)
    place = (place ^ (place >> 15)) * jnp.uint32(0x85EBCA77)
    return place ^ (place >> 13)

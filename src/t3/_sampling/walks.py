"""The arithmetic of one chunk of probes: projected inputs, walks along the train.

For each probe and mode, the inputs that enter a core are stacked as *slots* ``(w, k, n)``: the
projected point, the projected direction (k = 2), in the transpose also the projected residual jets.
A core contracted with its slots is a stack of k small matrices for each probe (one large product for
all probes); structured rows of jets times that stack push the jets over the core (one product for
each probe). Chunks are small enough that both stay in cache.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t3._tensor.packing import Cores, map_modes, sweep


def matmul(a: Array, b: Array) -> Array:
    """Product in the full precision of its type (accelerators shorten float32 by default)."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def arranged(cores: Cores) -> Cores:
    """Train cores ``(a, n, b)`` as matrices ``(n, a b)`` for `grow`, walking to the right."""
    return map_modes(lambda g: g.transpose(1, 0, 2).reshape(g.shape[1], -1), cores)


def arranged_back(cores: Cores) -> Cores:
    """Train cores ``(a, n, b)`` as matrices ``(n, b a)`` for `grow`, walking to the left."""
    return map_modes(lambda g: g.transpose(1, 2, 0).reshape(g.shape[1], -1), cores)


def gathered(cores: Cores) -> Cores:
    """Train cores ``(a, n, b)`` as matrices ``(a b, n)``, applied to outer products of jets."""
    return map_modes(lambda g: g.transpose(0, 2, 1).reshape(-1, g.shape[1]), cores)


def each_mode(fn: Any, *families: Any) -> Any:
    """Apply `fn` mode by mode, one at a time also when packed (`map_modes` would hold all)."""
    return sweep(lambda _, cores: (None, fn(*cores)), None, families)[1]


def project(
    core: Float[Array, "n N"], point: Array, direction: Array | None
) -> Float[Array, "w k n"]:
    """Slots of one mode's point (vector or index) and direction."""
    if jnp.issubdtype(point.dtype, jnp.integer):
        # An index out of range, which only a traced one can be, shows as NaN.
        slots = [jnp.take(core, point, axis=1, mode="fill").T]
    else:
        slots = [matmul(point, core.T)]
    if direction is not None:
        slots.append(matmul(direction, core.T))
    return jnp.stack(slots, axis=1)


def project_jets(
    core: Float[Array, "n N"], jets: Float[Array, "t w N"], scale: Any
) -> Float[Array, "w t n"]:
    """Projected jets of one mode, coefficient t times ``scale[t]``."""
    count, w, _ = jets.shape
    projected = matmul(jets.reshape(count * w, -1), core.T).reshape(count, w, -1)
    return jnp.swapaxes(projected * scale[:, None, None], 0, 1)


def lift_jets(
    core: Float[Array, "n N"], jets: Float[Array, "w t n"], scale: Any
) -> Float[Array, "t w N"]:
    """Adjoint of `project_jets` in its jets."""
    w, count, _ = jets.shape
    swapped = jnp.swapaxes(jets, 0, 1) * scale[:, None, None]
    return matmul(swapped.reshape(count * w, -1), core).reshape(count, w, -1)


def grow(
    rows: Float[Array, "w t k a"], slots: Float[Array, "w k n"], core: Float[Array, "n ab"]
) -> Float[Array, "w t b"]:
    """Push rows over a core whose middle leg holds the slots."""
    w, t, k, a = rows.shape
    blocks = matmul(slots.reshape(w * k, -1), core).reshape(w, k * a, -1)
    return matmul(rows.reshape(w, t, k * a), blocks)


def first_jet(count: int, end: Float[Array, " a"], like: Array) -> Float[Array, "w t a"]:
    """The jet that closes an end bond: `end` at order 0, for as many probes as `like` has."""
    # Made from `like` and not from a constant: inside shard_map a loop's carry must be known to
    # differ between devices from the start.
    anchor = jnp.zeros_like(like[:, :1, :1])
    order_zero = (jnp.arange(count) == 0).astype(end.dtype)
    return anchor + (order_zero[:, None] * end[None, :])[None]


def zero_jet(count: int, size: int, like: Array) -> Float[Array, "w t a"]:
    """A jet of zeros, for as many probes as `like` has."""
    return jnp.zeros_like(like[:, :1, :1]) + jnp.zeros((1, count, size), like.dtype)

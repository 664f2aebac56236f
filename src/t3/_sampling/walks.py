"""The arithmetic of one chunk of probes: projected inputs, walks along the train.

For each probe and mode, the inputs that enter a core are stacked as *slots* ``(w, k, n)``: the
projected point, the projected direction (k = 2), in the transpose also the projected residual jets.
A core contracted with its slots is a stack of k small matrices for each probe (one large product for
all probes); structured rows of jets times that stack push the jets over the core (one product for
each probe). Chunks are small enough that both stay in cache.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t3._sampling.jets import affine_rows, factorials
from t3._tensor.packing import Cores, has_inner_modes, is_packed, map_modes, peel, sweep, unpeel


def apart(fn: Callable) -> Callable:
    """Decorator for methods of samplings: packed families come with first and last modes apart.

    The method takes cores, a count, and families or, from the third on, single arrays ``(t, w)``.
    """

    @functools.wraps(fn)
    def run(self, cores, count, *families, **options):
        if has_inner_modes(cores.tucker):
            cores = cores.peeled()
            families = [
                f if place > 1 and getattr(f, "ndim", 0) == 2 else peel(f)
                for place, f in enumerate(families)
            ]
        result = unpeel(fn(self, cores, count, *families, **options))
        if options.get("keep") and is_packed(cores.tucker):
            # A loop over packed modes puts their axis in front of the probes.
            result = jax.tree.map(lambda a: a.swapaxes(0, 1), result)
        return result

    return run


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


def project_modes(tucker: Cores, points: Any, directions: Any) -> Any:
    """Slots ``(w, k, n)`` of every mode."""
    return each_mode(project, tucker, points, directions)


def affine_step(degree: int) -> Callable[..., Any]:
    """Walk one jet over a mode; gives out the jet before it."""

    def step(jet, mode):
        core, slots = mode
        return grow(affine_rows(jet, degree), slots, core), jet

    return step


def tangent_step(degree: int) -> Callable[..., Any]:
    """Walk a jet and its variation; gives out both as they are before the mode."""

    def step(carry, mode):
        jet, varied = carry
        core, varied_core, source, slots, both = mode
        rows = affine_rows(jet, degree)
        after = grow(affine_rows(varied, degree), slots, varied_core) + grow(rows, both, source)
        return (grow(rows, slots, core), after), carry

    return step


def tangent_slots(tucker: Cores, variations: Cores, points: Any, directions: Any) -> Any:
    """Slots of every mode, and those with the slots of the variations behind them."""
    slots = project_modes(tucker, points, directions)
    varied = project_modes(variations, points, directions)
    return slots, each_mode(lambda a, b: jnp.concatenate([a, b], -1), slots, varied)


def apply_outer(coefficients: Any, core: Float[Array, "ab n"]) -> Float[Array, "w k n"]:
    """Contract outer products ``(w, a, b)``, one a coefficient, with a core."""
    return through_hole(jnp.stack(coefficients, axis=1), core)


def through_hole(z: Float[Array, "w k a b"], hole: Float[Array, "ab n"]) -> Float[Array, "w k n"]:
    """Stacks of outer products contracted with a core."""
    w, count, a, b = z.shape
    return matmul(z.reshape(w * count, a * b), hole).reshape(w, count, -1)


def derivatives(jets: Float[Array, "w t"]) -> Float[Array, "t w"]:
    """Taylor coefficients to derivatives."""
    return jets.T * jnp.asarray(factorials(jets.shape[1], jets.dtype))[:, None]


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


def train_part(slots, z, keep: bool) -> Array:
    """dG: ``(a, n, b)``, or ``(w, a, n, b)``."""
    w, count, a, b = z.shape
    if keep:
        per_probe = matmul(jnp.swapaxes(slots, 1, 2), z.reshape(w, count, a * b))
        return jnp.swapaxes(per_probe.reshape(w, -1, a, b), 1, 2)
    summed = matmul(slots.reshape(w * count, -1).T, z.reshape(w * count, a * b))
    return jnp.swapaxes(summed.reshape(-1, a, b), 0, 1)


def jets_part(inputs, jets, keep: bool) -> Array:
    """Residual's share of dU: ``sum_t inputs_t z_t^T``, ``(n, N)`` or ``(w, n, N)``."""
    w, count, n = inputs.shape
    if keep:
        return matmul(jnp.swapaxes(inputs, 1, 2), jnp.swapaxes(jets, 0, 1))
    rows = jnp.swapaxes(inputs, 0, 1).reshape(count * w, n)
    return matmul(rows.T, jets.reshape(count * w, -1))


def inputs_part(inputs, point, direction, mode_size: int, keep: bool) -> Array:
    """Share of dU of points and directions: ``(n, N)`` or ``(w, n, N)``."""
    outer = lambda a, b: a[:, :, None] * b[:, None, :] if keep else matmul(a.T, b)  # noqa: E731
    if not jnp.issubdtype(point.dtype, jnp.integer):
        part = outer(inputs[:, 0], point)
    else:
        # Rows of unit vectors: a scatter. Traced indices out of range have no row.
        w, _, n = inputs.shape
        base = jnp.zeros((w, mode_size, n) if keep else (mode_size, n), inputs.dtype)
        where = (jnp.arange(w), point) if keep else point
        part = jnp.swapaxes(base.at[where].add(inputs[:, 0], mode="drop"), -1, -2)
    return part if direction is None else part + outer(inputs[:, 1], direction)


def input_cotangents(inputs, tucker):
    """Of points and, at degree 1, of directions."""
    return tuple(matmul(inputs[:, u], tucker) for u in range(inputs.shape[1]))

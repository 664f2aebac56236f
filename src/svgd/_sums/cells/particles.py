"""Cells carried by proxies: particles up to moments, fields down to particles, and the way back.

Up and down are linear in the charges, and each is the other's transpose, so the backward pass costs
what the forward does. Weights are recomputed chunk by chunk: nothing is kept per particle and proxy.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from memory import map_concat
from svgd._sums.cells.proxies import chebyshev, chebyshev_slopes

# Bytes of interpolation weights that one chunk of blocks keeps live. Measured at n = 1e6, d = 3 on
# two CPU cores, up and down: p = 4: 0.1 MB 38 ms, 0.4 MB 36 ms, 1.4 MB 53 ms; p = 8: 0.5 MB 111 ms,
# 2 MB 167 ms. A chunk that stays in a core's own cache wins.
_CHUNK_BYTES = 2**19


def _products(factors):
    """Tensor products over axes: (blocks, p, slots) each to (blocks, p^axes, slots)."""
    product = factors[0]
    for factor in factors[1:]:
        product = product[:, :, None] * factor[:, None]
        product = product.reshape(product.shape[0], -1, product.shape[-1])
    return product


def _axis_polynomials(offsets, half_width, count):
    # One stack for all axes: with a stack for each, XLA evaluates every polynomial once for each
    # product that it appears in (a factor of 3 to 6 in the whole stage).
    stacked = chebyshev(offsets / half_width, count, axis=1)
    return [stacked[:, :, axis] for axis in range(offsets.shape[1])]


def _contract(values, axes, slopes):
    """Sums over axes (blocks, p^axes, slots) against polynomials: (value, its slope along each axis).

    Sums over an axis are written out: XLA's reduction over a middle axis takes three times as long.
    """
    rows = [values]
    for axis, slope in zip(reversed(axes), reversed(slopes), strict=True):
        count = axis.shape[1]
        rows = [row.reshape(row.shape[0], -1, count, row.shape[-1]) for row in rows]
        along = _written_out(rows[0], slope)
        rows = [_written_out(row, axis) for row in rows]
        rows.insert(1, along)
    return rows[0][:, 0], [row[:, 0] for row in rows[1:]]


def _written_out(values, axis):
    return sum(values[:, :, k] * axis[:, None, k] for k in range(axis.shape[1]))


def _flat_weight(offsets, weight):
    return jnp.exp(-weight * jnp.sum(offsets**2, axis=1))[:, None]


def _chunk_size(count, dimension, block_size, itemsize):
    wide, narrow = (dimension + 1) // 2, dimension // 2
    floats = count**wide + (dimension + 1) * count**narrow + dimension * count
    return max(1, _CHUNK_BYTES // (floats * itemsize * block_size))


def block_moments(
    offsets: Float[Array, "blocks d block_size"],
    charges: Float[Array, "blocks c block_size"],
    *,
    half_width: float | Float[Array, ""],
    count: int,
    weight: float,
) -> Float[Array, "blocks moments c"]:
    """Moments of each block: the sum over slots of w(u) T_j1(u_1 / kappa) .. T_jd(u_d / kappa) charge.

    Args:
        offsets: scaled coordinates from the middle of the block's cell.
        charges: 0 in padding.
        half_width: kappa, half the edge of a cell.
        count: p, polynomials an axis.
        weight: b of the weight w(u) = exp(-b |u|^2).

    Returns:
        The p^d moments, the first axis slowest, channels last.

    Cost: 2 p^d c flops a slot.
    """
    dimension, size = offsets.shape[1:]
    left_axes = (dimension + 1) // 2

    def moments(rows):
        u, q = rows
        if weight:
            q = q * _flat_weight(u, weight)
        axes = _axis_polynomials(u, half_width, count)
        left = _products(axes[:left_axes])
        right = _products([*axes[left_axes:], q])
        product = jnp.einsum("bmk,bnk->bmn", left, right)
        return product.reshape(u.shape[0], -1, q.shape[1])

    chunk = _chunk_size(count, dimension, size, offsets.dtype.itemsize)
    return map_concat(moments, (offsets, charges), chunk_size=chunk)


def block_field(
    offsets: Float[Array, "blocks d block_size"],
    coefficients: Float[Array, "blocks c moments"],
    *,
    half_width: float | Float[Array, ""],
    count: int,
    weight: float,
) -> Float[Array, "blocks c block_size"]:
    """The field with these coefficients at every slot; the transpose of `block_moments`.

    Cost: 2 p^d c flops a slot.
    """
    dimension, size = offsets.shape[1:]
    channels = coefficients.shape[1]
    left_axes = dimension // 2

    def field(rows):
        u, y = rows
        axes = _axis_polynomials(u, half_width, count)
        right = _products(axes[left_axes:])
        values = jnp.einsum("bxk,bki->bxi", y.reshape(u.shape[0], -1, right.shape[1]), right)
        for axis in reversed(axes[:left_axes]):
            values = _written_out(values.reshape(u.shape[0], -1, count, size), axis)
        values = values.reshape(u.shape[0], channels, size)
        return values * _flat_weight(u, weight) if weight else values

    chunk = _chunk_size(count, dimension, size, offsets.dtype.itemsize)
    return map_concat(field, (offsets, coefficients), chunk_size=chunk)


def block_cotangents(
    offsets: Float[Array, "blocks d block_size"],
    charges: Float[Array, "blocks c block_size"],
    coefficients: Float[Array, "blocks moments c"],
    *,
    half_width: float | Float[Array, ""],
    count: int,
    weight: float,
    kept: int,
) -> tuple[Float[Array, "blocks d block_size"], Float[Array, "blocks kept block_size"]]:
    """Derivatives of sum_i sum_c charge_ci field_c(u_i) in the offsets and in the first charges.

    The backward pass of `block_moments` (coefficients are the moments' cotangents) and of
    `block_field` (charges are the field's cotangents) at once, channels of both side by side.

    Args:
        kept: the derivative is returned for so many charges.

    Cost: 4 p^d c flops a slot.
    """
    dimension, size = offsets.shape[1:]
    channels = charges.shape[1]
    left_axes = (dimension + 1) // 2

    def cotangents(rows):
        u, q, y = rows
        t = u / half_width
        flat = _flat_weight(u, weight) if weight else None
        q = q * flat if weight else q
        axes = chebyshev(t, count, axis=1)
        slopes = chebyshev_slopes(t, count, axis=1) / half_width
        axes = [axes[:, :, a] for a in range(dimension)]
        slopes = [slopes[:, :, a] for a in range(dimension)]
        left, right = axes[:left_axes], axes[left_axes:]

        y = y.reshape(u.shape[0], count**left_axes, -1)
        for_left = jnp.einsum("bmn,bns->bms", y, _products([*right, q]))
        for_right = jnp.einsum("bmn,bms->bns", y, _products(left))
        for_right = for_right.reshape(u.shape[0], -1, channels, size)
        for_charges = for_right[:, :, :kept]
        for_right = sum(for_right[:, :, c] * q[:, None, c] for c in range(channels))

        value, du = _contract(for_left, left, slopes[:left_axes])
        if right:
            du = du + _contract(for_right, right, slopes[left_axes:])[1]
        du = jnp.stack(du, axis=1)
        for axis in right:
            for_charges = for_charges.reshape(u.shape[0], count, -1, size)
            for_charges = sum(for_charges[:, k] * axis[:, None, k] for k in range(count))
        dq = for_charges.reshape(u.shape[0], kept, size)
        if weight:
            dq = dq * flat
            du = du - 2 * weight * u * value[:, None]
        return du, dq

    chunk = max(1, _chunk_size(count, dimension, size, offsets.dtype.itemsize) // 2)
    return map_concat(cotangents, (offsets, charges, coefficients), chunk_size=chunk)

"""From the particles of cells to moments, across every level of the lattice, and back to particles."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from svgd._sums.blocks import AnyArray, Blocks, take_rows
from svgd._sums.cells.particles import block_cotangents, block_field, block_moments
from svgd._sums.cells.sweeps import Level, from_parents, lattice_field, to_parents


class Lattices(eqx.Module):
    """Cells, the particles in them, and what carries moments from cell to cell.

    Attributes:
        blocks: particles in blocks that never cross a cell.
        middle: the middle of each cell of the finest lattice, in scaled coordinates, (cells, d).
        half_width: kappa, half the edge of the finest cells, ().
        levels: from the finest lattice to the coarsest.
        count: p, polynomials an axis.
        weight: b of the weight exp(-b |u|^2) that the proxies carry.
    """

    blocks: Blocks
    middle: Float[AnyArray, "cells d"]
    half_width: Float[AnyArray, ""]
    levels: tuple[Level, ...]
    count: int = eqx.field(static=True)
    weight: float = eqx.field(static=True)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def slots_to_slots(
    axis: str | None,
    trained: bool,
    cells: Lattices,
    weights: Float[Array, " gaussians"],
    z: Float[Array, "blocks slots d"],
    scores: Float[Array, "blocks slots d"],
) -> Float[Array, "blocks slots d"]:
    """sum_j f s_j + slope (z_i - z_j) in every slot, f the mixture of Gaussians.

    Args:
        axis: of a mesh whose devices each have their own blocks, inside `jax.shard_map`: moments
            are then summed over it. None where all blocks are here.
        trained: whether the derivative in the weights is wanted; else it is zero.
        cells: where all slots are.
        weights: of the Gaussians.
        z, scores: scaled; what padding holds is neither read nor meant.

    Cost: n p^d (2 d + 1) multiply-adds, and those of the sweeps; memory of the particles in their
    blocks, the moments of blocks and cells, and a few chunks. With a derivative in the weights the
    sweeps once more.
    """
    return _forward(axis, trained, cells, weights, z, scores)[0]


def _forward(axis, trained, cells, weights, z, scores):
    offsets, charges, ones = _in_cells(cells, z, scores)
    moments = _moments(axis, cells, offsets, jnp.concatenate([charges, ones], axis=1))
    field = _field(moments, weights, cells.levels, cells.count)
    out = block_field(offsets, take_rows(field, cells.blocks.group), **_shape(cells))
    return jnp.swapaxes(out, 1, 2), (cells, weights, z, scores, field)


def _backward(axis, trained, residuals, cotangent):
    cells, weights, z, scores, field = residuals
    dimension = z.shape[2]
    offsets, charges, ones = _in_cells(cells, z, scores)
    arriving = jnp.swapaxes(cotangent, 1, 2) * ones

    # The cotangent goes up like charges, back across the lattice, and meets the particles there.
    back = jnp.swapaxes(_moments(axis, cells, offsets, arriving), 1, 2)
    if trained:
        here = _moments(axis, cells, offsets, jnp.concatenate([charges, ones], axis=1))
    else:
        # The field is linear in the moments: its transpose does not depend on where it is taken.
        here = jnp.zeros((field.shape[0], field.shape[2], dimension + 1), field.dtype)
    pull = jax.vjp(lambda m, w: _field(m, w, cells.levels, cells.count), here, weights)[1]
    back, d_weights = pull(back)
    if not trained:
        d_weights = jnp.zeros_like(weights)
    elif axis is not None:
        # Each device has found what all of them together find once.
        d_weights = d_weights / lax.axis_size(axis)
    both = jnp.concatenate([back, jnp.swapaxes(field, 1, 2)], axis=2)
    d_offsets, d_charges = block_cotangents(
        offsets,
        jnp.concatenate([charges, ones, arriving], axis=1),
        take_rows(both, cells.blocks.group),
        kept=dimension,
        **_shape(cells),
    )
    return None, d_weights, jnp.swapaxes(d_offsets, 1, 2), jnp.swapaxes(d_charges, 1, 2)


slots_to_slots.defvjp(_forward, _backward)


def _in_cells(cells, z, scores):
    """Offsets from the middles of cells, scores that are 0 in padding, and ones that are."""
    ones = cells.blocks.valid(z.dtype)[:, None, :]
    middle = take_rows(cells.middle, cells.blocks.group)
    offsets = jnp.swapaxes(z - middle[:, None, :], 1, 2)
    return offsets, jnp.swapaxes(scores, 1, 2) * ones, ones


def _moments(axis, cells, offsets, charges):
    own = jax.ops.segment_sum(
        block_moments(offsets, charges, **_shape(cells)),
        cells.blocks.group,
        cells.middle.shape[0],
        indices_are_sorted=True,
        mode="promise_in_bounds",
    )
    return own if axis is None else lax.psum(own, axis)


def _shape(cells):
    return {"half_width": cells.half_width, "count": cells.count, "weight": cells.weight}


def _field(moments, weights, levels, count):
    level, coarser = levels[0], levels[1:]
    field = lattice_field(moments, level, weights)
    if coarser:
        parents = to_parents(moments, level, count, coarser[0].into[0].shape[0])
        parents = _field(parents, weights, coarser, count)
        field = field + from_parents(parents, level, count)
    return field

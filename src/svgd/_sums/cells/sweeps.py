"""From the moments of all cells to the fields in all cells: one sweep along each axis.

Cells lie on a lattice and the Gaussian is a product over axes, so its sum over all neighbouring cells
is d sums over the 2 reach + 1 neighbours along one axis: every cell meets (2 reach + 1)^d others at
the price of d (2 reach + 1), with one small matrix shared by all cells.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from memory import map_concat
from svgd._sums.blocks import AnyArray, take_rows

# Bytes of gathered neighbours, twice, that one chunk of cells keeps live: a core's own cache. All
# sweeps over 13778 cells, p = 8, reach 2, d = 3, float32, two CPU cores, milliseconds: 0.5 MB 454,
# 1 MB 487, 2 MB 488, 4 MB 454, which is flat within the noise.
_CHUNK_BYTES = 2**20


class Level(eqx.Module):
    """One lattice of cells, the Gaussians that are summed on it, and the way to the next coarser one.

    Cells that are missing, or padding, are the last row of every array, whose moments are zero.

    Attributes:
        into: for each axis, the cells that a sweep reads: entry [i, s] is the cell of the sweep's
            input that lies s - reach steps further along the axis than output cell i.
        values, slopes: `proxies.translations` of each Gaussian, (gaussians, 2 reach + 1, p, p).
        gaussians: the places of these Gaussians in the mixture.
        parent: the cell of the next coarser level that holds each cell; None at the coarsest.
        side: 0 or 1 for each axis, the half of the parent that the cell is.
    """

    into: tuple[Int[AnyArray, "cells steps"], ...]
    values: Float[AnyArray, "gaussians steps p p"]
    slopes: Float[AnyArray, "gaussians steps p p"]
    gaussians: Int[AnyArray, " gaussians"]
    parent: Int[AnyArray, " cells"] | None
    side: Int[AnyArray, "cells d"] | None


def lattice_field(
    moments: Float[Array, "cells moments channels"], level: Level, weights: Float[Array, " g"]
) -> Float[Array, "cells d moments"]:
    """The field of a level's Gaussians in every cell, d channels, from moments in d + 1.

    The channels of the moments are the scaled scores and, last, ones. Channel a of the field is

        sum_j f s_ja + slope (z_i - z_j)_a,

    for which axis a's sweep adds the ones, carried by `slopes`, to channel a, carried by `values`.

    Args:
        moments: of every cell.
        level: one lattice.
        weights: of all Gaussians of the mixture.

    Cost: 2 (2 reach + 1) d (d + 1) p^(d+1) flops a cell and Gaussian.
    """
    return _field(moments, take_rows(weights, level.gaussians), level)


# The field is linear in the moments and in the weights, and all else is constant, so the field and its
# transpose are each other's derivative.
@jax.custom_vjp
def _field(moments, weights, level):
    return _over_gaussians(_one(moments, level), weights, level)


@jax.custom_vjp
def _field_transposed(field, weights, level):
    return _over_gaussians(_one_transposed(field, level), weights, level)


def _one(moments, level):
    turns = [(-1, a) for a in range(len(level.into))]

    def one(values, slopes):
        # Nobody asks for the field of the ones.
        return _sweeps(moments, level.into, values, slopes, turns, -1)

    return one


def _one_transposed(field, level):
    field = jnp.swapaxes(field, 1, 2)
    field = jnp.concatenate([field, jnp.zeros_like(field[:, :, :1])], axis=2)
    turns = [(a, -1) for a in range(len(level.into))]

    def one(values, slopes):
        # Cell i reads its neighbour s by matrix s, so the transpose reads neighbour -s by the
        # transposed matrix: the same sweeps over the same tables.
        values, slopes = (jnp.swapaxes(m[::-1], 1, 2) for m in (values, slopes))
        return jnp.swapaxes(_sweeps(field, level.into, values, slopes, turns, None), 1, 2)

    return one


def _derivative(one, transposed):
    def backward(residuals, cotangent):
        rows, weights, level = residuals
        alone = one(rows, level)
        # Where weights are not trained nobody asks for these, and they are not computed.
        d_weights = lax.map(
            lambda tables: jnp.sum(cotangent * alone(*tables)), (level.values, level.slopes)
        )
        return transposed(cotangent, weights, level), d_weights, None

    return backward


_field.defvjp(lambda *given: (_field(*given), given), _derivative(_one, _field_transposed))
_field_transposed.defvjp(
    lambda *given: (_field_transposed(*given), given), _derivative(_one_transposed, _field)
)


def _over_gaussians(one, weights, level):
    """The weighted sum of `one(values, slopes)` over the Gaussians of a level."""
    if level.values.shape[0] == 1:
        return weights[0] * one(level.values[0], level.slopes[0])
    tables = [jax.ShapeDtypeStruct(t.shape[1:], t.dtype) for t in (level.values, level.slopes)]
    result = jax.eval_shape(one, *tables)

    def add(total, gaussian):
        values, slopes, weight = gaussian
        return total + weight * one(values, slopes), None

    start = jnp.zeros(result.shape, result.dtype)
    return lax.scan(add, start, (level.values, level.slopes, weights))[0]


def _sweeps(moments, tables, values, slopes, turns, last):
    """All axes: (cells, moments, channels) to (cells, channels, moments).

    Args:
        turns: for each axis (source, target): channel `source`, carried by `slopes`, is added to
            channel `target`.
        last: channels after this one are left out of the result.
    """
    dimension, channels = len(tables), moments.shape[2]
    # What each place behind the cells holds. The axis to be contracted stands in front.
    places = [*range(dimension), "c"]
    field = moments
    for axis, (table, turn) in enumerate(zip(tables, turns, strict=True)):
        final = axis == dimension - 1
        front = "c" if final else axis + 1
        rest = [p for p in range(dimension) if p != front]
        then = ["c", *rest] if final else [front, "c", *rest]
        field = _sweep(
            field, values, slopes, table, turn, channels, places, then, last if final else None
        )
        places = then
    return field.reshape(field.shape[0], -1, values.shape[1] ** dimension)


def _sweep(field, values, slopes, table, turn, channels, places, then, last):
    """One axis: contracts the place in front, then puts all places in the order `then`."""
    steps, count = values.shape[:2]
    sizes = [channels if p == "c" else count for p in places]
    before = math.prod(sizes[1 : places.index("c")])
    # The matrix goes on the left: on the right, XLA transposes the neighbours first. The product
    # alone, 40 by 8 on 16 cells, one CPU core, in cache: left 177 Gflop/s, right 22.
    by_value, by_slope = (
        jnp.transpose(m, (2, 0, 1)).reshape(count, steps * count) for m in (values, slopes)
    )
    source, target = turn
    order = [0, *(1 + places.index(p) for p in then)]
    flat = field.reshape(field.shape[0], -1)

    def sweep(rows):
        many = rows.shape[0]
        near = take_rows(flat, rows).reshape(many, steps * count, -1)
        out = _multiply(by_value, near).reshape(many, count, before, channels, -1)
        pulled = near.reshape(many, steps * count, before, channels, -1)[:, :, :, source]
        pulled = _multiply(by_slope, pulled.reshape(many, steps * count, -1))
        out = out.at[:, :, :, target].add(pulled.reshape(many, count, before, -1))
        out = jnp.transpose(out.reshape(many, *sizes), order)
        return out[:, :last].reshape(many, -1)

    return map_concat(sweep, table, chunk_size=_chunk_size(flat, steps))


def _multiply(matrix, near):
    """(j, k) and (cells, k, r) to (cells, j, r)."""
    matrix = jnp.broadcast_to(matrix[None], (near.shape[0], *matrix.shape))
    return jnp.matmul(matrix, near)


def _chunk_size(flat, steps):
    row = 2 * steps * flat.shape[1] * flat.dtype.itemsize
    return max(1, _CHUNK_BYTES // row)


def to_parents(
    moments: Float[Array, "cells moments c"], level: Level, count: int, num_parents: int
):
    """Moments of the next coarser level: exact, a parent's polynomials are polynomials in each half.

    T_k((t -+ 1) / 2) = sum_j B[k, j] T_j(t) along each axis, with the half that the cell is.
    """
    dimension = level.side.shape[1]
    table = jnp.asarray(_halving(count), moments.dtype)
    out = moments.reshape(moments.shape[0], *([count] * dimension), -1)
    for axis in range(dimension):
        matrix = take_rows(table, level.side[:, axis])
        out = jnp.moveaxis(jnp.einsum("nj...,nkj->n...k", out, matrix), -1, dimension)
        # The contracted axis went to the place before the channels: after d turns all are in order.
    out = out.reshape(moments.shape[0], -1, moments.shape[2])
    return jax.ops.segment_sum(out, level.parent, num_parents, mode="promise_in_bounds")


def from_parents(field: Float[Array, "parents d moments"], level: Level, count: int):
    """The field of the coarser level in the cells' own polynomials; the transpose of `to_parents`."""
    dimension = level.side.shape[1]
    table = jnp.asarray(_halving(count), field.dtype)
    out = take_rows(field, level.parent)
    cells, channels = out.shape[:2]
    out = out.reshape(cells, channels, *([count] * dimension))
    for axis in range(dimension):
        matrix = take_rows(table, level.side[:, axis])
        out = jnp.einsum("nck...,nkj->nc...j", out, matrix)
    return out.reshape(cells, channels, -1)


def _halving(count):
    nodes = np.cos((np.arange(count) + 0.5) * np.pi / count)
    fit = np.linalg.inv(np.polynomial.chebyshev.chebvander(nodes, count - 1))
    halves = [(nodes - 1) / 2, (nodes + 1) / 2]
    return np.stack([(fit @ np.polynomial.chebyshev.chebvander(h, count - 1)).T for h in halves])

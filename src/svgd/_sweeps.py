"""From the moments of all cells to the fields in all cells: one sweep along each axis.

Cells lie on a lattice and the Gaussian is a product over axes, so its sum over all neighbouring cells
is d sums over the 2 reach + 1 neighbours along one axis: every cell meets (2 reach + 1)^d others at
the price of d (2 reach + 1), with one small matrix shared by all cells.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from memory import map_concat
from svgd._blocks import AnyArray, take_rows

# Bytes of gathered neighbours that one chunk of cells keeps live. Milliseconds of one sweep on two
# CPU cores, float32, as one product, by the cells in a chunk:
#     10000 cells, p = 5, reach 2      32: 49    256: 42    all: 95
#     5000 cells, p = 7, reach 2       32: 56    256: 51    all: 102
#     528 cells, p = 6, d = 4          32: 23    256: 40    all: 49
_CHUNK_BYTES = 2**20

# Products with matrices of at most so many entries are written out as sums of rows: XLA's product
# transposes the neighbours first. The same sweeps, product against written out, milliseconds:
#     10000 cells, p = 5, reach 2      42    19
#     610 cells, p = 5, reach 2        2.7   0.9
#     3445 cells, p = 4, reach 3       5.2   4.2
# Larger ones take over half a second each to compile.
_MAX_WRITTEN_OUT = 160


class Level(eqx.Module):
    """One lattice of cells, the Gaussians that are summed on it, and the way to the next coarser one.

    Cells that are missing, or padding, are the last row of every array, whose moments are zero.

    Attributes:
        into: for each axis, the cells that a sweep reads: entry [i, s] is the cell of the sweep's
            input that lies s - reach steps further along the axis than output cell i.
        back: for each axis, the transpose: entry [i, s] is the output cell that reads input cell i
            as its neighbour s.
        values, slopes: `kernels._proxies.translations` of each Gaussian, (gaussians, 2 reach + 1, p, p).
        weights: the weight of each Gaussian in the mixture.
        parent: the cell of the next coarser level that holds each cell; None at the coarsest.
        side: 0 or 1 for each axis, the half of the parent that the cell is.
    """

    into: tuple[Int[AnyArray, "cells steps"], ...]
    back: tuple[Int[AnyArray, "cells steps"], ...]
    values: Float[AnyArray, "gaussians steps p p"]
    slopes: Float[AnyArray, "gaussians steps p p"]
    weights: Float[AnyArray, " gaussians"]
    parent: Int[AnyArray, " cells"] | None
    side: Int[AnyArray, "cells d"] | None


def lattice_field(
    moments: Float[Array, "cells moments channels"], level: Level
) -> Float[Array, "cells d moments"]:
    """The field of a level's Gaussians in every cell, d channels, from moments in d + 1.

    The channels of the moments are the scaled scores and, last, ones. Channel a of the field is

        sum_j f s_ja + slope (z_i - z_j)_a,

    for which axis a's sweep adds the ones, carried by `slopes`, to channel a, carried by `values`.

    Cost: 2 (2 reach + 1) d (d + 1) p^(d+1) flops a cell and Gaussian.
    """
    return _field(moments, level)


# The field is linear in the moments and everything else is constant, so the field and its transpose
# are each other's derivative.
@jax.custom_vjp
def _field(moments, level):
    alone = level.values.shape[0] == 1

    def one(values, slopes):
        field = moments.reshape(_shape(moments, level))
        for axis, table in enumerate(level.into):
            field = _sweep(field, values, slopes, table, axis, -1, axis, alone)
        # (cells, channel, p_0 .. p_d-1); nobody asks for the field of the ones.
        return field.reshape(field.shape[0], len(level.into) + 1, -1)[:, :-1]

    return _over_gaussians(one, level)


@jax.custom_vjp
def _field_transposed(field, level):
    dimension = len(level.into)
    alone = level.values.shape[0] == 1

    def one(values, slopes):
        # The same sweeps in reverse order, with transposed matrices and channels the other way.
        cells = field.shape[0]
        count = values.shape[-1]
        out = jnp.concatenate([field, jnp.zeros_like(field[:, :1])], axis=1)
        out = out.reshape(cells, dimension + 1, *([count] * dimension))
        out = jnp.transpose(out, (0, *range(dimension + 1, 0, -1)))
        values, slopes = jnp.swapaxes(values, 1, 2), jnp.swapaxes(slopes, 1, 2)
        for turn, axis in enumerate(reversed(range(dimension))):
            out = _sweep(out, values, slopes, level.back[axis], turn, axis, -1, alone)
        out = out.reshape(cells, dimension + 1, *([count] * dimension))
        out = jnp.transpose(out, (0, *range(dimension + 1, 0, -1)))
        return out.reshape(cells, -1, dimension + 1)

    return _over_gaussians(one, level)


_field.defvjp(
    lambda moments, level: (_field(moments, level), level),
    lambda level, cotangent: (_field_transposed(cotangent, level), None),
)
_field_transposed.defvjp(
    lambda field, level: (_field_transposed(field, level), level),
    lambda level, cotangent: (_field(cotangent, level), None),
)


def _shape(moments, level):
    dimension = len(level.into)
    return (moments.shape[0], *([level.values.shape[-1]] * dimension), dimension + 1)


def _over_gaussians(one, level):
    """The weighted sum of `one(values, slopes)` over the Gaussians of a level."""
    if level.values.shape[0] == 1:
        return level.weights[0] * one(level.values[0], level.slopes[0])
    tables = [jax.ShapeDtypeStruct(t.shape[1:], t.dtype) for t in (level.values, level.slopes)]
    result = jax.eval_shape(one, *tables)

    def add(total, gaussian):
        values, slopes, weight = gaussian
        return total + weight * one(values, slopes), None

    start = jnp.zeros(result.shape, result.dtype)
    return lax.scan(add, start, (level.values, level.slopes, level.weights))[0]


def _sweep(field, values, slopes, table, turn, source, target, write_out):
    """One axis: the axis in front is contracted and comes out at the back.

    After `turn` sweeps a cell holds (p_turn, p_turn+1 .. , channel, p'_0 .. p'_turn-1), whatever the
    axes are called. Channel `source`, carried by `slopes`, is added to channel `target`.
    """
    cells = field.shape[0]
    steps, count = values.shape[:2]
    channels = field.shape[-1 - turn]
    dimension = field.ndim - 2
    ahead, behind = count ** (dimension - 1 - turn), count**turn
    flat = field.reshape(cells, -1)

    def sweep(rows):
        many = rows.shape[0]
        near = take_rows(flat, rows).reshape(many, steps * count, -1)
        out = _contract(near, values, write_out).reshape(many, ahead, channels, -1)
        near = near.reshape(many, steps * count, ahead, channels, behind)[:, :, :, source]
        pull = _contract(near.reshape(many, steps * count, -1), slopes, write_out)
        return out.at[:, :, target].add(pull.reshape(many, ahead, -1)).reshape(many, -1)

    out = map_concat(sweep, table, chunk_size=_chunk_size(flat, steps))
    return out.reshape(cells, *field.shape[2:], count)


def _contract(near, matrices, write_out):
    """(cells, k, r) and (k, j) to (cells, r, j), k over steps and polynomials."""
    flat = matrices.reshape(-1, matrices.shape[-1])
    if not write_out or flat.size > _MAX_WRITTEN_OUT:
        return jnp.einsum("nkr,kj->nrj", near, flat)
    columns = [
        sum(near[:, k] * flat[k, j] for k in range(flat.shape[0])) for j in range(flat.shape[1])
    ]
    return jnp.swapaxes(jnp.stack(columns, axis=1), 1, 2)


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

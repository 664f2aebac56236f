"""From the moments of all cells to the fields in all cells: one sweep along each axis.

Cells lie on a lattice and the Gaussian is a product over axes, so its sum over all neighbouring cells
is d sums over the 2 reach + 1 neighbours along one axis: every cell meets (2 reach + 1)^d others at
the price of d (2 reach + 1), with one small matrix shared by all cells.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from memory import map_concat
from svgd._blocks import take_rows

# Bytes of gathered neighbours that one chunk of cells keeps live. Measured at n = 1e6, d = 3,
# h = 0.1 (10^4 cells): see the table of `bench/tree.py`, case svgd.tree.sweep.
_CHUNK_BYTES = 2**19


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

    into: tuple[Int[Array, "cells steps"], ...]
    back: tuple[Int[Array, "cells steps"], ...]
    values: Float[Array, "gaussians steps p p"]
    slopes: Float[Array, "gaussians steps p p"]
    weights: Float[Array, " gaussians"]
    parent: Int[Array, " cells"] | None
    side: Int[Array, "cells d"] | None


def lattice_field(
    moments: Float[Array, "cells moments channels"], level: Level
) -> Float[Array, "cells d moments"]:
    """The field of a level's Gaussians in every cell, d channels, from moments in d + 1.

    The channels of the moments are the scaled scores and, last, ones. Channel a of the field is

        sum_j f s_ja + slope (z_i - z_j)_a,

    for which axis a's sweep adds the ones, carried by `slopes`, to channel a, carried by `values`.

    Cost: 2 (2 reach + 1) d (d + 1) p^(d+1) flops a cell and Gaussian.
    """
    cells = moments.shape[0]
    dimension = len(level.into)
    count = level.values.shape[-1]

    def one(values, slopes):
        field = moments.reshape(cells, *([count] * dimension), dimension + 1)
        for axis in range(dimension):
            # The axis in front is contracted and comes out at the back, so that after `axis` sweeps
            # a cell holds (p_axis, p_axis+1 .. p_d-1, channel, p'_0 .. p'_axis-1).
            ahead, behind = count ** (dimension - 1 - axis), count**axis
            field = field.reshape(cells, count, ahead, dimension + 1, behind)
            static = (axis, axis == dimension - 1)
            field = _sweep(static, field, values, slopes, level.into[axis], level.back[axis])
        return field.reshape(cells, dimension, -1)

    if level.values.shape[0] == 1:
        return level.weights[0] * one(level.values[0], level.slopes[0])

    def add(total, gaussian):
        values, slopes, weight = gaussian
        return total + weight * one(values, slopes), None

    start = jnp.zeros((cells, dimension, count**dimension), moments.dtype)
    return lax.scan(add, start, (level.values, level.slopes, level.weights))[0]


def _forward_sweep(static, field, values, slopes, into):
    axis, last = static
    steps, count = values.shape[:2]
    values = values.reshape(steps * count, count)
    slopes = slopes.reshape(steps * count, count)

    def sweep(rows):
        near = take_rows(field, rows).reshape(rows.shape[0], steps * count, *field.shape[2:])
        out = jnp.einsum("nkacb,kj->nacbj", near, values)
        pull = jnp.einsum("nkab,kj->nabj", near[:, :, :, -1], slopes)
        out = out.at[:, :, axis].add(pull)
        out = out[:, :, :-1] if last else out
        return out.reshape(rows.shape[0], -1, *out.shape[2:3], out.shape[3] * out.shape[4])

    return map_concat(sweep, into, chunk_size=_chunk_size(field, steps))


def _backward_sweep(static, cotangent, values, slopes, back):
    axis, last = static
    steps, count = values.shape[:2]
    cells, ahead, channels, behind = cotangent.shape
    cotangent = cotangent.reshape(cells, ahead, channels, behind // count, count)

    def sweep(rows):
        near = take_rows(cotangent, rows)
        out = jnp.einsum("nsacbj,skj->nkacb", near, values)
        ones = jnp.einsum("nsabj,skj->nkab", near[:, :, :, axis], slopes)
        if last:
            return jnp.concatenate([out, ones[:, :, :, None]], axis=3)
        return out.at[:, :, :, -1].add(ones)

    return map_concat(sweep, back, chunk_size=_chunk_size(cotangent, steps))


def _chunk_size(field, steps):
    row = steps * field[0].size * field.dtype.itemsize
    return max(1, _CHUNK_BYTES // row)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sweep(static, field, values, slopes, into, back):
    return _forward_sweep(static, field, values, slopes, into)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sweep_back(static, cotangent, values, slopes, into, back):
    return _backward_sweep(static, cotangent, values, slopes, back)


# A sweep and its transpose are each other's derivative, so derivatives of any order exist. What they
# read apart from the field belongs to the partition and is constant.
def _keep(fn):
    def forward(static, field, *constants):
        return fn(static, field, *constants), constants

    return forward


def _transpose_by(fn):
    def backward(static, constants, cotangent):
        values, slopes = constants[:2]
        field = fn(static, cotangent, *constants)
        return field, jnp.zeros_like(values), jnp.zeros_like(slopes), None, None

    return backward


_sweep.defvjp(_keep(_sweep), _transpose_by(_sweep_back))
_sweep_back.defvjp(_keep(_sweep_back), _transpose_by(_sweep))


def to_parents(moments: Float[Array, "cells moments c"], level: Level, count: int, num_parents: int):
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

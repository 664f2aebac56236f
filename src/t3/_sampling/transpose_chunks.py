"""Transposes of sampling, for one chunk of probes: residual jets onto the holes of a frame.

For a tangent v at a frame let ``J v`` be its sampled jets (`t3.T3Tangent.probe_derivatives`). The
transpose gives the variations ``J^T r`` with ``<r, J v> = <J^T r, v>`` for all v.

With slots d_0 .. d_K (projected residual, derivative t scaled by t!), x and p at every mode:

    left walk    jets mu, and tau~ that gather the residuals to the left, over left cores
    right walk   jets nu, and sigma~ that gather the residuals to the right, over right cores
    every mode   E_t = sum_q mu_q nu_{t-q}^T          the adjoint of slot d_t
                 F_u = sum_q mu_q sigma~_{q+u}^T      F_0 of slot x, F_1 of slot p
                     + sum_q tau~_{q+u} nu_q^T
                 Z = (E_0 .. E_K, F_0, F_1)
                 dG = sum over slots of slot . Z,   dU = (O . Z) . (residual, x, p)

so that a mode costs four large products of ``2 w (K + 3) n r^2`` operations (two walks, dG, O . Z)
and nothing larger than the K + 3 matrices of a probe exists. Applies and entries have one residual
for all modes, which starts sigma~; their slots are x and p.

Source: jets of Alger, Christierson, Chen and Ghattas (2026), arXiv:2603.21141, theorem 7.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from t3._sampling.forward_chunks import project_modes
from t3._sampling.jets import (
    affine_adjoint_rows,
    affine_rows,
    convolution_outer,
    correlation_outer,
    correlation_rows,
    factorials,
)
from t3._sampling.walks import (
    arranged,
    arranged_back,
    each_mode,
    first_jet,
    gathered,
    grow,
    matmul,
    project,
    project_jets,
    zero_jet,
)
from t3._tensor.packing import Cores, apart, has_inner_modes, pad_to, peel, sweep


class HoleTrains(NamedTuple):
    """The cores around the holes of a frame, as the chunks use them.

    Attributes:
        up_tucker, down_tt, left_tt, right_tt: as in `t3.T3Frame`.
        left_end, right_end: vectors that close the end bonds.
    """

    up_tucker: Cores
    down_tt: Cores
    left_tt: Cores
    right_tt: Cores
    left_end: Array
    right_end: Array


def _peeled(trains, count, points, directions, residual, *known):
    """The arguments of a chunk function, packed families peeled.

    Known sweeps (a tuple) are as wide as the packed cores: all stays as it is then.
    """
    if has_inner_modes(trains.up_tucker) and not any(isinstance(part, tuple) for part in known):
        points, directions = peel(points), peel(directions)
        residual = residual if residual.ndim == 2 else peel(residual)
        trains, known = _peeled_trains(trains), tuple(map(peel, known))
    return trains, count, points, directions, residual, *known


def _peeled_trains(trains: HoleTrains) -> HoleTrains:
    left, right = trains.left_end.shape[0], trains.right_end.shape[0]
    return HoleTrains(
        peel(trains.up_tucker),
        peel(trains.down_tt, left, right),
        peel(trains.left_tt, left),
        peel(trains.right_tt, None, right),
        trains.left_end,
        trains.right_end,
    )


@apart(_peeled)
def probe_transpose_chunk(
    trains: HoleTrains,
    count: int,
    points: Any,
    directions: Any,
    residual: Any,
    centre: Any = None,
    *,
    keep: bool,
):
    """Variations ``(dU, dG)`` from residual jets ``(count, w, N_i)``.

    Args:
        trains: cores around the holes.
        count: orders, K + 1.
        points, directions, residual: of w probes, in the storage of the cores.
        centre: ``O . E``, Taylor coefficients ``(count, w, n_i)``, where a forward pass has left
            them; this saves most of the fourth product. None for modes where they were not kept.
        keep: whether results keep a leading axis of probes, or are summed.
    """
    walks = _probe_walks(trains, count, points, directions, residual)
    scale = jnp.asarray(factorials(count, trains.left_end.dtype))

    def mode(hole, slots, mu, tau, nu, sigma, point, direction, jets, eta):
        e = jnp.stack(convolution_outer(mu, nu), axis=1)
        f = _input_outer(mu, tau, nu, sigma, direction)
        z = jnp.concatenate([e, f], axis=1)
        if eta is None:
            inputs = _through_hole(z, hole)
            eta, inputs = inputs[:, :count], inputs[:, count:]
        else:
            eta, inputs = jnp.swapaxes(eta, 0, 1), _through_hole(f, hole)
        d_train = _train_part(slots, z, keep)
        d_tucker = _jets_part(eta * scale[None, :, None], jets, keep)
        d_tucker += _inputs_part(inputs, point, direction, jets.shape[-1], keep)
        return d_tucker, d_train

    return each_mode(mode, gathered(trains.down_tt), *walks, points, directions, residual, centre)


@apart(_peeled)
def probe_input_chunk(trains: HoleTrains, count: int, points: Any, directions: Any, residual: Any):
    """Cotangents ``(w, N_i)`` of points and of directions, where all cores are a tensor's own."""
    walks = _probe_walks(trains, count, points, directions, residual)

    def mode(tucker, hole, slots, mu, tau, nu, sigma, direction):
        z = _input_outer(mu, tau, nu, sigma, direction)
        return _input_cotangents(_through_hole(z, hole), tucker)

    return each_mode(mode, trains.up_tucker, gathered(trains.down_tt), *walks, directions)


@apart(_peeled)
def apply_transpose_chunk(
    trains: HoleTrains,
    count: int,
    points: Any,
    directions: Any,
    residual: Any,
    sweeps: Any = None,
    *,
    keep: bool,
):
    """Variations ``(dU, dG)`` from scalar residual jets ``(count, w)``, arguments as above.

    `sweeps` are slots and jets before every mode, where they are known.
    """
    walks = _apply_walks(trains, count, points, directions, residual, sweeps)

    def mode(tucker, hole, slots, mu, sigma, point, direction):
        z = _apply_outer(mu, sigma, direction)
        inputs = _through_hole(z, hole)
        d_tucker = _inputs_part(inputs, point, direction, tucker.shape[-1], keep)
        return d_tucker, _train_part(slots, z, keep)

    return each_mode(mode, trains.up_tucker, gathered(trains.down_tt), *walks, points, directions)


@apart(_peeled)
def apply_input_chunk(trains: HoleTrains, count: int, points: Any, directions: Any, residual: Any):
    """Cotangents ``(w, N_i)`` of points and of directions, where all cores are a tensor's own."""
    walks = _apply_walks(trains, count, points, directions, residual)

    def mode(tucker, hole, slots, mu, sigma, direction):
        z = _apply_outer(mu, sigma, direction)
        return _input_cotangents(_through_hole(z, hole), tucker)

    return each_mode(mode, trains.up_tucker, gathered(trains.down_tt), *walks, directions)


def _probe_walks(trains, count, points, directions, residual):
    """Slots, and the jets mu, tau~ before and nu, sigma~ after every mode."""
    scale = jnp.asarray(factorials(count, trains.left_end.dtype))
    degree = 0 if directions is None else 1

    def mode_slots(core, point, direction, jets):
        inputs = project(core, point, direction)
        return jnp.concatenate([project_jets(core, jets, scale), inputs], axis=1)

    slots = each_mode(mode_slots, trains.up_tucker, points, directions, residual)

    def step(carry, mode):
        jet, gathered_jet = carry
        core, slot = mode
        rows = affine_rows(jet, degree)
        nothing = jnp.zeros((rows.shape[0], count, count, rows.shape[-1]), rows.dtype)
        rows = jnp.concatenate(
            [
                jnp.concatenate([nothing, rows], axis=2),
                jnp.concatenate(
                    [correlation_rows(jet), affine_adjoint_rows(gathered_jet, degree)], axis=2
                ),
            ],
            axis=1,
        )
        after = grow(rows, slot, core)
        return (after[:, :count], after[:, count:]), carry

    def start(end, size):
        end = pad_to(end, [size])
        return first_jet(count, end, slots[0]), zero_jet(count, end.shape[0], slots[0])

    first = start(trains.left_end, trains.left_tt[0].shape[0])
    last = start(trains.right_end, trains.right_tt[-1].shape[2])
    _, left = sweep(step, first, (arranged(trains.left_tt), slots))
    _, right = sweep(step, last, (arranged_back(trains.right_tt), slots), reverse=True)
    return slots, *left, *right


def _apply_walks(trains, count, points, directions, residual, sweeps=None):
    """Slots, and the jets mu before and sigma~ after every mode."""
    degree = 0 if directions is None else 1

    def walk(rows):
        def step(jet, mode):
            core, slot = mode
            return grow(rows(jet, degree), slot, core), jet

        return step

    if sweeps is None:
        slots = project_modes(trains.up_tucker, points, directions)
        first = first_jet(count, pad_to(trains.left_end, trains.left_tt[0].shape[:1]), slots[0])
        _, left = sweep(walk(affine_rows), first, (arranged(trains.left_tt), slots))
    else:
        slots, left = sweeps
    scale = jnp.asarray(factorials(count, trains.left_end.dtype))
    right_end = pad_to(trains.right_end, trains.right_tt[-1].shape[2:])
    last = (residual * scale[:, None]).T[:, :, None] * right_end[None, None, :]
    _, right = sweep(
        walk(affine_adjoint_rows), last, (arranged_back(trains.right_tt), slots), reverse=True
    )
    return slots, left, right


def _input_outer(mu, tau, nu, sigma, direction) -> Float[Array, "w k a b"]:
    """F: the adjoints of the slots of point and direction."""
    degree = 0 if direction is None else 1
    from_right = correlation_outer(mu, sigma, degree)
    from_left = correlation_outer(nu, tau, degree)
    terms = [a + jnp.swapaxes(b, 1, 2) for a, b in zip(from_right, from_left, strict=True)]
    return jnp.stack(terms, axis=1)


def _apply_outer(mu, sigma, direction) -> Float[Array, "w k a b"]:
    return jnp.stack(correlation_outer(mu, sigma, 0 if direction is None else 1), axis=1)


def _through_hole(z, hole) -> Float[Array, "w k n"]:
    """Z contracted with a down core ``(a b, n)``."""
    w, count, a, b = z.shape
    return matmul(z.reshape(w * count, a * b), hole).reshape(w, count, -1)


def _train_part(slots, z, keep: bool) -> Array:
    """dG: ``(a, n, b)``, or ``(w, a, n, b)``."""
    w, count, a, b = z.shape
    if keep:
        per_probe = matmul(jnp.swapaxes(slots, 1, 2), z.reshape(w, count, a * b))
        return jnp.swapaxes(per_probe.reshape(w, -1, a, b), 1, 2)
    summed = matmul(slots.reshape(w * count, -1).T, z.reshape(w * count, a * b))
    return jnp.swapaxes(summed.reshape(-1, a, b), 0, 1)


def _jets_part(inputs, jets, keep: bool) -> Array:
    """Residual's share of dU: ``sum_t inputs_t z_t^T``, ``(n, N)`` or ``(w, n, N)``."""
    w, count, n = inputs.shape
    if keep:
        return matmul(jnp.swapaxes(inputs, 1, 2), jnp.swapaxes(jets, 0, 1))
    rows = jnp.swapaxes(inputs, 0, 1).reshape(count * w, n)
    return matmul(rows.T, jets.reshape(count * w, -1))


def _inputs_part(inputs, point, direction, mode_size: int, keep: bool) -> Array:
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


def _input_cotangents(inputs, tucker):
    """Of points and, at degree 1, of directions."""
    return tuple(matmul(inputs[:, u], tucker) for u in range(inputs.shape[1]))

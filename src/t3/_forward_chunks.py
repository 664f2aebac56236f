"""Forward sampling of one chunk of probes: jets of tensors and of tangents.

Inside, jets are Taylor coefficients. A chunk goes through the whole train before the next one
starts, so that nothing but inputs and outputs exists for all probes.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from kernels._jets import affine_rows, convolution_outer, factorials

from ._packing import Cores, sweep
from ._walks import (
    arranged,
    arranged_back,
    each_mode,
    first_jet,
    gathered,
    grow,
    lift_jets,
    matmul,
    project,
    zero_jet,
)

if TYPE_CHECKING:
    from ._frame import T3Frame, T3Variations


def tensor_probe_chunk(tucker: Cores, train: Cores, ends: Any, count: int, points, directions):
    """Probe jets ``(count, w, N_i)`` of a Tucker tensor train for one chunk of probes.

    Returns:
        The jets, and what is lifted to them: Taylor coefficients ``(count, w, n_i)``.
    """
    slots = project_modes(tucker, points, directions)
    degree = slots[0].shape[-2] - 1
    step = _affine_step(degree)
    _, left = sweep(step, first_jet(count, ends[0], slots[0]), (arranged(train), slots))
    _, right = sweep(
        step, first_jet(count, ends[1], slots[0]), (arranged_back(train), slots), reverse=True
    )
    scale = jnp.asarray(factorials(count, ends[0].dtype))

    def mode(core, hole, mu, nu):
        eta = _apply_outer(convolution_outer(mu, nu), hole)
        return lift_jets(core, eta, scale), jnp.swapaxes(eta, 0, 1)

    return each_mode(mode, tucker, gathered(train), left, right)


def tensor_apply_chunk(tucker: Cores, train: Cores, ends: Any, count: int, points, directions):
    """Apply jets ``(count, w)`` of a Tucker tensor train for one chunk of probes."""
    slots = project_modes(tucker, points, directions)
    step = _affine_step(slots[0].shape[-2] - 1)
    last, _ = sweep(step, first_jet(count, ends[0], slots[0]), (arranged(train), slots))
    return _scaled(matmul(last, ends[1]))


def tangent_probe_chunk(
    frame: "T3Frame", variations: "T3Variations", count: int, points, directions
):
    """Probe jets ``(count, w, N_i)`` of a tangent for one chunk of probes."""
    slots, both = _tangent_slots(frame, variations, points, directions)
    degree = slots[0].shape[-2] - 1
    step = _tangent_step(degree)
    start = lambda end, size: (  # noqa: E731
        first_jet(count, end, slots[0]),
        zero_jet(count, size, slots[0]),
    )
    source = each_mode(lambda v, o: jnp.concatenate([v, o], 1), variations.tt, frame.down_tt)
    _, left = sweep(  # mu and sigma
        step,
        start(frame.left_end, frame.right_tt[0].shape[0]),
        (arranged(frame.left_tt), arranged(frame.right_tt), arranged(source), slots, both),
    )
    _, right = sweep(  # nu and tau
        step,
        start(frame.right_end, frame.left_tt[-1].shape[2]),
        (
            arranged_back(frame.right_tt),
            arranged_back(frame.left_tt),
            arranged_back(source),
            slots,
            both,
        ),
        reverse=True,
    )
    scale = jnp.asarray(factorials(count, frame.dtype))

    def mode(up, down, left_core, right_core, d_up, d_core, mu, sigma, nu, tau):
        centre = convolution_outer(mu, nu)
        eta = _apply_outer(centre, down)
        d_eta = _apply_outer(centre, d_core)
        d_eta += _apply_outer(convolution_outer(sigma, nu), right_core)
        d_eta += _apply_outer(convolution_outer(mu, tau), left_core)
        return lift_jets(up, d_eta, scale) + lift_jets(d_up, eta, scale)

    return each_mode(
        mode,
        frame.up_tucker,
        gathered(frame.down_tt),
        gathered(frame.left_tt),
        gathered(frame.right_tt),
        variations.tucker,
        gathered(variations.tt),
        *left,
        *right,
    )


def tangent_apply_chunk(
    frame: "T3Frame", variations: "T3Variations", count: int, points, directions
):
    """Apply jets ``(count, w)`` of a tangent for one chunk of probes."""
    slots, both = _tangent_slots(frame, variations, points, directions)
    step = _tangent_step(slots[0].shape[-2] - 1)
    source = each_mode(lambda v, o: jnp.concatenate([v, o], 1), variations.tt, frame.down_tt)
    (_, sigma), _ = sweep(
        step,
        (
            first_jet(count, frame.left_end, slots[0]),
            zero_jet(count, frame.right_tt[0].shape[0], slots[0]),
        ),
        (arranged(frame.left_tt), arranged(frame.right_tt), arranged(source), slots, both),
    )
    return _scaled(matmul(sigma, frame.right_end))


def project_modes(tucker: Cores, points, directions) -> Any:
    """Slots ``(w, k, n)`` of every mode."""
    return each_mode(project, tucker, points, directions)


def _tangent_slots(frame, variations, points, directions):
    slots = project_modes(frame.up_tucker, points, directions)
    varied = project_modes(variations.tucker, points, directions)
    return slots, each_mode(lambda a, b: jnp.concatenate([a, b], -1), slots, varied)


def _affine_step(degree: int):
    """Walk one jet over a mode; gives out the jet before it."""

    def step(jet, mode):
        core, slots = mode
        return grow(affine_rows(jet, degree), slots, core), jet

    return step


def _tangent_step(degree: int):
    """Walk a jet and its variation; gives out both as they are before the mode."""

    def step(carry, mode):
        jet, varied = carry
        core, varied_core, source, slots, both = mode
        rows = affine_rows(jet, degree)
        after = grow(affine_rows(varied, degree), slots, varied_core) + grow(rows, both, source)
        return (grow(rows, slots, core), after), carry

    return step


def _apply_outer(coefficients, core):
    """Contract outer products ``(w, a, b)``, one a coefficient, with a core ``(a b, n)``."""
    stacked = jnp.stack(coefficients, axis=1)
    w, count, a, b = stacked.shape
    return matmul(stacked.reshape(w * count, a * b), core).reshape(w, count, -1)


def _scaled(jets):
    """Taylor coefficients ``(w, t)`` to derivatives ``(t, w)``."""
    return jets.T * jnp.asarray(factorials(jets.shape[1], jets.dtype))[:, None]

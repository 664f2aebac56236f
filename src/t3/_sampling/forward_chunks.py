"""Forward sampling of one chunk of probes: jets of tensors and of tangents.

Inside, jets are Taylor coefficients. A chunk goes through the whole train before the next one
starts, so that nothing but inputs and outputs exists for all probes.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from t3._sampling.jets import affine_rows, convolution_outer, factorials
from t3._sampling.walks import (
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
from t3._tensor.packing import Cores, apart, has_inner_modes, pad_to, peel, sweep

if TYPE_CHECKING:
    from t3._tangent.frame import T3Frame, T3Variations


def _peeled(tucker, train, ends, count, points, directions):
    """The arguments of a tensor's chunk function, packed families peeled."""
    if has_inner_modes(tucker):
        tucker, points, directions = peel(tucker), peel(points), peel(directions)
        train = peel(train, ends[0].shape[0], ends[1].shape[0])
    return tucker, train, ends, count, points, directions


@apart(_peeled)
def tensor_probe_chunk(tucker: Cores, train: Cores, ends: Any, count: int, points, directions):
    """Probe jets ``(count, w, N_i)`` of a Tucker tensor train for one chunk of probes.

    Returns:
        The jets, and what is lifted to them: Taylor coefficients ``(count, w, n_i)``.
    """
    slots = project_modes(tucker, points, directions)
    degree = slots[0].shape[-2] - 1
    step = _affine_step(degree)
    first, end = _padded_ends(ends, train)
    _, left = sweep(step, first_jet(count, first, slots[0]), (arranged(train), slots))
    _, right = sweep(
        step, first_jet(count, end, slots[0]), (arranged_back(train), slots), reverse=True
    )
    scale = jnp.asarray(factorials(count, ends[0].dtype))

    def mode(core, hole, mu, nu):
        eta = _apply_outer(convolution_outer(mu, nu), hole)
        return lift_jets(core, eta, scale), jnp.swapaxes(eta, 0, 1)

    return each_mode(mode, tucker, gathered(train), left, right)


@apart(_peeled)
def tensor_apply_chunk(tucker: Cores, train: Cores, ends: Any, count: int, points, directions):
    """Apply jets ``(count, w)`` of a Tucker tensor train for one chunk of probes."""
    slots = project_modes(tucker, points, directions)
    step = _affine_step(slots[0].shape[-2] - 1)
    first, end = _padded_ends(ends, train)
    last, _ = sweep(step, first_jet(count, first, slots[0]), (arranged(train), slots))
    return _scaled(matmul(last, end))


def _padded_ends(ends, train: Cores):
    """Vectors that close the end bonds, as long as the bonds are stored."""
    return pad_to(ends[0], train[0].shape[:1]), pad_to(ends[1], train[-1].shape[2:])


class FrameSweeps(NamedTuple):
    """What sampling the tangents at a frame has in common, for w probes.

    Attributes:
        slots: projected inputs ``(k, w, n_i)`` of every mode.
        left, right: jets ``(count, w, r)`` before and after every mode; of applies and entries only
            those before it.
        centre: their product through the down core, ``(count, w, n_i)``; probes only.
    """

    slots: Any = None
    left: Any = None
    right: Any = None
    centre: Any = None


def frame_sweeps(frame: "T3Frame", count: int, points, directions, *, free: bool) -> FrameSweeps:
    """The sweeps of one chunk of probes, which `tangent_probe_chunk` else makes anew each time."""
    slots = project_modes(frame.up_tucker, points, directions)
    step = _affine_step(slots[0].shape[-2] - 1)
    first = lambda end: first_jet(count, end, slots[0])  # noqa: E731
    _, left = sweep(step, first(frame.left_end), (arranged(frame.left_tt), slots))
    if not free:
        return FrameSweeps(turned(slots), turned(left))
    back = (arranged_back(frame.right_tt), slots)
    _, right = sweep(step, first(frame.right_end), back, reverse=True)
    centre = each_mode(
        lambda hole, mu, nu: _apply_outer(convolution_outer(mu, nu), hole),
        gathered(frame.down_tt),
        left,
        right,
    )
    return FrameSweeps(*map(turned, (slots, left, right, centre)))


def tangent_probe_chunk(
    frame: "T3Frame",
    variations: "T3Variations",
    count: int,
    points,
    directions,
    sweeps: FrameSweeps | None = None,
):
    """Probe jets ``(count, w, N_i)`` of a tangent for one chunk of probes."""
    kept = sweeps or FrameSweeps()
    slots, both = _tangent_slots(frame, variations, points, directions, kept.slots)
    start = lambda end, size: (  # noqa: E731
        first_jet(count, end, slots[0]),
        zero_jet(count, size, slots[0]),
    )
    source = each_mode(lambda v, o: jnp.concatenate([v, o], 1), variations.tt, frame.down_tt)
    left = _tangent_walk(  # mu and sigma
        start(frame.left_end, frame.right_tt[0].shape[0]),
        (arranged(frame.left_tt), arranged(frame.right_tt), arranged(source), slots, both),
        kept.left,
    )
    right = _tangent_walk(  # nu and tau
        start(frame.right_end, frame.left_tt[-1].shape[2]),
        (
            arranged_back(frame.right_tt),
            arranged_back(frame.left_tt),
            arranged_back(source),
            slots,
            both,
        ),
        kept.right,
        reverse=True,
    )
    scale = jnp.asarray(factorials(count, frame.dtype))

    def mode(up, down, left_core, right_core, d_up, d_core, mu, sigma, nu, tau, eta):
        centre = convolution_outer(mu, nu)
        eta = _apply_outer(centre, down) if eta is None else jnp.swapaxes(eta, 0, 1)
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
        kept.centre,
    )


def tangent_apply_chunk(
    frame: "T3Frame",
    variations: "T3Variations",
    count: int,
    points,
    directions,
    sweeps: FrameSweeps | None = None,
):
    """Apply jets ``(count, w)`` of a tangent for one chunk of probes."""
    kept = sweeps or FrameSweeps()
    slots, both = _tangent_slots(frame, variations, points, directions, kept.slots)
    source = each_mode(lambda v, o: jnp.concatenate([v, o], 1), variations.tt, frame.down_tt)
    start = (
        first_jet(count, frame.left_end, slots[0]),
        zero_jet(count, frame.right_tt[0].shape[0], slots[0]),
    )
    cores = (arranged(frame.left_tt), arranged(frame.right_tt), arranged(source), slots, both)
    degree = slots[0].shape[-2] - 1
    if kept.left is None:
        (_, sigma), _ = sweep(_tangent_step(degree), start, cores)
    else:
        sigma, _ = sweep(_varied_step(degree), start[1], (turned(kept.left), *cores[1:]))
    return _scaled(matmul(sigma, frame.right_end))


def project_modes(tucker: Cores, points, directions) -> Any:
    """Slots ``(w, k, n)`` of every mode."""
    return each_mode(project, tucker, points, directions)


def _tangent_slots(frame, variations, points, directions, slots):
    if slots is None:
        slots = project_modes(frame.up_tucker, points, directions)
    else:
        slots = turned(slots)
    varied = project_modes(variations.tucker, points, directions)
    return slots, each_mode(lambda a, b: jnp.concatenate([a, b], -1), slots, varied)


def _affine_step(degree: int):
    """Walk one jet over a mode; gives out the jet before it."""

    def step(jet, mode):
        core, slots = mode
        return grow(affine_rows(jet, degree), slots, core), jet

    return step


def _tangent_walk(start, cores, jets, *, reverse: bool = False):
    """Jets and their variations on one side of every mode; `jets` where they are known."""
    degree = cores[3][0].shape[-2] - 1
    if jets is None:
        return sweep(_tangent_step(degree), start, cores, reverse=reverse)[1]
    jets = turned(jets)
    _, varied = sweep(_varied_step(degree), start[1], (jets, *cores[1:]), reverse=reverse)
    return jets, varied


def _tangent_step(degree: int):
    """Walk a jet and its variation; gives out both as they are before the mode."""
    varied_step = _varied_step(degree)

    def step(carry, mode):
        jet, varied = carry
        core, *rest = mode
        slots = rest[2]
        after, _ = varied_step(varied, (jet, *rest))
        return (grow(affine_rows(jet, degree), slots, core), after), carry

    return step


def _varied_step(degree: int):
    """Walk the variation of a known jet."""

    def step(varied, mode):
        jet, varied_core, source, slots, both = mode
        after = grow(affine_rows(varied, degree), slots, varied_core)
        return after + grow(affine_rows(jet, degree), both, source), varied

    return step


def turned(family):
    """Probes and the axis beside them exchanged, in all modes."""
    return jax.tree.map(lambda a: jnp.swapaxes(a, -3, -2), family)


def _apply_outer(coefficients, core):
    """Contract outer products ``(w, a, b)``, one a coefficient, with a core ``(a b, n)``."""
    stacked = jnp.stack(coefficients, axis=1)
    w, count, a, b = stacked.shape
    return matmul(stacked.reshape(w * count, a * b), core).reshape(w, count, -1)


def _scaled(jets):
    """Taylor coefficients ``(w, t)`` to derivatives ``(t, w)``."""
    return jets.T * jnp.asarray(factorials(jets.shape[1], jets.dtype))[:, None]

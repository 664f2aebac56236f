"""Verdicts, the reasons for them with what to do, and the numbers that decide."""

import enum

import numpy as np

from svgd._diagnose.drift import Drift
from svgd._diagnose.identities import Identities
from svgd._diagnose.modes import Modes

# An answer is called wrong where an error exceeds the tolerance by this many standard errors, and fine
# where all of them are below 0.8 of it with this many to spare.
_SURELY = 3.0
_SAFELY = 2.0
_MARGIN = 0.8
# The share of particles that moves cannot leave behind, from which moves say nothing of the rest.
_NECK = 0.01
# What windows may remember of their start before groups are apart, and before an answer is fine.
_MEMORY = 0.5
_FORGOTTEN = 0.3
# Slow moves can look settled: fewer never call an answer fine.
_LEAST_MOVES = 80
# Laplace's mass of modes without particles.
_LOST = 0.05


class Verdict(enum.Enum):
    """What a diagnosis comes to."""

    FINE = "fine"
    UNSURE = "unsure"
    WRONG = "wrong"


class Reason(enum.Enum):
    """Why an answer is not called fine, and what to do."""

    MOMENTS = (
        "moves that keep the posterior take the particles elsewhere: run on from this state for more "
        "steps, or repair it by svgd.refine"
    )
    HELD = (
        "particles rest in places that moves cannot leave, and count in the moments: start nearer to "
        "the posterior, or leave them out"
    )
    NECK = (
        "the density has a neck, where a scale that is sampled goes to 0 with what it scales: sample "
        "standardised parameters, (theta - mu) / tau, in place of theta"
    )
    GROUPS = (
        "moves do not join the places where particles are: shares of modes are those of the start, "
        "and nothing says that they are right"
    )
    LOST = "a mode holds mass and no particle: start particles there as well"
    UNCERTAIN = "an error near the tolerance cannot be told: take more particles, or run longer"
    IDENTITIES = "Stein's identities do not hold: run for more steps, or start nearer"
    SCORE = "without a log-density nothing can be tested by moves: give one instead of its score"
    FINITE = "the log-density or the score is not finite at particles: start inside of the support"


def undecided(drift: Drift, mean_tolerance: float, deviation_tolerance: float) -> bool:
    """Whether more moves may say more."""
    verdict, _ = of_drift(drift, mean_tolerance, deviation_tolerance)
    return verdict is Verdict.UNSURE


def of_drift(
    drift: Drift, mean_tolerance: float, deviation_tolerance: float
) -> tuple[Verdict, list[Reason]]:
    """What the moves say."""
    errors = np.stack(
        [
            np.abs(drift.mean_error) / mean_tolerance,
            np.abs(drift.deviation_error) / deviation_tolerance,
        ]
    )
    unsure = np.stack(
        [drift.mean_uncertainty / mean_tolerance, drift.deviation_uncertainty / deviation_tolerance]
    )
    wrong = bool(np.any(errors - _SURELY * unsure > 1)) or not np.isfinite(errors).all()
    fine = bool(np.all(errors + _SAFELY * unsure <= _MARGIN))
    # Held particles may be a true tail: then the moments of the others are short of it.
    with_held = np.max(np.abs(drift.deviation_error_held)) / deviation_tolerance
    fine = fine and bool(with_held <= 1) and drift.memory <= _FORGOTTEN
    fine = fine and drift.num_moves >= _LEAST_MOVES
    if drift.held > _NECK:
        # What is held may be mass or dirt: the moves see only the rest.
        return Verdict.UNSURE, [Reason.NECK]
    if wrong:
        held = drift.held > 0 and with_held < 0.5 * errors[1].max()
        return Verdict.WRONG, [Reason.HELD if held else Reason.MOMENTS]
    if drift.memory > _MEMORY:
        return Verdict.UNSURE, [Reason.GROUPS]
    return (Verdict.FINE, []) if fine else (Verdict.UNSURE, [Reason.UNCERTAIN])


def of_modes(modes: Modes | None) -> tuple[Verdict, list[Reason]]:
    """What the searches say."""
    if modes is None or modes.lost < _LOST:
        return Verdict.FINE, []
    return (Verdict.WRONG if modes.clear else Verdict.UNSURE), [Reason.LOST]


def of_identities(found: Identities) -> tuple[Verdict, list[Reason]]:
    """What the identities say where there is nothing else: never that all is fine."""
    beyond = max(abs(found.matrix) - 5 * found.matrix_uncertainty, 0.0)
    if beyond > 0.1 or found.discrepancy > 2 * found.independent:
        return Verdict.WRONG, [Reason.IDENTITIES]
    return Verdict.UNSURE, [Reason.SCORE]


def worst(*judged: tuple[Verdict, list[Reason]]) -> tuple[Verdict, tuple[Reason, ...]]:
    """The worst of several verdicts, with all reasons."""
    order = [Verdict.FINE, Verdict.UNSURE, Verdict.WRONG]
    verdict = max((one for one, _ in judged), key=order.index)
    return verdict, tuple(dict.fromkeys(reason for _, reasons in judged for reason in reasons))

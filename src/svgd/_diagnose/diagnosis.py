"""Whether particles are the posterior: one verdict, with the numbers that it rests on."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from memory import checked_key
from svgd._diagnose import moves, verdict
from svgd._diagnose.drift import Drift, drift
from svgd._diagnose.identities import Identities, identities
from svgd._diagnose.modes import Modes, search
from svgd._diagnose.subject import subject
from svgd._diagnose.verdict import Reason, Verdict
from svgd._run.state import SVGDState
from svgd._run.whitening import from_particles

_LEVELS = np.array([0.05, 0.5, 0.95])
_MOST_ROWS = 20


class Diagnosis(eqx.Module):
    """What `diagnose` found; print it.

    Attributes:
        verdict: FINE, UNSURE or WRONG.
        reasons: for a verdict that is not FINE, each with what to do.
        names: of the d parameters.
        mean, deviation: the particles', (d,).
        quantiles: at 5, 50 and 95 %, (3, d).
        quantile_uncertainty: the half-width of one standard error from the moved particles, (3, d).
        drift: the errors of means and deviations that moves found; None for a score.
        identities: Stein's, and the kernel Stein discrepancy; None where scores are not finite.
        modes: what dispersed searches found; None for a score and in many dimensions.
        skewness: the particles', (d,).
        num_particles: n.
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    names: tuple[str, ...]
    mean: np.ndarray
    deviation: np.ndarray
    quantiles: np.ndarray
    quantile_uncertainty: np.ndarray
    drift: Drift | None
    identities: Identities | None
    modes: Modes | None
    skewness: np.ndarray
    num_particles: int

    def __repr__(self) -> str:
        return "\n".join([*_headline(self), *_evidence(self), *_table(self)])

    __str__ = __repr__


def diagnose(
    log_density: Callable,
    particles: PyTree | SVGDState,
    *,
    key: Array | None = None,
    mean_tolerance: float = 0.1,
    deviation_tolerance: float = 0.1,
    batched: bool = False,
    kind: str = "auto",
) -> Diagnosis:
    """Judges whether particles are the posterior of a log-density.

    Up to 1,000 of the particles each make 40 to 160 Hamiltonian moves with a Metropolis test. These
    leave the posterior as it is, so that they tell particles that are it from others by where they
    lead, tails included. 24 searches from up to eight standard deviations out look for modes that
    hold no particle. A mode farther away, or narrower than searches find, leaves no trace, and
    neither does mass that moves cannot reach.

    Args:
        log_density: as in `SVGD.run`, deterministic. For a score only Stein's identities are left,
            which cannot say that an answer is fine.
        particles: a state, or particles in the form of `SVGD.run`.
        key: of moves and searches; a fixed one when None.
        mean_tolerance: the error of a mean from which an answer is wrong, in standard deviations.
        deviation_tolerance: the relative error of a standard deviation.
        batched, kind: as in `SVGD.run`.

    Returns:
        A `Diagnosis`. Its verdict is WRONG where an error is surely beyond its tolerance, FINE where
        all are surely within, and UNSURE where neither can be said.

    Raises:
        ValueError: on a state of a stochastic run, or tolerances that are not positive.

    Cost:
        320 to 1,280 gradients of up to 1,000 particles; programs of a few seconds to compile.
    """
    for name, value in (
        ("mean_tolerance", mean_tolerance),
        ("deviation_tolerance", deviation_tolerance),
    ):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    key = jax.random.key(0) if key is None else checked_key(key)
    target, points, layout = subject(log_density, particles, batched, kind, "diagnose")
    of_moves, of_search, of_choice = jax.random.split(key, 3)
    found, modes = None, None
    scores = target.score(points, None)
    finite = bool(jnp.all(jnp.isfinite(scores)))
    if target.is_log_density:
        finite = finite and bool(jnp.all(jnp.isfinite(target.log_densities(points, None))))
    stein = identities(target, from_particles(points), points, of_choice) if finite else None
    judged: list[tuple[Verdict, list[Reason]]] = []
    if stein is None:
        judged.append((Verdict.WRONG, [Reason.FINITE]))
    elif target.is_log_density:
        tolerances = (mean_tolerance, deviation_tolerance)
        found = drift(target, points, of_moves, lambda d: not verdict.undecided(d, *tolerances))
        whitening = moves.robust_whitening(target, points)
        modes = search(target, whitening, points, of_search)
        judged += [verdict.of_drift(found, *tolerances), verdict.of_modes(modes)]
    else:
        judged.append(verdict.of_identities(stein))
    reached, reasons = verdict.worst(*judged)
    values = np.asarray(points, np.float64)
    center, spread = values.mean(0), values.std(0)
    standard = (values - center) / np.where(spread > 0, spread, 1)
    reference = values if found is None else np.asarray(found.moved, np.float64)
    return Diagnosis(
        reached,
        reasons,
        layout.names,
        center,
        spread,
        np.quantile(values, _LEVELS, axis=0),
        _uncertainty(reference),
        found,
        stein,
        modes,
        np.mean(standard**3, axis=0),
        len(values),
    )


def _uncertainty(draws: np.ndarray) -> np.ndarray:
    """One standard error of the quantiles of independent draws, from those one error of rank away."""
    wide = np.sqrt(_LEVELS * (1 - _LEVELS) / len(draws))
    low, high = np.clip(_LEVELS - wide, 0, 1), np.clip(_LEVELS + wide, 0, 1)
    return (np.quantile(draws, high, axis=0) - np.quantile(draws, low, axis=0)) / 2


def _headline(d: Diagnosis) -> list[str]:
    lines = [f"verdict: {d.verdict.value}" + (f" ({d.num_particles:,} particles)")]
    return lines + [f"  {reason.value}" for reason in d.reasons]


def _evidence(d: Diagnosis) -> list[str]:
    lines = []
    if d.drift is not None:
        mean, deviation = (
            int(np.argmax(np.abs(errors)))
            for errors in (d.drift.mean_error, d.drift.deviation_error)
        )
        lines += [
            f"moves: the mean of {d.names[mean]} is off by {d.drift.mean_error[mean]:+.3f} +- "
            f"{d.drift.mean_uncertainty[mean]:.3f} sd, the sd of {d.names[deviation]} by "
            f"{d.drift.deviation_error[deviation]:+.1%} +- "
            f"{d.drift.deviation_uncertainty[deviation]:.1%}",
            f"  {d.drift.num_moves} moves, acceptance {d.drift.acceptance:.2f}, {d.drift.held:.1%} of "
            f"the particles held, {d.drift.memory:.0%} of a start remembered",
        ]
    if d.identities is not None:
        stein = d.identities
        row, column = (d.names[place] for place in stein.where)
        lines += [
            f"Stein's identities, whitened: mean score {stein.score:.3f}, E z s' + I "
            f"{stein.matrix:+.3f} +- {stein.matrix_uncertainty:.3f} ({row}, {column}), tails "
            f"{stein.tail:.3f} sd",
            f"kernel Stein discrepancy: {stein.discrepancy:.3f}; as many independent draws "
            f"{stein.independent:.3f}",
        ]
    if d.modes is not None:
        masses = np.exp(d.modes.log_masses)
        shares = ", ".join(
            f"{share:.0%} ({near:.0%} of the particles near)"
            for share, near in zip(masses / max(masses.sum(), 1e-300), d.modes.near, strict=True)
        )
        lines.append(
            f"modes: {len(masses)} found by {d.modes.num_searches} searches"
            + (f", of mass {shares}" if shares else "")
        )
    return lines


def _table(d: Diagnosis) -> list[str]:
    nothing = np.full(len(d.names), np.nan)
    mean_error, deviation_error, mean_sure, deviation_sure = (
        (nothing,) * 4
        if d.drift is None
        else (
            d.drift.mean_error,
            d.drift.deviation_error,
            d.drift.mean_uncertainty,
            d.drift.deviation_uncertainty,
        )
    )
    badness = np.maximum(np.abs(mean_error), np.abs(deviation_error))
    rows = np.arange(len(d.names))
    if len(rows) > _MOST_ROWS:
        rows = np.sort(np.argsort(-np.nan_to_num(badness), kind="stable")[:_MOST_ROWS])
    width = max(9, *(len(d.names[k]) for k in rows))
    lines = [
        f"{'parameter':<{width}} {'mean':>10} {'off by (sd)':>16} {'sd':>10} {'off by':>17} "
        f"{'skew':>5} {'5 %':>10} {'50 %':>10} {'95 %':>10}"
    ]
    for k in rows:
        low, middle, high = d.quantiles[:, k]
        lines.append(
            f"{d.names[k]:<{width}} {d.mean[k]:>10.4g} "
            f"{f'{mean_error[k]:+.3f} +- {mean_sure[k]:.3f}':>16} {d.deviation[k]:>10.4g} "
            f"{f'{deviation_error[k]:+.1%} +- {deviation_sure[k]:.1%}':>17} "
            f"{d.skewness[k]:>5.1f} {low:>10.4g} {middle:>10.4g} {high:>10.4g}"
        )
    if len(rows) < len(d.names):
        lines.append(f"... the {len(rows)} of {len(d.names)} parameters that are worst")
    return lines

"""Fits with ranks that grow where the residual asks for it, for as long as held-out data say so."""

import math
from typing import Any, NamedTuple

from jaxtyping import Array

import memory
from t3._fit.checks import checked_key, checked_number
from t3._fit.directions import Ranks, grown
from t3._fit.fit import run, warn_useless
from t3._fit.options import Told, told
from t3._fit.outcome import StopReason
from t3._fit.result import FitResult
from t3._fit.start import FromData
from t3._fit.validation import HeldOut, SplitOff
from t3._sampling.sampling import Sampling
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.ranks import minimal_ranks
from t3._tensor.rounding import rank_pair

# A direction whose gain is below this share of the largest can wait.
_SHARE = 0.1
# Singular values that together are below this share of the held-out error explain nothing.
_CUT = 0.3
# Stages that may fail to lower the error before it ends: one more rank alone may gain nothing.
_PATIENCE = 1
# Data for each parameter of a tensor, below which a fit of it says little.
_ENOUGH = 1.5


class Continuation(NamedTuple):
    """Outcome of `t3.fit_growing_ranks`.

    Attributes:
        x: the fit of least validation error.
        stages: one `FitResult` for each set of ranks tried.
        errors: least validation error of each stage, relative.
        reason: why it stopped; ``reason.advice`` says what to do.
        missing: how many more data the next ranks would need, where there were too few; else 0.
    """

    x: TuckerTensorTrain
    stages: tuple[FitResult, ...]
    errors: tuple[float, ...]
    reason: StopReason
    missing: int = 0

    @property
    def best(self) -> int:
        """Position of the stage that `x` is of."""
        return self.errors.index(min(self.errors))

    @property
    def useless(self) -> bool:
        """Whether `x` explains the data, or those held out, no better than zero does."""
        return self.stages[self.best].useless

    @property
    def converged(self) -> bool:
        """Whether the tolerance was reached, or no rank could grow, and `x` is better than zero."""
        return self.reason.converged and not self.useless

    def save(self, path: Any) -> None:
        """Write to an ``.npz`` file, which `load` reads for ``resume=``."""
        parts = [stage.parts() for stage in self.stages]
        arrays = {f"{i}_{name}": a for i, (_, own) in enumerate(parts) for name, a in own.items()}
        about = {
            "stages": [about for about, _ in parts],
            "reason": self.reason,
            "missing": self.missing,
        }
        memory.save_arrays(path, "growth of a fit", arrays, about)

    @staticmethod
    def load(path: Any) -> "Continuation":
        """Read what `save` wrote.

        Raises:
            memory.FileError: a file that holds none, or not all of one.
        """
        arrays, about = memory.load_arrays(path, "growth of a fit")
        stages = []
        for i, part in enumerate(about["stages"]):
            own = {
                name.removeprefix(f"{i}_"): a
                for name, a in arrays.items()
                if name.startswith(f"{i}_")
            }
            stages.append(FitResult.of_parts(part, own))
        return _continuation(tuple(stages), StopReason(about["reason"]), about["missing"])


def fit_growing_ranks(
    *start_and_samples: Any,
    tolerance: float | None = None,
    validation: Any = None,
    max_ranks: Ranks | None = None,
    growth: int = 1,
    improvement: float = 0.01,
    max_stages: int = 20,
    key: Array | None = None,
    resume: Continuation | None = None,
    **options: Any,
) -> Continuation:
    """Fit, grow the ranks where the residual asks for it, fit again, until held-out data are content.

    ``fit_growing_ranks(sampling, data)`` starts from the data at rank one, and keeps a tenth of the
    samples to judge by. ``fit_growing_ranks(x0, sampling, data)`` starts from a tensor.

    Between stages, directions that the ranks exclude and that the residual points to are added, bond
    by bond and mode by mode, each only if its gain is a tenth of the largest; and what a tensor's own
    singular values show to be far below the held-out error is cut off.

    Args:
        *start_and_samples: a start or None, which may be left out; sampling and data as for `t3.fit`.
        tolerance: relative error of held-out data to stop at.
        validation: held-out ``(sampling, data)``, `t3.HeldOut`, `t3.SplitOff` or a fraction. Default
            a tenth of the samples, by `key`. Each stage gives its point of least error there.
        max_ranks: ranks not to exceed.
        growth: most added to a rank between stages.
        improvement: a stage must lower the validation error by this share of it.
        max_stages: how often to fit.
        key: for the held-out part and the start. Default ``jax.random.key(0)``.
        resume: an earlier outcome of the same call, stopped or read from its checkpoint.
        **options: of `t3.fit`. `patience` defaults to 3 here, and newton_cg to `max_steps` 20 and
            `gradient_tolerance` 1e-4, for every stage starts where the last one ended. The
            `checkpoint` holds the whole of it: `t3.Continuation.load` reads it for `resume`.

    Returns:
        `Continuation` with the best tensor and all stages. KeyboardInterrupt gives what there is.

    Raises:
        ValueError: no stages, no growth, max_ranks of wrong number.

    Warns:
        UselessFitWarning: the best is no better than zero.

    Cost: for each stage a compilation, a fit, and two gradients whose Tucker ranks are the mode
        sizes.
    """
    if len(start_and_samples) not in (2, 3):
        raise TypeError(
            "fit_growing_ranks takes (sampling, data), or a start before them, got "
            f"{len(start_and_samples)} arguments."
        )
    x0, sampling, data = (None, *start_and_samples)[-3:]
    key = checked_key(key)
    if options.get("method", "newton_cg") == "newton_cg":
        options = {"max_steps": 20, "gradient_tolerance": 1e-4, **options}
    patience = options.pop("patience", 3)
    if validation is None:
        validation = SplitOff(key=key, patience=patience)
    elif isinstance(validation, float):
        validation = SplitOff(fraction=validation, key=key, patience=patience)
    elif isinstance(validation, tuple | list) and len(validation) == 2:
        validation = HeldOut(*validation, patience=patience)
    given = told(
        x0,
        options.pop("method", "newton_cg"),
        options.pop("objective", None),
        validation,
        options.pop("watch", None),
        options.pop("devices", None),
        options,
    )
    if isinstance(given.start, FromData):
        given = given._replace(start=FromData(given.start.ranks, given.start.shape, key=key))
    sampling, data, held_out = given.validation.split(sampling, data)
    growing = Growing(
        given._replace(validation=held_out),
        sampling,
        data,
        max_ranks,
        checked_number("growth", growth, 1),
        improvement,
        tolerance,
        checked_number("max_stages", max_stages, 1),
    )
    found = growing.go(() if resume is None else resume.stages)
    if found.useless:
        warn_useless(f"{found.errors[found.best]:.3g} ({found.reason})", found.reason)
    if growing.checkpoint is not None:
        growing.checkpoint.finish(found)
    return found


class Growing:
    """A growth in progress."""

    def __init__(
        self,
        given: Told,
        sampling: Sampling,
        data: Any,
        max_ranks,
        growth,
        improvement,
        tolerance,
        most,
    ):
        self.given, self.sampling, self.data = given, sampling, data
        self.max_ranks, self.growth, self.most = max_ranks, growth, most
        self.improvement, self.tolerance = improvement, tolerance
        self.checkpoint = given.watch.file()
        self.stages: tuple[FitResult, ...] = ()

    def go(self, stages: tuple[FitResult, ...]) -> Continuation:
        """Stages until a reason to stop, from those that there are."""
        x = unfinished = None
        if not stages:
            x = self._start()
        elif stages[-1].reason in _UNFINISHED:
            *stages, unfinished = stages
        self.stages = tuple(stages)
        try:
            while True:
                if x is not None or unfinished is not None:
                    self.stages = (*self.stages, self._fit(x, unfinished))
                    unfinished = None
                reason, missing = self._enough(), 0
                if reason is None:
                    x, reason, missing = self._next()
                if reason is not None:
                    return self._outcome(reason, missing)
        except KeyboardInterrupt:
            if not self.stages:
                raise
            return self._outcome(StopReason.INTERRUPTED, 0)

    def _outcome(self, reason: StopReason, missing: int) -> Continuation:
        found = _continuation(self.stages, reason, missing)
        if self.checkpoint is not None:
            self.checkpoint.write(found)
        return found

    def write(self, partial: FitResult) -> None:
        """The growth with a stage that is not finished: the checkpoint of its fits."""
        if self.checkpoint is not None:
            self.checkpoint.write(
                _continuation((*self.stages, partial), StopReason.NOT_FINISHED, 0)
            )

    def _start(self) -> TuckerTensorTrain:
        start, told = self.given.start, self.given
        if isinstance(start, FromData):
            start = start.tensor(self.sampling, self.data, told.objective, told.split)
        if self.max_ranks is not None:
            rank_pair(self.max_ranks, start.shape, "max_ranks")
        return start

    def _fit(self, x: TuckerTensorTrain | None, unfinished: FitResult | None) -> FitResult:
        x = unfinished.current if unfinished is not None else x
        checkpoint = None if self.checkpoint is None else self
        return run(x, self.sampling, self.data, self.given, checkpoint, unfinished)

    def _enough(self) -> StopReason | None:
        """Whether the last stage ends it."""
        last, errors = self.stages[-1], [_error(stage) for stage in self.stages]
        if last.reason in (StopReason.INTERRUPTED, StopReason.CALLBACK):
            return last.reason
        if self.tolerance is not None and min(errors) <= self.tolerance:
            return StopReason.TOLERANCE
        if len(self.stages) >= self.most:
            return StopReason.STAGE_LIMIT
        if self._failures(errors) > _PATIENCE:
            return StopReason.VALIDATION
        return None

    def _failures(self, errors: list[float]) -> int:
        """Stages at the end that have not lowered the error of those before them."""
        best, failures = math.inf, 0
        for error in errors:
            failures = 0 if error <= (1 - self.improvement) * best else failures + 1
            best = min(best, error)
        return failures

    def _next(self) -> tuple[TuckerTensorTrain | None, StopReason | None, int]:
        """The start of the next stage, or why there is none and how many data it lacks."""
        result = self.stages[-1]
        x, told = result.x.squash(), self.given
        problem, units = told.objective.problem(x, self.sampling, self.data, told.split)
        x = units.tensor_in(x)
        kept = minimal_ranks(x.shape, *x.ranks_within(min(_CUT * _error(result), 1.0)))
        tried = [_ranks(stage.x) for stage in self.stages]
        limits = {"growth": self.growth, "share": _SHARE, "max_ranks": self.max_ranks}
        y = x
        if kept != _ranks(x):
            y = grown(problem, x.round(ranks=kept), **limits)
        if _ranks(y) in tried:
            # Nothing was cut, or what was comes back: on from where it stands.
            y = grown(problem, x, **limits)
        if _ranks(y) in tried:
            return None, StopReason.RANK_LIMIT, 0
        missing = math.ceil(_ENOUGH * parameters(y)) - values(problem)
        if missing > 0:
            return None, StopReason.DATA, missing
        return units.tensor_out(y), None, 0


def _ranks(x: TuckerTensorTrain) -> Ranks:
    return x.tucker_ranks, x.tt_ranks


_UNFINISHED = (StopReason.NOT_FINISHED, StopReason.INTERRUPTED, StopReason.CALLBACK)


def parameters(x: TuckerTensorTrain) -> int:
    """Dimension of the manifold of tensors of the ranks of `x`."""
    n, r = x.tucker_ranks, x.tt_ranks
    tucker = sum(rank * (size - rank) for rank, size in zip(n, x.shape, strict=True))
    train = sum(a * m * b for a, m, b in zip(r[:-1], n, r[1:], strict=True))
    return tucker + train - sum(rank**2 for rank in r[1:-1])


def values(problem: Any) -> int:
    """Numbers in the data of a problem that are no padding."""
    measured, shape = problem.measured, problem.measured.probes.shape
    each = measured.form.numbers(shape)
    return measured.probes.count * measured.orders * each


def _error(stage: FitResult) -> float:
    return min((r.validation for r in stage.history if r.validation is not None), default=math.inf)


def _continuation(stages: tuple[FitResult, ...], reason: StopReason, missing: int) -> Continuation:
    errors = tuple(_error(stage) for stage in stages)
    return Continuation(stages[errors.index(min(errors))].x, stages, errors, reason, missing)

"""The loop of a fit: compiled steps, and on the host what is seen, kept and decided between them."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t3._fit.fingerprint import different
from t3._fit.methods import Look, Method
from t3._fit.methods.method import objective as _objective
from t3._fit.options import Watch
from t3._fit.outcome import StopReason
from t3._fit.problem import LeastSquares
from t3._fit.record import Record
from t3._fit.result import FitError, FitResult, FitState
from t3._fit.split import to_this_process
from t3._fit.units import Units
from t3._tensor.format import TuckerTensorTrain

# A relative misfit, or fall of the objective, of so many eps is what the roundings of a pass over the
# modes leave.
_ROUNDING = 100.0


class Progress(NamedTuple):
    """Where a fit is: tensors in its units, whole on every device.

    Attributes:
        x: best point so far, at position `best` of the history.
        current: last point.
        memory: of the method.
        history: a record of each point looked at, in the user's units.
        step: steps taken.
    """

    x: TuckerTensorTrain
    current: TuckerTensorTrain
    memory: Any
    history: tuple[Record, ...] = ()
    step: int = 0
    best: int = 0


class Run:
    """One fit in progress: the loop on the host around compiled steps."""

    def __init__(
        self,
        problem: LeastSquares,
        method: Method,
        units: Units,
        held_out: LeastSquares | None,
        patience: int | None,
        watch: Watch,
        checkpoint: Any,
        fingerprint: dict[str, str],
    ):
        self.problem, self.method, self.units = problem, method, units
        self.held_out, self.patience = held_out, patience
        self.watch, self.checkpoint, self.fingerprint = watch, checkpoint, fingerprint
        self.scale = float(_data_square(problem)) / 2
        self.held_out_scale = 0.0 if held_out is None else float(_data_square(held_out)) / 2
        self.eps = float(jnp.finfo(problem.dtype).eps)

    def start(self, x: TuckerTensorTrain) -> Progress:
        """Where nothing has happened yet."""
        x = self.everywhere(self.method.geometry.start(self.units.tensor_in(x)))
        return Progress(x, x, self.everywhere(self.method.init(self.problem, x)))

    def restored(self, earlier: FitResult) -> Progress:
        """An earlier result, its state in the structures of this call."""
        differ = different(earlier.state.fingerprint or {}, self.fingerprint)
        if differ:
            raise ValueError(
                f"resume goes on with a fit as if it had not stopped; this one differs in its "
                f"{' and '.join(differ)}. To start anew from its point, give result.x as x0 instead."
            )
        x, current = (
            self.everywhere(self.units.tensor_in(x)) for x in (earlier.x, earlier.current)
        )
        fresh = self.method.init(self.problem, current)
        want, have = jax.tree.leaves(fresh), jax.tree.leaves(earlier.memory)
        if [jnp.shape(a) for a in want] != [jnp.shape(a) for a in have]:
            raise ValueError(
                "resume must come from a fit by the same method and options; its memory has arrays "
                f"of shapes {[jnp.shape(a) for a in have]}, expected {[jnp.shape(a) for a in want]}."
            )
        memory = jax.tree.unflatten(
            jax.tree.structure(fresh),
            [jnp.asarray(a, b.dtype) for a, b in zip(have, want, strict=True)],
        )
        _, history, _, state = earlier
        return Progress(x, current, self.everywhere(memory), history, state.step, state.best)

    def everywhere(self, tree: Any) -> Any:
        """Whole on every device of the mesh, where there is one."""
        split = self.problem.split
        return tree if split is None else split.devices.replicate(tree)

    def here(self, tree: Any) -> Any:
        """Arrays that other processes have no part in."""
        return tree if self.problem.split is None else to_this_process(tree)

    def tensor(self, x: TuckerTensorTrain) -> TuckerTensorTrain:
        """A point as the caller gets it."""
        return self.units.tensor_out(self.here(x))

    def result(self, at: Progress, reason: StopReason) -> FitResult:
        """What the caller gets."""
        memory = jax.tree.map(lambda a: jnp.array(a, copy=True), self.here(at.memory))
        state = FitState(self.tensor(at.current), memory, at.step, at.best, self.fingerprint)
        return FitResult(self.tensor(at.x), at.history, reason, state)

    def go(self, at: Progress) -> FitResult:
        """Steps until a reason to stop."""
        try:
            while True:
                at, reason = self.advance(at)
                if self.checkpoint is not None:
                    self.checkpoint.write(self.result(at, reason or StopReason.NOT_FINISHED))
                if reason is not None:
                    break
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
        return self.result(at, reason)

    def advance(self, at: Progress) -> tuple[Progress, StopReason | None]:
        """A look at the current point, its record, and a step from there."""
        method, x = self.method, at.current
        look = method.look(self.problem, x, at.step)
        value = float(look.objective)
        norm = None if look.gradient_norm is None else float(look.gradient_norm)
        self._check_finite(at, value, norm)
        known = bool(at.history) and at.history[-1].step == at.step
        record = at.history[-1] if known else self._record(at.step, x, look, norm)
        history = at.history if known else (*at.history, record)
        reason = self._answered(at.step, value, norm) or method.stop(history)
        step = None
        if reason is None and at.step < method.max_steps:
            step = method.step(self.problem, x, at.memory, look, at.step)
            detail = step.detail or {}
            detail = {name: np.asarray(number).item() for name, number in detail.items()}
            record = record._replace(detail=detail)
        elif reason is None:
            reason = StopReason.STEP_LIMIT
        if not known:
            at, told = self._seen(at, record, x)
            reason = reason or told
        if reason is not None or step is None:
            return at, reason
        if not bool(step.accepted):
            return at, self._stuck(value, float(step.promised))
        step_count = at.step + step.count
        return at._replace(current=step.x, memory=step.memory, step=step_count), None

    def _check_finite(self, at: Progress, value: float, norm: float | None) -> None:
        if math.isfinite(value) and (norm is None or math.isfinite(norm)):
            return
        seen = f"The objective is {value}" + (
            "" if norm is None else f" and the gradient norm {norm}"
        )
        raise FitError(
            f"{seen} at step {at.step}. Data or start with NaN, scales of the start that overflow "
            f"{self.problem.dtype}, or too long steps of a first-order method (lower learning_rate or "
            "raise batch_size) are the usual causes. error.result has the last good point.",
            self.result(at._replace(current=at.x), StopReason.NOT_FINITE),
        )

    def _answered(self, step: int, value: float, norm: float | None) -> StopReason | None:
        first = step == 0
        if self.problem.ridge is None and value <= self.eps**2 * self.scale:
            return StopReason.RESIDUAL_ZERO_AT_START if first else StopReason.RESIDUAL_ZERO
        if norm == 0:
            return StopReason.GRADIENT_ZERO_AT_START if first else StopReason.GRADIENT_ZERO
        return None

    def _stuck(self, value: float, promised: float) -> StopReason:
        """Why no step goes down: all that is left is rounding, or the point is a poor one."""
        rounding = _ROUNDING * self.eps
        if self.problem.ridge is None and _relative(value, self.scale) <= rounding:
            return StopReason.RESIDUAL_ZERO
        return StopReason.ROUNDING if promised <= rounding * value else StopReason.LINE_SEARCH

    def _record(self, step: int, x: TuckerTensorTrain, look: Look, norm: float | None) -> Record:
        misfit = _relative(float(_misfit(self.problem, x, look.objective)), self.scale)
        error = None
        if self.held_out is not None:
            error = _relative(float(_objective(self.held_out, x)), self.held_out_scale)
        return Record(
            step,
            self.units.objective_out(float(look.objective)),
            None if norm is None else self.units.gradient_out(norm),
            misfit,
            error,
        )

    def _seen(
        self, at: Progress, record: Record, x: TuckerTensorTrain
    ) -> tuple[Progress, StopReason | None]:
        """The record kept and shown, and whether whoever saw it has seen enough."""
        measure = lambda r: r.objective if self.patience is None else r.validation  # noqa: E731
        if all(measure(record) <= measure(old) for old in at.history):
            at = at._replace(x=x, best=len(at.history))
        at = at._replace(history=(*at.history, record))
        if self.watch.progress and jax.process_index() == 0:
            print(record)
        if self.watch.callback is not None and self.watch.callback(record, self.tensor(x)):
            return at, StopReason.CALLBACK
        if self.patience is not None and len(at.history) - 1 - at.best >= self.patience:
            return at, StopReason.VALIDATION
        return at, None


def _relative(half_square: float, scale: float) -> float:
    """Size of a residual relative to that of the data; both are halves of squares."""
    if math.isnan(half_square):
        return math.inf
    if scale == 0:
        return math.inf if half_square else 0.0
    return math.sqrt(half_square / scale)


@jax.jit
def _misfit(problem: LeastSquares, x: TuckerTensorTrain, objective: Array) -> Array:
    return problem.misfit(x, objective)


@jax.jit
def _data_square(problem: LeastSquares) -> Array:
    return problem.data_square()

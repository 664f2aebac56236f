"""What a fit returns, on disk and in memory."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

import memory
from t3._fit.outcome import StopReason
from t3._fit.record import Record
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import is_packed


class FitState(NamedTuple):
    """All it takes to go on with a fit.

    Attributes:
        current: last point.
        memory: of the method.
        step: steps taken.
        best: position in the history of the point that is the result.
        fingerprint: of what was fitted, and how; see `t3.fit`.
    """

    current: TuckerTensorTrain
    memory: Any
    step: int = 0
    best: int = 0
    fingerprint: dict[str, str] | None = None


class FitResult(NamedTuple):
    """Outcome of `t3.fit`.

    Attributes:
        x: best point: least objective, or least validation error where patience was asked for.
        history: a `Record` for each point looked at.
        reason: why the fit stopped; ``reason.advice`` says what to do.
        state: all it takes to go on: ``t3.fit(..., resume=result)``.
    """

    x: TuckerTensorTrain
    history: tuple[Record, ...]
    reason: StopReason
    state: FitState

    @property
    def current(self) -> TuckerTensorTrain:
        """Last point."""
        return self.state.current

    @property
    def memory(self) -> Any:
        """Of the method."""
        return self.state.memory

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.state.step

    @property
    def best(self) -> int:
        """Position in the history of `x`."""
        return self.state.best

    @property
    def converged(self) -> bool:
        """Whether the method stopped because there was nothing left to gain.

        True where the gradient fell below its tolerance or is zero, the residual is zero, the
        objective cannot fall by more than it is rounded, or (mc_sgd) stopped falling. False at the
        limit of steps, when stopped by a callback, an interrupt or a validation error, when the line
        search failed, where the gradient of the start was zero (no step leads away from there), and
        where `x` is no better than zero.
        """
        return self.reason.converged and not self.useless

    @property
    def useless(self) -> bool:
        """Whether `x` explains the data, or those held out, no better than zero does."""
        if not self.history:
            return False
        best = self.history[self.best]
        return best.misfit >= 1 or (best.validation is not None and best.validation >= 1)

    @property
    def objective(self) -> float:
        """At `x`; NaN before the first point was looked at."""
        return self.history[self.best].objective if self.history else math.nan

    @property
    def relative_misfit(self) -> float:
        """``|w (samples(x) - data)| / |w data|`` at `x`; NaN before the first look."""
        return self.history[self.best].misfit if self.history else math.nan

    def save(self, path: Any) -> None:
        """Write to an ``.npz`` file. `load` and ``t3.fit(..., resume=result)`` go on from it.

        A file that is there already is replaced at once, when the new one is complete.
        """
        about, arrays = self.parts()
        memory.save_arrays(path, "fit result", arrays, about)

    @staticmethod
    def load(path: Any) -> "FitResult":
        """Read what `save` wrote.

        Raises:
            memory.FileError: a file that holds none, or not all of one.
        """
        arrays, about = memory.load_arrays(path, "fit result")
        return FitResult.of_parts(about, arrays)

    def parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What can be written as text, and the arrays by name."""
        arrays = {}
        for name, x in (("x", self.x), ("current", self.current)):
            ragged = x.unpack()
            for i, (b, g) in enumerate(zip(ragged.tucker_cores, ragged.tt_cores, strict=True)):
                arrays[f"{name}_tucker_{i}"] = np.asarray(b)
                arrays[f"{name}_train_{i}"] = np.asarray(g)
        for i, leaf in enumerate(jax.tree.leaves(self.memory)):
            arrays[f"memory_{i}"] = np.asarray(leaf)
        about = {
            "history": self.history,
            "reason": self.reason,
            "step": self.step,
            "best": self.best,
            "packed": is_packed(self.x.tucker_cores),
            "modes": self.x.ndim,
            "fingerprint": self.state.fingerprint,
        }
        return about, arrays

    @staticmethod
    def of_parts(about: dict[str, Any], arrays: dict[str, Any]) -> "FitResult":
        """What `parts` took apart."""
        points = []
        for name in ("x", "current"):
            x = TuckerTensorTrain(
                tuple(arrays[f"{name}_tucker_{i}"] for i in range(about["modes"])),
                tuple(arrays[f"{name}_train_{i}"] for i in range(about["modes"])),
            )
            points.append(x.pack() if about["packed"] else x)
        count = sum(name.startswith("memory_") for name in arrays)
        kept = [arrays[f"memory_{i}"] for i in range(count)]
        history = tuple(Record(*record) for record in about["history"])
        x, current = points
        state = FitState(current, kept, about["step"], about["best"], about["fingerprint"])
        return FitResult(x, history, StopReason(about["reason"]), state)


class FitError(FloatingPointError):
    """The objective of a fit is infinite or NaN.

    Attributes:
        result: the fit up to the last good point.
    """

    def __init__(self, message: str, result: FitResult):
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.result)


class UselessFitWarning(UserWarning):
    """A fit explains its data, or those held out, no better than the zero tensor does."""

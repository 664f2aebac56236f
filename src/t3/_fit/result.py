"""What a fit returns, on disk and in memory."""

import json
import math
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from t3._tensor.format import TuckerTensorTrain
from t3._tensor.packing import is_packed

# Reasons that say that the point is an answer, not merely the last one there was time for.
CONVERGED = frozenset(
    {
        "gradient tolerance reached",
        "gradient is zero",
        "residual is zero at the start",
        "residual is zero to rounding",
        "objective is as low as its rounding can tell",
        "objective stopped falling",
    }
)


class Record(NamedTuple):
    """A point that a fit went through.

    Attributes:
        step: steps before it.
        objective: there.
        gradient_norm: there, or None where it is not computed.
        misfit: ``|w (samples(x) - data)| / |w data|``, infinite where the data are zero and the
            samples are not.
        validation: the same of the held-out data, or None.
        detail: of the step taken from there: Gauss-Newton ``products`` and step ``length``.
    """

    step: int
    objective: float
    gradient_norm: float | None = None
    misfit: float = math.nan
    validation: float | None = None
    detail: dict[str, Any] = {}  # noqa: RUF012

    def __str__(self) -> str:
        parts = [f"step {self.step}", f"objective {self.objective:.6g}"]
        parts.append(f"misfit {self.misfit:.3g}")
        if self.gradient_norm is not None:
            parts.append(f"gradient {self.gradient_norm:.3g}")
        if self.validation is not None:
            parts.append(f"validation {self.validation:.3g}")
        return "  ".join([*parts, *(f"{name} {value}" for name, value in self.detail.items())])


class FitResult(NamedTuple):
    """Outcome of `t3.fit`, and all it takes to go on.

    Attributes:
        x: best point: least objective, or least validation error where patience was asked for.
        history: a `Record` for each point looked at.
        reason: why the fit stopped, in words; see `converged`.
        current: last point.
        memory: state of the method.
        step: steps taken.
        best: position in the history of `x`.
    """

    x: TuckerTensorTrain
    history: tuple[Record, ...]
    reason: str
    current: TuckerTensorTrain
    memory: Any
    step: int = 0
    best: int = 0

    @property
    def converged(self) -> bool:
        """Whether the method stopped because there was nothing left to gain.

        True where the gradient fell below its tolerance or is zero, the residual is zero, the
        objective cannot fall by more than it is rounded, or (mc_sgd) stopped falling. False at the
        limit of steps, when stopped by a callback, an interrupt or a validation error, when the line
        search failed, and where the gradient of the start was zero: no step leads away from there.
        """
        return self.reason in CONVERGED

    @property
    def objective(self) -> float:
        """At `x`; NaN before the first point was looked at."""
        return self.history[self.best].objective if self.history else math.nan

    @property
    def relative_misfit(self) -> float:
        """``|w (samples(x) - data)| / |w data|`` at `x`; NaN before the first look."""
        return self.history[self.best].misfit if self.history else math.nan

    def save(self, path: str | os.PathLike) -> None:
        """Write to an ``.npz`` file. `load` and ``t3.fit(..., resume=result)`` go on from it.

        A file that is there already is replaced at once, when the new one is complete.
        """
        arrays = {}
        for name, x in (("x", self.x), ("current", self.current)):
            ragged = x.unpack()
            for i, (b, g) in enumerate(zip(ragged.tucker_cores, ragged.tt_cores, strict=True)):
                arrays[f"{name}_tucker_{i}"], arrays[f"{name}_train_{i}"] = (
                    np.asarray(b),
                    np.asarray(g),
                )
        for i, leaf in enumerate(jax.tree.leaves(self.memory)):
            arrays[f"memory_{i}"] = np.asarray(leaf)
        about = {
            "history": self.history,
            "reason": self.reason,
            "step": self.step,
            "best": self.best,
            "packed": is_packed(self.x.tucker_cores),
            "modes": self.x.ndim,
        }
        part = f"{os.fspath(path)}.part"
        with open(part, "wb") as file:
            np.savez(file, about=np.asarray(json.dumps(about)), **arrays)
        os.replace(part, path)

    @staticmethod
    def load(path: str | os.PathLike) -> "FitResult":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            points = []
            for name in ("x", "current"):
                x = TuckerTensorTrain(
                    tuple(file[f"{name}_tucker_{i}"] for i in range(about["modes"])),
                    tuple(file[f"{name}_train_{i}"] for i in range(about["modes"])),
                )
                points.append(x.pack() if about["packed"] else x)
            count = sum(name.startswith("memory_") for name in file.files)
            memory = [file[f"memory_{i}"] for i in range(count)]
        history = tuple(Record(*record) for record in about["history"])
        x, current = points
        return FitResult(x, history, about["reason"], current, memory, about["step"], about["best"])


class FitError(FloatingPointError):
    """The objective of a fit is infinite or NaN.

    Attributes:
        result: the fit up to the last good point.
    """

    def __init__(self, message: str, result: FitResult):
        super().__init__(message)
        self.result = result

"""What a fit returns, on disk and in memory."""

import json
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from ._format import TuckerTensorTrain
from ._packing import is_packed


class Record(NamedTuple):
    """A point that a fit went through.

    Attributes:
        step: steps before it.
        objective: there.
        gradient_norm: there, or None where it is not computed.
        validation: relative error on the held-out data, or None.
        detail: of the step taken from there: Gauss-Newton ``products`` and step ``length``.
    """

    step: int
    objective: float
    gradient_norm: float | None = None
    validation: float | None = None
    detail: dict[str, Any] = {}  # noqa: RUF012

    def __str__(self) -> str:
        parts = [f"step {self.step}", f"objective {self.objective:.6g}"]
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
        reason: why the fit stopped.
        current: last point.
        memory: state of the method.
        step: steps taken.
    """

    x: TuckerTensorTrain
    history: tuple[Record, ...]
    reason: str
    current: TuckerTensorTrain
    memory: Any
    step: int = 0

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
        return FitResult(points[0], history, about["reason"], points[1], memory, about["step"])


class FitError(FloatingPointError):
    """The objective of a fit is infinite or NaN.

    Attributes:
        result: the fit up to the last good point.
    """

    def __init__(self, message: str, result: FitResult):
        super().__init__(message)
        self.result = result

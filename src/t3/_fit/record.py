"""What a fit writes down of a point that it went through."""

import math
from typing import Any, NamedTuple


class _Record(NamedTuple):
    step: int
    objective: float
    gradient_norm: float | None
    misfit: float
    validation: float | None
    detail: dict[str, Any]


class Record(_Record):
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

    __slots__ = ()

    def __new__(
        cls,
        step: int,
        objective: float,
        gradient_norm: float | None = None,
        misfit: float = math.nan,
        validation: float | None = None,
        detail: dict[str, Any] | None = None,
    ) -> "Record":
        detail = {} if detail is None else detail
        return super().__new__(cls, step, objective, gradient_norm, misfit, validation, detail)

    def __str__(self) -> str:
        parts = [f"step {self.step}", f"objective {self.objective:.6g}"]
        parts.append(f"misfit {self.misfit:.3g}")
        if self.gradient_norm is not None:
            parts.append(f"gradient {self.gradient_norm:.3g}")
        if self.validation is not None:
            parts.append(f"validation {self.validation:.3g}")
        return "  ".join([*parts, *(f"{name} {value}" for name, value in self.detail.items())])

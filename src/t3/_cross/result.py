"""What cross interpolation returns."""

import enum
from typing import NamedTuple

from t3._tensor.format import TuckerTensorTrain


class CrossOutcome(enum.StrEnum):
    """Why `t3.cross` stopped: a text, and what to do about it.

    Members are strings: ``str(outcome)`` and comparisons give the text.

    Attributes:
        advice: what to do next.
    """

    advice: str

    def __new__(cls, text: str, advice: str) -> "CrossOutcome":
        member = str.__new__(cls, text)
        member._value_ = text
        member.advice = advice
        return member

    WITHIN_TOLERANCE = (
        "error at fresh entries is within the tolerance",
        "Nothing to do; x.round(tolerance=...) may find smaller ranks.",
    )
    BUDGET_SPENT = "budget of evaluations is spent", "Give a larger budget, or a larger tolerance."
    RANKS_REACHED = "max_ranks reached", "Give larger max_ranks, or a larger tolerance."
    AT_ROUNDING = (
        "no pivot is left above the rounding of the function's values",
        "Return float64 from the function or take a larger tolerance; a function with features of "
        "few entries wants more num_checks.",
    )


class CrossRecord(NamedTuple):
    """One round of `t3.cross`.

    Attributes:
        evaluations: of the function so far.
        error: relative, at the random entries seen so far.
        tucker_ranks, tt_ranks: at that point.
    """

    evaluations: int
    error: float
    tucker_ranks: tuple[int, ...]
    tt_ranks: tuple[int, ...]


class CrossResult(NamedTuple):
    """A tensor interpolated from chosen entries of a function.

    Attributes:
        x: the tensor, in the dtype of the function's values.
        error: root mean squared error at fresh random entries, relative to the root mean square of
            the function there.
        evaluations: distinct entries evaluated, those that only checked the error included.
        calls: of the function.
        outcome: why it stopped; ``outcome.advice`` says what to do.
        history: a `CrossRecord` for each round.
    """

    x: TuckerTensorTrain
    error: float
    evaluations: int
    calls: int
    outcome: CrossOutcome
    history: tuple[CrossRecord, ...]

    @property
    def converged(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.outcome is CrossOutcome.WITHIN_TOLERANCE

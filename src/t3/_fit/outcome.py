"""Why a fit stopped."""

import enum


class StopReason(enum.StrEnum):
    """Why a fit stopped: a text, and what to do about it.

    Members are strings: ``str(reason)`` and comparisons give the text.

    Attributes:
        converged: whether the point is an answer, not merely the last one there was time for.
        advice: what to do next.
    """

    converged: bool
    advice: str

    def __new__(cls, text: str, converged: bool, advice: str) -> "StopReason":
        member = str.__new__(cls, text)
        member._value_ = text
        member.converged, member.advice = converged, advice
        return member

    GRADIENT_TOLERANCE = (
        "gradient tolerance reached",
        True,
        "Nothing to do; a smaller gradient_tolerance fits more closely.",
    )
    GRADIENT_ZERO = "gradient is zero", True, "Nothing to do: no step leads down from here."
    RESIDUAL_ZERO_AT_START = (
        "residual is zero at the start",
        True,
        "Nothing to do: the start explains the data.",
    )
    RESIDUAL_ZERO = (
        "residual is zero to rounding",
        True,
        "Nothing to do: the data are explained to rounding.",
    )
    ROUNDING = (
        "objective is as low as its rounding can tell",
        True,
        "Nothing to do in this precision; float64 tells smaller changes.",
    )
    PLATEAU = (
        "objective stopped falling",
        True,
        "Larger minibatches (batch_size) lower the noise at which it stops; newton_cg has none.",
    )
    STEP_LIMIT = "step limit reached", False, "Go on with resume= and a larger max_steps."
    LINE_SEARCH = (
        "line search found no decrease",
        False,
        "Where the misfit is large, start elsewhere: t3.fit(None, ...) makes a start from the data.",
    )
    GRADIENT_ZERO_AT_START = (
        "gradient is zero at the start",
        False,
        "No step leads away from this start: take another, or the manifold where it is zero.",
    )
    CALLBACK = "stopped by the callback", False, "Go on with resume=."
    INTERRUPTED = "interrupted", False, "Go on with resume=."
    VALIDATION = (
        "validation error stopped falling",
        False,
        "The result is the point of least validation error; patience= waits longer.",
    )
    NOT_FINITE = (
        "objective not finite",
        False,
        "Look for NaN in data and start; shorten the steps of a first-order method.",
    )
    TOLERANCE = (
        "validation error is below the tolerance",
        True,
        "Nothing to do; a smaller tolerance= goes on.",
    )
    STAGE_LIMIT = "stage limit reached", False, "Go on with resume= and a larger max_stages."
    RANK_LIMIT = "largest ranks reached", True, "Allow more by max_ranks=, where it was given."
    DATA = (
        "too few data for larger ranks",
        False,
        "Measure more: result.missing says how many more the next ranks would need.",
    )
    NOT_FINISHED = "not finished", False, "A checkpoint of a fit that was going on: resume it."

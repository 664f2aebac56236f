"""Warnings that point at the user's own line."""

import sys
import warnings

# Through these a user's call reaches the function that warns.
_BETWEEN = ("memory", "kernels", "svgd", "t3", "equinox", "jax", "jaxtyping")


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warns at the line from which these packages were called, however deep inside of them."""
    level, frame = 1, sys._getframe()
    while frame.f_back and _is_between(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_between(frame) -> bool:
    package = frame.f_globals.get("__name__", "").split(".")[0]
    return package in _BETWEEN or frame.f_code.co_filename.startswith("<@beartype")

"""The samplings of `t3.sample` and `t3.sample_transpose` as functions of their own."""

from typing import Any

import jax

from t3._sampling.apply import Apply
from t3._sampling.entries import Entries
from t3._sampling.probe import Probe
from t3._sampling.probes import Modes, checked_order
from t3._sampling.sample import sample, sample_transpose
from t3._tensor.network import Network, T3Variations


def probe_derivatives(x: Any, ww: Modes, pp: Modes | None, order: int, **options: Any) -> Modes:
    """``sample(x, Probe(ww, pp, order))``: d arrays ``(K + 1, *W, N_i)``, or stacked."""
    return sample(x, Probe(ww, pp, checked_order(order)), **options)


def apply_derivatives(x: Any, ww: Modes, pp: Modes | None, order: int, **options: Any) -> jax.Array:
    """``sample(x, Apply(ww, pp, order))``: an array ``(K + 1, *W)``."""
    return sample(x, Apply(ww, pp, checked_order(order)), **options)


def entries_derivatives(
    x: Any, index: Any, pp: Modes | None, order: int, **options: Any
) -> jax.Array:
    """``sample(x, Entries(index, pp, order))``: an array ``(K + 1, *W)``."""
    return sample(x, Entries(index, pp, checked_order(order)), **options)


def probe_derivatives_transpose(
    residual: Modes, ww: Modes, pp: Modes | None, frame: Network, order: int, **options: Any
) -> T3Variations:
    """``sample_transpose(residual, Probe(ww, pp, order), frame)``."""
    return sample_transpose(residual, Probe(ww, pp, checked_order(order)), frame, **options)


def apply_derivatives_transpose(
    residual: Any, ww: Modes, pp: Modes | None, frame: Network, order: int, **options: Any
) -> T3Variations:
    """``sample_transpose(residual, Apply(ww, pp, order), frame)``."""
    return sample_transpose(residual, Apply(ww, pp, checked_order(order)), frame, **options)


def entries_derivatives_transpose(
    residual: Any, index: Any, pp: Modes | None, frame: Network, order: int, **options: Any
) -> T3Variations:
    """``sample_transpose(residual, Entries(index, pp, order), frame)``."""
    return sample_transpose(residual, Entries(index, pp, checked_order(order)), frame, **options)


def probe_transpose(residual: Modes, ww: Modes, frame: Network, **options: Any) -> T3Variations:
    """``sample_transpose(residual, Probe(ww), frame)``."""
    return sample_transpose(residual, Probe(ww), frame, **options)


def apply_transpose(residual: Any, ww: Modes, frame: Network, **options: Any) -> T3Variations:
    """``sample_transpose(residual, Apply(ww), frame)``."""
    return sample_transpose(residual, Apply(ww), frame, **options)


def entries_transpose(residual: Any, index: Any, frame: Network, **options: Any) -> T3Variations:
    """``sample_transpose(residual, Entries(index), frame)``."""
    return sample_transpose(residual, Entries(index), frame, **options)


# The transposes take ``mesh=`` and ``axis=``; this name says so.
sharded_probe_derivatives_transpose = probe_derivatives_transpose

"""Stein variational gradient descent: exact and tree updates, samplers, diagnostics."""

from svgd import targets
from svgd._bandwidth import (
    LearnedBandwidth,
    learn_bandwidth,
    median_bandwidth,
    whitened_bandwidth,
)
from svgd._diagnostics import ksd, ksd_squared, mmd_squared
from svgd._partition import Partition
from svgd._sampler import SVGD
from svgd._state import NonFiniteError, SVGDState
from svgd._update import SteinUpdate
from svgd._whitening import Whitening

__all__ = [
    "SVGD",
    "LearnedBandwidth",
    "NonFiniteError",
    "Partition",
    "SVGDState",
    "SteinUpdate",
    "Whitening",
    "ksd",
    "ksd_squared",
    "learn_bandwidth",
    "median_bandwidth",
    "mmd_squared",
    "targets",
    "whitened_bandwidth",
]

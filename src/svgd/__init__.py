"""Stein variational gradient descent: exact and tree updates, samplers, diagnostics."""

from memory import __version__ as __version__
from svgd import targets
from svgd._bandwidth import (
    LearnedBandwidth,
    learn_bandwidth,
    median_bandwidth,
    whitened_bandwidth,
)
from svgd._diagnostics import ksd, ksd_squared, mmd_squared
from svgd._run.sampler import SVGD
from svgd._run.state import NonFiniteError, SVGDState
from svgd._run.whitening import Whitening
from svgd._sums.abstract import AbstractSum, Counts, Plan, Problem
from svgd._sums.choice import UnusedParameterWarning
from svgd._sums.partition import Partition
from svgd._update import SteinUpdate

__all__ = [
    "SVGD",
    "AbstractSum",
    "Counts",
    "LearnedBandwidth",
    "NonFiniteError",
    "Partition",
    "Plan",
    "Problem",
    "SVGDState",
    "SteinUpdate",
    "UnusedParameterWarning",
    "Whitening",
    "ksd",
    "ksd_squared",
    "learn_bandwidth",
    "median_bandwidth",
    "mmd_squared",
    "targets",
    "whitened_bandwidth",
]

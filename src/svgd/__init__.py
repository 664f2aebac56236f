"""Stein variational gradient descent: exact and tree updates, samplers, diagnostics."""

from memory import __version__ as __version__
from svgd import targets
from svgd._bandwidth import (
    LearnedBandwidth,
    learn_bandwidth,
    median_bandwidth,
    whitened_bandwidth,
)
from svgd._diagnose.diagnosis import Diagnosis, diagnose
from svgd._diagnose.refine import Refinement, refine
from svgd._diagnose.verdict import Reason, Verdict
from svgd._diagnostics import ksd, ksd_squared, mmd_squared
from svgd._run.checks import RunWarning
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
    "Diagnosis",
    "LearnedBandwidth",
    "NonFiniteError",
    "Partition",
    "Plan",
    "Problem",
    "Reason",
    "Refinement",
    "RunWarning",
    "SVGDState",
    "SteinUpdate",
    "UnusedParameterWarning",
    "Verdict",
    "Whitening",
    "diagnose",
    "ksd",
    "ksd_squared",
    "learn_bandwidth",
    "median_bandwidth",
    "mmd_squared",
    "refine",
    "targets",
    "whitened_bandwidth",
]

"""Tucker tensor trains: format, manifold, probe derivatives and their transposes, fitting."""

from memory import __version__ as __version__
from t3 import _oracle as oracle
from t3 import basis as basis
from t3._cross.cross import cross
from t3._cross.result import CrossOutcome, CrossRecord, CrossResult
from t3._fit.checkpoint import CheckpointError
from t3._fit.continuation import Continuation, fit_growing_ranks
from t3._fit.enlarge import enlarge
from t3._fit.fit import fit
from t3._fit.geometry import Corewise, Geometry, Manifold
from t3._fit.methods import MCSGD, Adam, GradientDescent, Look, Method, NewtonCG, Step
from t3._fit.objective import Objective
from t3._fit.options import Watch
from t3._fit.outcome import StopReason
from t3._fit.problem import LeastSquares, least_squares
from t3._fit.record import Record
from t3._fit.result import FitError, FitResult, FitState, UselessFitWarning
from t3._fit.start import FromData
from t3._fit.validation import HeldOut, SplitOff, Validation
from t3._sampling.apply import Apply
from t3._sampling.chunk_size import estimate_chunk_size, max_chunk_size_within
from t3._sampling.entries import Entries
from t3._sampling.functions import (
    apply_derivatives,
    apply_derivatives_transpose,
    apply_transpose,
    entries_derivatives,
    entries_derivatives_transpose,
    entries_transpose,
    probe_derivatives,
    probe_derivatives_transpose,
    probe_transpose,
    sharded_probe_derivatives_transpose,
)
from t3._sampling.probe import Probe
from t3._sampling.probes import AmbiguousIndexWarning, probe_shards
from t3._sampling.sample import sample, sample_transpose
from t3._sampling.sampling import Sampling
from t3._sampling.sharding import ShardedProbesWarning
from t3._tangent.frame import T3Frame, T3Variations
from t3._tangent.tangent import T3Tangent
from t3._tensor.format import TuckerTensorTrain
from t3._tensor.ranks import FrameRanks, T3Ranks

__all__ = [
    "MCSGD",
    "Adam",
    "AmbiguousIndexWarning",
    "Apply",
    "CheckpointError",
    "Continuation",
    "Corewise",
    "CrossOutcome",
    "CrossRecord",
    "CrossResult",
    "Entries",
    "FitError",
    "FitResult",
    "FitState",
    "FrameRanks",
    "FromData",
    "Geometry",
    "GradientDescent",
    "HeldOut",
    "LeastSquares",
    "Look",
    "Manifold",
    "Method",
    "NewtonCG",
    "Objective",
    "Probe",
    "Record",
    "Sampling",
    "ShardedProbesWarning",
    "SplitOff",
    "Step",
    "StopReason",
    "T3Frame",
    "T3Ranks",
    "T3Tangent",
    "T3Variations",
    "TuckerTensorTrain",
    "UselessFitWarning",
    "Validation",
    "Watch",
    "apply_derivatives",
    "apply_derivatives_transpose",
    "apply_transpose",
    "basis",
    "cross",
    "enlarge",
    "entries_derivatives",
    "entries_derivatives_transpose",
    "entries_transpose",
    "estimate_chunk_size",
    "fit",
    "fit_growing_ranks",
    "least_squares",
    "max_chunk_size_within",
    "oracle",
    "probe_derivatives",
    "probe_derivatives_transpose",
    "probe_shards",
    "probe_transpose",
    "sample",
    "sample_transpose",
    "sharded_probe_derivatives_transpose",
]

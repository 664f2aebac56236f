"""Tucker tensor trains: format, manifold, probe derivatives and their transposes, fitting."""

from . import _oracle as oracle
from ._chunk_size import estimate_chunk_size, max_chunk_size_within
from ._continuation import Continuation, enlarge, fit_growing_ranks
from ._fit import fit
from ._fit_result import FitError, FitResult, Record
from ._format import TuckerTensorTrain
from ._frame import T3Frame, T3Variations
from ._probes import probe_shards
from ._problem import LeastSquares, least_squares
from ._ranks import FrameRanks, T3Ranks
from ._samples import Apply, Entries, Probe
from ._sampling import apply_derivatives, entries_derivatives, probe_derivatives
from ._sharding import ShardedProbesWarning, sharded_probe_derivatives_transpose
from ._tangent import T3Tangent
from ._transpose import (
    apply_derivatives_transpose,
    apply_transpose,
    entries_derivatives_transpose,
    entries_transpose,
    probe_derivatives_transpose,
    probe_transpose,
)

__all__ = [
    "Apply",
    "Continuation",
    "Entries",
    "FitError",
    "FitResult",
    "FrameRanks",
    "LeastSquares",
    "Probe",
    "Record",
    "ShardedProbesWarning",
    "T3Frame",
    "T3Ranks",
    "T3Tangent",
    "T3Variations",
    "TuckerTensorTrain",
    "apply_derivatives",
    "apply_derivatives_transpose",
    "apply_transpose",
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
    "sharded_probe_derivatives_transpose",
]

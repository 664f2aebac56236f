"""How much fits, in what pieces, and where: chunked loops, memory estimates, measured choices.

* `map_sum` and `map_concat` run a function over chunks of rows, one chunk live at a time.
* `row_bytes`, `balanced_chunk_size` and `chunk_size_within` find the chunk that fits, from XLA's
  own accounting; `compiled_memory` reports that accounting.
* A `Crossover` is a choice between two ways of doing the same thing by a measured size;
  `crossovers` shows them all, `calibrate` measures them again, `forced` overrides one.
* `available_bytes` is what a device has left; `mesh_axis` checks the axis that work is split over.
"""

from memory._available import available_bytes
from memory._budget import (
    MemoryEstimateWarning,
    MemoryReport,
    balanced_chunk_size,
    chunk_size_within,
    compiled_memory,
    format_bytes,
    row_bytes,
)
from memory._calibration_file import CalibrationWarning
from memory._chunking import map_concat, map_sum
from memory._devices import Devices, mesh_axis
from memory._dispatch import (
    Crossover,
    CrossoverRow,
    CrossoverTable,
    calibrate,
    crossovers,
    forced,
    register,
)
from memory._version import __version__ as __version__

__all__ = [
    "CalibrationWarning",
    "Crossover",
    "CrossoverRow",
    "CrossoverTable",
    "Devices",
    "MemoryEstimateWarning",
    "MemoryReport",
    "available_bytes",
    "balanced_chunk_size",
    "calibrate",
    "chunk_size_within",
    "compiled_memory",
    "crossovers",
    "forced",
    "format_bytes",
    "map_concat",
    "map_sum",
    "mesh_axis",
    "register",
    "row_bytes",
]

"""How much fits, in what pieces, and where: chunked loops, memory estimates, measured choices.

* `map_sum` and `map_concat` run a function over chunks of rows, one chunk live at a time.
* `row_bytes`, `balanced_chunk_size` and `chunk_size_within` find the chunk that fits, from XLA's
  own accounting; `compiled_memory` reports that accounting.
* A `Crossover` is a choice between two ways of doing the same thing by a measured size;
  `crossovers` shows them all, `calibrate` measures them again, `forced` overrides one.
* `available_bytes` is what a device has left; `Devices` are those that share work out.
* `save_arrays` and `load_arrays` keep arrays in files that are whole or not there.
* `checked_floats`, `checked_integer` and `checked_key` take arguments or say what is wrong with them;
  `warn_caller` warns at the user's own line.
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
from memory._checks import checked_floats, checked_integer, checked_key, working_dtype
from memory._chunking import map_concat, map_sum
from memory._crossover.calibration_file import CalibrationWarning
from memory._crossover.choice import (
    Crossover,
    CrossoverRow,
    CrossoverTable,
    calibrate,
    crossovers,
    forced,
    register,
)
from memory._devices import Devices, mesh_axis
from memory._files import (
    FileError,
    PrecisionWarning,
    file_path,
    load_arrays,
    replace_file,
    save_arrays,
)
from memory._version import __version__ as __version__
from memory._warnings import warn_caller

__all__ = [
    "CalibrationWarning",
    "Crossover",
    "CrossoverRow",
    "CrossoverTable",
    "Devices",
    "FileError",
    "MemoryEstimateWarning",
    "MemoryReport",
    "PrecisionWarning",
    "available_bytes",
    "balanced_chunk_size",
    "calibrate",
    "checked_floats",
    "checked_integer",
    "checked_key",
    "chunk_size_within",
    "compiled_memory",
    "crossovers",
    "file_path",
    "forced",
    "format_bytes",
    "load_arrays",
    "map_concat",
    "map_sum",
    "mesh_axis",
    "register",
    "replace_file",
    "row_bytes",
    "save_arrays",
    "warn_caller",
    "working_dtype",
]

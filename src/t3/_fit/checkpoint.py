"""The file that a fit writes itself to."""

import os
import warnings
from typing import Any

import jax

import memory


class CheckpointError(OSError):
    """The last state of a fit could not be written.

    Attributes:
        result: that state: nothing of the fit is lost.
    """

    def __init__(self, message: str, result: Any):
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.result)


class Checkpoint:
    """A file that is written after every step, by the first of many processes.

    A write that fails is warned of, the fit goes on, and the next one tries again.

    Raises:
        ValueError: an empty path, a folder, or one in a folder that is not there.
    """

    def __init__(self, path: str | os.PathLike):
        if not os.fspath(path):
            raise ValueError('checkpoint must name a file, got "".')
        self.path = memory.file_path(path)
        self.failed: OSError | None = None
        if self.path.is_dir() or not self.path.absolute().parent.is_dir():
            what = "is a folder" if self.path.is_dir() else "is in a folder that does not exist"
            raise ValueError(f"checkpoint must name a file that can be written, {path!s} {what}.")

    def write(self, result: Any) -> None:
        if jax.process_index() != 0:
            return
        try:
            result.save(self.path)
        except OSError as error:
            if self.failed is None:
                warnings.warn(
                    f"the checkpoint {self.path} could not be written ({error}). The fit goes on and "
                    "tries again at the next one.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self.failed = error
        else:
            self.failed = None

    def finish(self, result: Any) -> None:
        """Raises CheckpointError when the last write failed."""
        if self.failed is not None:
            raise CheckpointError(
                f"The last state of the fit could not be written to {self.path}: {self.failed}. "
                "error.result holds it; error.result.save(path) writes it elsewhere.",
                result,
            ) from self.failed

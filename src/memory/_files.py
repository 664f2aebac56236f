"""Files of arrays: one format, written whole or not at all, and errors that say what a file is."""

import contextlib
import io
import json
import os
import secrets
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from memory._version import __version__

FilePath = str | bytes | os.PathLike

_FORMAT, _VERSION = "steintrain", 1
_HEADER = "header"


class FileError(ValueError):
    """A file is not what was asked for: the text says which one, what was expected, what was found."""


class PrecisionWarning(UserWarning):
    """Numbers in a file have more digits than JAX keeps as it is set."""


def file_path(path: FilePath) -> Path:
    """A path as given, `~` being the home folder.

    Raises:
        ValueError: on an empty one.
    """
    if not os.fspath(path):
        raise ValueError(f"a file needs a name, got {path!r}")
    return Path(os.fsdecode(path)).expanduser()


def replace_file(path: FilePath, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file beside the old one and puts it in its place when it is complete.

    Whoever reads finds the old file or the new one, never a part, whatever fails, and whoever else
    writes.

    Args:
        path: of the file. A link is followed.
        write: is given the open file.

    Raises:
        OSError: as the system raises it; what was there before still is, and nothing else is left.
    """
    target = Path(os.path.realpath(file_path(path)))
    # A name of its own: two processes may write the same file.
    part = target.with_name(f"{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def save_arrays(where: Any, kind: str, arrays: Mapping[str, Any], about: Any = None) -> None:
    """Writes named arrays, with a header that names what they are.

    Args:
        where: a path, or a file that is open for writing bytes.
        kind: what the file holds, such as "tensor"; `load_arrays` asks for it.
        arrays: NumPy or JAX arrays of any dtype, bfloat16 included.
        about: anything that JSON holds.

    Cost: a copy of the arrays on the host, one at a time.
    """
    held = {name: np.asarray(array) for name, array in arrays.items()}
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "library": __version__,
        "kind": kind,
        "dtypes": {name: array.dtype.name for name, array in held.items()},
        "about": about,
    }
    # NumPy's files know no dtypes but its own: others are kept as their bits.
    bits = {
        name: array if array.dtype.isbuiltin else array.view(f"u{array.dtype.itemsize}")
        for name, array in held.items()
    }

    def write(file: Any) -> None:
        entries: dict[str, Any] = {_HEADER: np.asarray(json.dumps(header)), **bits}
        np.savez(file, **entries)

    if isinstance(where, str | bytes | os.PathLike):
        replace_file(where, write)
    else:
        whole = io.BytesIO()
        write(whole)
        where.write(whole.getvalue())


def load_arrays(where: Any, kind: str) -> tuple[dict[str, np.ndarray], Any]:
    """Reads what `save_arrays` wrote.

    Args:
        where: a path, or a file that is open for reading bytes.
        kind: what is expected.

    Returns:
        The arrays by name, in the dtypes that were written, and what was said about them.

    Raises:
        FileError: on a file that is empty, cut short, of another kind or origin, or written by a later
            version of the format.
        OSError: where there is no such file, or it may not be read.

    Warns:
        PrecisionWarning: on 64-bit numbers where JAX keeps 32 bits.
    """
    is_path = isinstance(where, str | bytes | os.PathLike)
    path = file_path(where) if is_path else None
    name = str(path) if is_path else getattr(where, "name", "the open file")
    wanted = f"{name} is no file of a steintrain {kind}"
    try:
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open(path, "rb")) if path is not None else where
            file = np.load(source, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise FileError(f"{wanted}: it holds one bare array of shape {file.shape}")
            stack.enter_context(file)
            if _HEADER not in file.files:
                some = ", ".join(file.files[:4])
                raise FileError(f"{wanted}: it holds arrays ({some}) without the header")
            header = json.loads(str(file[_HEADER]))
            _check_header(header, kind, wanted)
            arrays = {key: file[key] for key in header["dtypes"]}
    except FileError:
        raise
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError, TypeError) as error:
        size = path.stat().st_size if path is not None else None
        what = "it is empty" if size == 0 else f"cut short, or of another program ({error})"
        raise FileError(f"{wanted}: {what}") from error
    dtypes = {key: jnp.dtype(dtype) for key, dtype in header["dtypes"].items()}
    arrays = {
        key: array if array.dtype == dtypes[key] else array.view(dtypes[key])
        for key, array in arrays.items()
    }
    if not jax.config.read("jax_enable_x64"):
        lost = [key for key, dtype in dtypes.items() if dtype in (np.float64, np.complex128)]
        if lost:
            warnings.warn(
                f"{name} holds 64-bit numbers ({', '.join(lost[:3])}), of which JAX as it is set keeps "
                '32 bits: jax.config.update("jax_enable_x64", True) before reading keeps them all',
                PrecisionWarning,
                stacklevel=3,
            )
    return arrays, header["about"]


def _check_header(header: Any, kind: str, wanted: str) -> None:
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise FileError(f"{wanted}: its header is of another program")
    if header.get("version", 0) > _VERSION:
        raise FileError(
            f"{wanted} that this version reads: steintrain {header.get('library')} wrote it in format "
            f"{header['version']}, and {__version__} reads up to {_VERSION}: install a later one"
        )
    if header.get("kind") != kind:
        raise FileError(f"{wanted}: it holds a {header.get('kind')}")

"""Calibrated thresholds: in the process, and in one file of the user's cache folder."""

import contextlib
import dataclasses
import json
import math
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from memory._files import file_path, replace_file

_FORMAT = "steintrain-crossovers-1"


class CalibrationWarning(UserWarning):
    """A calibration file cannot be read or written; the library goes on without it."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One calibrated threshold and the (size, seconds below, seconds above) that it rests on."""

    threshold: float
    table: list[tuple[int, float, float]]


_active: dict[str, Measured] | None = None


def thresholds() -> Mapping[str, Measured]:
    """The calibrated thresholds of this process; the first call reads the file."""
    global _active
    if _active is None:
        _active = _read(path())
    return _active


def forget() -> None:
    """Makes the next call of `thresholds` read the file again."""
    global _active
    _active = None


def keep(measured: Mapping[str, Measured]) -> None:
    """Puts thresholds in force and merges them into the file."""
    if not measured:
        return
    global _active
    _active = {**thresholds(), **measured}
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            # Another process may have written meanwhile: its thresholds stay.
            _write(target, {**_read(target), **measured})
    except OSError as error:
        warnings.warn(
            f"the calibration cannot be kept in {target} ({error}); it lasts for this process",
            CalibrationWarning,
            stacklevel=3,
        )


def path() -> Path:
    """The file for this kind of device and processor and this version of JAX."""
    device = jax.devices()[0]
    parts = [device.platform, device.device_kind]
    if device.platform == "cpu":
        # Every processor calls itself "cpu", and a home folder may serve several machines.
        parts += [platform.machine(), f"{os.cpu_count()}cores"]
    name = "-".join(dict.fromkeys(parts)) + f"-jax{jax.__version__}"
    return _folder() / (re.sub(r"[^A-Za-z0-9.]+", "-", name).lower() + ".json")


def _folder() -> Path:
    chosen = os.environ.get("STEINTRAIN_CACHE_DIR")
    if chosen:
        return file_path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "steintrain"


def _read(source: Path) -> dict[str, Measured]:
    try:
        text = source.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        return _ignore(source, error)
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {_FORMAT!r}")
        return {str(name): _measured(entry) for name, entry in content["thresholds"].items()}
    except (
        ArithmeticError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        return _ignore(source, error)


def _measured(entry) -> Measured:
    threshold = float(entry["threshold"])
    if math.isnan(threshold) or threshold < 0:
        raise ValueError(f"a threshold of {threshold}")
    table = [(int(size), float(below), float(above)) for size, below, above in entry["table"]]
    return Measured(threshold=threshold, table=table)


def _ignore(source: Path, error: Exception) -> dict[str, Measured]:
    warnings.warn(
        f"ignoring {source}, which is no calibration of this library "
        f"({type(error).__name__}: {error}); memory.calibrate() replaces it",
        CalibrationWarning,
        stacklevel=2,
    )
    return {}


def _write(target: Path, measured: Mapping[str, Measured]) -> None:
    content = {
        "format": _FORMAT,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "thresholds": {name: dataclasses.asdict(entry) for name, entry in measured.items()},
    }
    text = json.dumps(content, indent=1)
    replace_file(target, lambda file: file.write(text.encode()))


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Holds an exclusive lock where the system has them; renaming keeps the file whole anyway."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

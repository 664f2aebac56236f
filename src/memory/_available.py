"""How much memory a device has left."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jax

# Files of a control group by version: its limit, what it uses, and, within that, file caches that
# are dropped when memory is needed.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def available_bytes(device: Any = None) -> int | None:
    """Bytes that can still be allocated on a device, or None where nobody says.

    Args:
        device: a `jax.Device`; default the first one of this process.

    Accelerators report it themselves. For the processor it is what the machine has free, within the
    limits of the control group that the process runs in and of those around it; caches that the
    system drops when memory is needed count as free. All processor devices of a machine share it.
    """
    device = jax.local_devices()[0] if device is None else device
    statistics = device.memory_stats() or {}
    if "bytes_limit" in statistics:
        return max(0, statistics["bytes_limit"] - statistics.get("bytes_in_use", 0))
    if device.platform != "cpu":
        return None
    return min((*_left_on_machine(), *_left_in_groups()), default=None)


def _left_on_machine(root: Path = Path("/")) -> Iterator[int]:
    with contextlib.suppress(OSError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        yield int(line.split()[1]) * 1024
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        yield os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_in_groups(root: Path = Path("/")) -> Iterator[int]:
    """Of each control group with a limit that holds this process, from its own up to the outermost.

    A container may see the path of its group as the machine names it, but the group itself at the
    top: folders that are not there are passed over.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, files = root / "sys/fs/cgroup", _VERSION_2
        elif "memory" in controllers.split(","):
            top, files = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # a limit may be the word "max"
                yield _left_in_group(top / group, *files)


def _left_in_group(folder: Path, limit: str, used: str, cached: str) -> int:
    left = int((folder / limit).read_text()) - int((folder / used).read_text())
    with contextlib.suppress(OSError):
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        left += int(counts.get(cached, 0))
    return max(0, left)

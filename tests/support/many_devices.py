"""Programs on many devices, each in a process of its own: the device count is fixed at its start."""

import json
import os
import subprocess
import sys
from typing import Any

# A guard against programs that never end, and no bound on slow machines: the longest takes a minute.
_TIME_LIMIT = 3000


def run_on_devices(program: str, count: int, *arguments: str) -> Any:
    """Runs a Python program on `count` of the host's devices; what the last line it prints holds.

    Args:
        program: source text, which prints JSON last. It finds what a test finds: the packages, the
            modules of `tests/support`, the compiler options of the tests.
        count: how many devices JAX sees.
        arguments: `sys.argv[1:]` of the program.

    Raises:
        AssertionError: with the end of its error output, when the program fails.
    """
    flags = [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={count}"]
    environment = {
        **os.environ,
        "XLA_FLAGS": " ".join(flags).strip(),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])

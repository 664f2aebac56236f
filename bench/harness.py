"""How a case is timed, what a row holds, and what the machine can do at best.

A benchmark file in this folder registers generators of rows:

    from bench import harness

    @harness.case("svgd.exact")
    def exact(smoke: bool):
        for n in (64,) if smoke else (1_000, 10_000, 100_000):
            x = ...
            yield harness.row(
                n=n, dtype="float32", stage="forward",        # any number of parameters
                peer="ours", timing=harness.measure(update, x, s),
                error=1e-7, against="broadcast form in float64",
                work={"exponentials": n * n}, note="",
            )
            yield harness.peer_row("pykeops", lambda: run_pykeops(n), n=n, dtype="float32")

The case's name starts with the package that it is about. `stage` is `"forward"` or `"gradient"`
(value and gradient) where a case has both; `compare` reads it. `smoke` asks for sizes that take
no time, for the tests. A case that raises becomes a row that says so, and the others still run.

Every time is of work that was waited for, after a warm-up, with compilation apart.
"""

import dataclasses
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

RESULTS = Path(__file__).parent / "results"

# Runs go on until they have taken this long together, so that a job of microseconds is timed over
# many; a job of seconds is run `repeats` times.
_MIN_TOTAL_SECONDS = 0.1
_MAX_RUNS = 200


@dataclasses.dataclass(frozen=True)
class Timing:
    """What running one job took.

    Attributes:
        compile_seconds: tracing and compilation; for a job that is not jitted, how much longer the
            first call took than the fastest.
        min_seconds: the fastest run, the figure that ratios are made of.
        median_seconds: the median run.
        spread: (slowest - fastest) / median.
        scratch_bytes: XLA's peak scratch of the compiled program; None when not jitted.
        runs: how many were timed.
    """

    compile_seconds: float | None
    min_seconds: float
    median_seconds: float
    spread: float
    scratch_bytes: int | None
    runs: int


def measure(fn: Callable, *args: Any, repeats: int = 5, jit: bool = True) -> Timing:
    """Times `fn(*args)`.

    Args:
        fn: the job. Jitted and compiled ahead of time unless it is already (has `.lower`).
        *args: arrays; use `functools.partial` for anything else.
        repeats: runs at least; short jobs are run more often.
        jit: False for a job that works on the host or that jits by itself; its scratch is unknown.
    """
    return paired({"": fn}, *args, repeats=repeats, jit=jit)[""]


def paired(
    fns: Mapping[Any, Callable], *args: Any, repeats: int = 5, jit: bool = True
) -> dict[Any, Timing]:
    """Times alternatives of one job in turns, so that a busy moment of the machine hits them all.

    Ratios are to be taken of the minima of one call of this function.

    Args:
        fns: the alternatives by name, each called with `*args`.
        *args, repeats, jit: as in `measure`.
    """
    prepared = {name: _prepare(fn, args, jit) for name, fn in fns.items()}
    firsts = {name: _timed(run, args) for name, (run, _, _) in prepared.items()}
    seconds: dict[Any, list[float]] = {name: [] for name in fns}
    while len(next(iter(seconds.values()))) < _MAX_RUNS:
        for name, (run, _, _) in prepared.items():
            seconds[name].append(_timed(run, args))
        done = len(next(iter(seconds.values())))
        total = sum(map(sum, seconds.values())) / len(seconds)
        if done >= repeats and total >= _MIN_TOTAL_SECONDS:
            break
    return {
        name: _timing(seconds[name], compiling, firsts[name], scratch)
        for name, (_, compiling, scratch) in prepared.items()
    }


def _prepare(fn, args, jit):
    if not jit:
        return fn, None, None
    start = time.perf_counter()
    compiled = (fn if hasattr(fn, "lower") else jax.jit(fn)).lower(*args).compile()
    compiling = time.perf_counter() - start
    return compiled, compiling, scratch_bytes(compiled)


def _timed(run, args) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run(*args))
    return time.perf_counter() - start


def _timing(seconds, compiling, first, scratch) -> Timing:
    fastest, median = min(seconds), statistics.median(seconds)
    return Timing(
        compile_seconds=max(0.0, first - fastest) if compiling is None else compiling,
        min_seconds=fastest,
        median_seconds=median,
        spread=(max(seconds) - fastest) / median,
        scratch_bytes=scratch,
        runs=len(seconds),
    )


def row(
    *,
    peer: str,
    timing: Timing | None = None,
    error: float | None = None,
    against: str = "",
    note: str = "",
    work: Mapping[str, float] | None = None,
    **params: Any,
) -> dict[str, Any]:
    """One line of a case.

    Args:
        peer: whose implementation: `"ours"`, or the other library's name.
        timing: of `measure` or `paired`.
        error: relative error of the timed result itself.
        against: what the error is measured against.
        note: anything that a reader of the table needs.
        work: counts to set against the machine's limits: `"matmul_flops"`, `"exponentials"`,
            `"copy_bytes"`. The row then shows the largest fraction of a limit that it reaches.
        **params: what identifies the line: n, d, dtype, stage...
    """
    return {
        "params": {name: _plain(value) for name, value in params.items()},
        "peer": peer,
        "timing": None if timing is None else dataclasses.asdict(timing),
        "error": None if error is None else float(error),
        "against": against,
        "work": {name: float(value) for name, value in (work or {}).items()},
        "note": note,
    }


def peer_row(peer: str, run: Callable[[], Mapping[str, Any]], **params: Any) -> dict[str, Any]:
    """A row of another library, or one that says why there is none.

    Args:
        peer: the library's name.
        run: imports the library, does the work and returns keywords for `row`: `timing`, `error`,
            `against`, `work`, `note`.
        **params: as in `row`.
    """
    try:
        return row(peer=peer, **run(), **params)
    except ModuleNotFoundError as error:
        return row(peer=peer, note=f"not installed ({_first_line(error)})", **params)
    except MemoryError:
        return row(peer=peer, note="out of memory", **params)
    except Exception as error:
        text = _first_line(error)
        if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
            return row(peer=peer, note="out of memory", **params)
        return row(peer=peer, note=f"failed: {type(error).__name__}: {text}", **params)


def scratch_bytes(compiled: Any) -> int:
    """Peak scratch of a compiled program by XLA's accounting; 0 where a backend has none."""
    found = compiled.memory_analysis()
    return 0 if found is None else int(found.temp_size_in_bytes)


def relative_error(value: Any, reference: Any) -> float:
    """The l2 norm of `value - reference` over that of `reference`, in float64 on the host."""
    import numpy as np

    value = np.asarray(value, np.float64)
    reference = np.asarray(reference, np.float64)
    return float(np.linalg.norm(value - reference) / max(np.linalg.norm(reference), 1e-300))


# Registry ---------------------------------------------------------------------------------------

Case = Callable[[bool], Iterator[dict[str, Any]]]
_cases: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Registers a generator of rows under a dotted name that starts with its package."""

    def add(fn: Case) -> Case:
        known = _cases.get(name)
        if known is not None and known.__module__ != fn.__module__:
            raise ValueError(f"two cases are called {name!r}, in {known.__module__} and here")
        _cases[name] = fn
        return fn

    return add


def cases(only: str | None = None) -> dict[str, Case]:
    """The registered cases whose name is `only` or lies under it, in order of their names."""
    return {
        name: _cases[name]
        for name in sorted(_cases)
        if only is None or name == only or name.startswith(only + ".")
    }


def run_case(name: str, smoke: bool, report: Callable[[dict], None] = lambda row: None) -> list:
    """The rows of one case; an exception ends it with a row that says so."""
    rows = []
    try:
        for line in _cases[name](smoke):
            rows.append(line)
            report(line)
    except Exception as error:
        if smoke:
            raise
        rows.append(row(peer="ours", note=f"failed: {type(error).__name__}: {_first_line(error)}"))
        report(rows[-1])
    return rows


# The machine ------------------------------------------------------------------------------------


def limits(smoke: bool = False) -> dict[str, dict[str, float]]:
    """What this machine reaches on bare matrix products, exponentials and copies, by dtype.

    Returns:
        `{"float32": {"matmul_flops": per second, "exponentials": ..., "copy_bytes": ...}, ...}`;
        float64 is there when JAX has it enabled. Copied bytes count the read and the write.
    """
    size, length = (64, 2**10) if smoke else (2048, 2**22)
    dtypes = ["float32"] + (["float64"] if jax.config.read("jax_enable_x64") else [])
    found = {}
    for dtype in dtypes:
        square = jnp.ones((size, size), dtype)
        line = jnp.linspace(-1, 0, length, dtype=dtype)
        wide = jnp.ones(4 * length, dtype)
        product = measure(lambda a: jnp.matmul(a, a, precision="highest"), square, repeats=10)
        exponentials = measure(jnp.exp, line)
        copy = measure(lambda a: a + jnp.ones((), a.dtype), wide)
        found[dtype] = {
            "matmul_flops": 2 * size**3 / product.min_seconds,
            "exponentials": length / exponentials.min_seconds,
            "copy_bytes": 2 * wide.nbytes / copy.min_seconds,
        }
    return found


def fraction_of_limit(line: Mapping[str, Any], limits_: Mapping[str, Mapping[str, float]]):
    """The limit that binds a row, and the fraction of it that the row reaches; or None."""
    dtype = line["params"].get("dtype", "float32")
    if not line["timing"] or not line["work"] or dtype not in limits_:
        return None
    fractions = {
        name: amount / line["timing"]["min_seconds"] / limits_[dtype][name]
        for name, amount in line["work"].items()
    }
    name = max(fractions, key=lambda key: fractions[key])
    return name, fractions[name]


def environment() -> dict[str, Any]:
    """Versions, device and commit that a result belongs to."""
    import importlib.metadata
    import os
    import platform

    device = jax.devices()[0]
    versions = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "equinox", "optax"):
        versions[package] = importlib.metadata.version(package)
    for peer in ("blackjax", "numpyro", "pykeops", "finufft", "t3toolbox", "teneva"):
        try:
            versions[peer] = importlib.metadata.version(peer)
        except importlib.metadata.PackageNotFoundError:
            versions[peer] = "not installed"
    return {
        "versions": versions,
        "device": f"{device.platform}: {device.device_kind}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "commit": _commit(),
    }


def _processor() -> str:
    import platform

    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    def git(*words):
        return subprocess.run(
            ["git", *words], cwd=RESULTS.parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = " with changes" if git("status", "--porcelain", "--", "../src") else ""
        return git("rev-parse", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _plain(value):
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return str(value)


def _first_line(error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else ""


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)

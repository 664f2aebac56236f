"""Two ways of doing the same thing, and the measured size from which the second is faster."""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax.core import Tracer

from memory._checks import checked_integer
from memory._crossover import calibration_file as _file
from memory._crossover.timing import find_crossing

Workload = Callable[[int], tuple[Callable[[], Any], Callable[[], Any]]]


@dataclasses.dataclass(frozen=True)
class Crossover:
    """One choice between two ways of doing the same thing, by the count of work.

    Attributes:
        name: dotted, the owning package first: `"svgd.expand"`.
        threshold: from this size on, `above` is chosen. A number, or one for each platform,
            `{"cpu": ..., "gpu": ...}`; a platform that is not listed takes the `"cpu"` entry.
        unit: what is counted: `"entries"`, `"pairs"`.
        below: the name of the way that wins on small sizes.
        above: the name of the way that wins from the threshold on.
        evidence: where the shipped threshold comes from: the measured table, or a pointer to it.
        workload: `workload(size)` returns two functions without arguments that do the same job of
            that size, one in each way. With it, `calibrate` can measure the choice again.
    """

    name: str
    threshold: float | Mapping[str, float]
    unit: str
    below: str
    above: str
    evidence: str
    workload: Workload | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self):
        if self.below == self.above:
            raise ValueError(
                f"crossover {self.name!r}: both sides are called {self.below!r}; "
                "give each way its own name"
            )
        if isinstance(self.threshold, Mapping):
            if "cpu" not in self.threshold:
                raise ValueError(
                    f"crossover {self.name!r}: thresholds by platform need a 'cpu' entry, got "
                    f"{sorted(self.threshold)}"
                )
            object.__setattr__(self, "threshold", MappingProxyType(dict(self.threshold)))
        values = (
            self.threshold.values() if isinstance(self.threshold, Mapping) else (self.threshold,)
        )
        for value in values:
            if math.isnan(value) or value < 0:
                raise ValueError(
                    f"crossover {self.name!r}: a threshold must be a number from 0 on, got {value}"
                )

    def __hash__(self):
        return hash(self.name)

    def __reduce__(self):
        # A read-only view cannot be pickled; what it shows can.
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if isinstance(self.threshold, Mapping):
            values["threshold"] = dict(self.threshold)
        return Crossover, tuple(values.values())

    def choose(self, size: int | float) -> str:
        """The name of the way to take for `size` units of actual work.

        Reads no file after the first call of the process, and measures nothing. Under `jax.jit` the
        choice is made while tracing and is then part of the compiled program.

        Raises:
            ValueError: when `size` is negative or traced.
        """
        side = _forced.get().get(self.name)
        if side is not None:
            return side
        if isinstance(size, Tracer):
            raise ValueError(
                f"crossover {self.name!r} needs a concrete number of {self.unit}, got a traced "
                "value; count the work from static shapes, or outside jit"
            )
        if not size >= 0:
            raise ValueError(f"crossover {self.name!r}: {self.unit} must not be {size}")
        return self.above if size >= self.active_threshold() else self.below

    def shipped_threshold(self) -> float:
        """The threshold that came with the library, for the default platform."""
        if isinstance(self.threshold, Mapping):
            platform = jax.default_backend()
            platform = "gpu" if platform in ("cuda", "rocm") else platform
            return float(self.threshold.get(platform, self.threshold["cpu"]))
        return float(self.threshold)

    def active_threshold(self) -> float:
        """The threshold in force: calibrated on this machine, or the shipped one."""
        calibrated = _file.thresholds().get(self.name)
        return self.shipped_threshold() if calibrated is None else calibrated.threshold


@dataclasses.dataclass(frozen=True)
class CrossoverRow:
    """One line of `crossovers()`."""

    name: str
    threshold: float
    unit: str
    below: str
    above: str
    source: str
    evidence: str


class CrossoverTable(Mapping[str, CrossoverRow]):
    """Every registered choice: a mapping from names to rows that prints as a table."""

    def __init__(self, rows: Iterable[CrossoverRow]):
        self._rows = {row.name: row for row in rows}

    def __getitem__(self, name: str) -> CrossoverRow:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        if not self._rows:
            return "no crossovers are registered: import the packages that own them"
        lines = [("choice", "below", "from", "on", "source")]
        for row in self._rows.values():
            lines.append(
                (row.name, row.below, f"{_number(row.threshold)} {row.unit}", row.above, row.source)
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    __repr__ = __str__


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_registry: dict[str, Crossover] = {}
_forced: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar(
    "forced", default=MappingProxyType({})
)


def register(crossover: Crossover) -> Crossover:
    """Adds a choice to the table that `crossovers` shows and `calibrate` measures.

    Called once for each choice, when the module that owns it is imported.

    Raises:
        ValueError: when another choice (other sides or unit) has the same name.
    """
    known = _registry.get(crossover.name)
    same = ("unit", "below", "above")
    if known is not None and any(getattr(known, a) != getattr(crossover, a) for a in same):
        raise ValueError(
            f"two different crossovers are called {crossover.name!r}: {known.below} or "
            f"{known.above} by {known.unit}, and {crossover.below} or {crossover.above} by "
            f"{crossover.unit}; rename one"
        )
    _registry[crossover.name] = crossover
    return crossover


def crossovers() -> CrossoverTable:
    """Every registered choice, the threshold in force, and where that came from.

    The source is `"shipped"`, `"calibrated"` (measured on this machine by `calibrate`), or
    `"forced: side"` inside `forced`.
    """
    return CrossoverTable(_row(_registry[name]) for name in sorted(_registry))


def _row(crossover: Crossover) -> CrossoverRow:
    side = _forced.get().get(crossover.name)
    calibrated = _file.thresholds().get(crossover.name)
    if side is not None:
        source = f"forced: {side}"
    elif calibrated is not None:
        source = "calibrated"
    else:
        source = "shipped"
    evidence = crossover.evidence
    if calibrated is not None:
        evidence = (
            f"measured on this machine; {crossover.unit}: {crossover.below}, {crossover.above}: "
            + "; ".join(f"{n:,}: {b:.3g} s, {a:.3g} s" for n, b, a in calibrated.table)
        )
    return CrossoverRow(
        name=crossover.name,
        threshold=crossover.active_threshold(),
        unit=crossover.unit,
        below=crossover.below,
        above=crossover.above,
        source=source,
        evidence=evidence,
    )


def calibrate(
    names: Iterable[str] | str | None = None,
    *,
    seconds: float = 20.0,
    repeats: int = 5,
) -> CrossoverTable:
    """Measures choices again on this machine and keeps the thresholds for later processes.

    Both ways of a choice run on jobs whose sizes double or halve from the shipped threshold until
    the faster one changes; each is warmed up first (so compilation is not timed), each run is
    waited for, and the two take turns so that a busy moment hits both. The threshold is where the
    two times meet, interpolated on log axes. If they do not meet within 2^10 either way or within
    the time given, the threshold is put just beyond the sizes that were tried, or left at a shipped
    one further out.

    The result is used at once and is kept, for this kind of device, processor and JAX version, in
    a file in the user's cache folder (`STEINTRAIN_CACHE_DIR` moves it). A folder that cannot be
    written costs a warning, and the result lasts as long as the process.

    Args:
        names: which choices; all that can be measured when None.
        seconds: time for each choice, about; the size being measured is finished.
        repeats: runs of each way at each size, of which the fastest counts.

    Returns:
        The table of `crossovers()`, with the new thresholds.

    Raises:
        ValueError: on an unknown name, or one whose choice has no workload to measure.
    """
    if names is None:
        chosen = [crossover for crossover in _registry.values() if crossover.workload]
    else:
        chosen = [_find(name) for name in ([names] if isinstance(names, str) else names)]
    jobs = []
    for crossover in chosen:
        if crossover.workload is None:
            raise ValueError(f"crossover {crossover.name!r} has no workload to measure")
        jobs.append((crossover, crossover.workload))
    measured = {}
    for crossover, workload in jobs:
        shipped = crossover.shipped_threshold()
        start = shipped if math.isfinite(shipped) and shipped >= 1 else 1024
        threshold, table = find_crossing(
            workload,
            start=int(start),
            seconds=seconds,
            repeats=checked_integer("repeats", repeats, 1),
        )
        if threshold > max(size for size, *_ in table):
            # Nothing was seen to speak against a crossing further out.
            threshold = max(threshold, shipped)
        measured[crossover.name] = _file.Measured(threshold=threshold, table=table)
    _file.keep(measured)
    return crossovers()


@contextlib.contextmanager
def forced(name: str, side: str) -> Iterator[None]:
    """Makes one choice return `side` inside a `with` block, whatever the size.

    A function that was jitted and traced before keeps the choice that it was traced with.

    Raises:
        ValueError: on an unknown name or side, with the known ones.
    """
    crossover = _find(name)
    if side not in (crossover.below, crossover.above):
        raise ValueError(
            f"crossover {name!r} chooses between {crossover.below!r} and {crossover.above!r}, "
            f"not {side!r}"
        )
    token = _forced.set(MappingProxyType({**_forced.get(), name: side}))
    try:
        yield
    finally:
        _forced.reset(token)


def _find(name: str) -> Crossover:
    try:
        return _registry[name]
    except KeyError:
        known = ", ".join(sorted(_registry)) or "none; import the package that owns it"
        raise ValueError(f"no crossover is called {name!r}; known: {known}") from None

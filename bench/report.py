"""Results as Markdown tables, in text files between markers, and as plots; and two compared."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, fraction_of_limit

_LIMIT_NAMES = {
    "matmul_flops": "matrix-product rate",
    "exponentials": "exponentials",
    "copy_bytes": "copy bandwidth",
}


def load(paths: Iterable[Path] | None = None) -> dict[str, dict[str, Any]]:
    """Results by case name, from files or from all that are kept."""
    found = {}
    for path in sorted(RESULTS.glob("*.json") if paths is None else paths):
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content.get("format") == "steintrain-bench-1":
            for result in content["cases"]:
                found[result["case"]] = result
    return found


def save(path: Path, results: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_json(results), encoding="utf-8")


def _json(results: list[dict[str, Any]]) -> str:
    """Valid JSON with one row a line, so that a diff shows which rows changed."""
    cases = []
    for result in results:
        about = {name: value for name, value in result.items() if name != "rows"}
        rows = ",\n".join("   " + json.dumps(line) for line in result["rows"])
        inside = "".join(f"  {json.dumps(name)}: {json.dumps(v)},\n" for name, v in about.items())
        cases.append(f' {{\n{inside}  "rows": [\n{rows}\n  ]\n }}')
    listed = ",\n".join(cases)
    return f'{{"format": "steintrain-bench-1", "cases": [\n{listed}\n]}}\n'


# Tables -----------------------------------------------------------------------------------------


def table(result: Mapping[str, Any], where: Mapping[str, str] | None = None) -> str:
    """One case as a Markdown table, with what it was measured on below it."""
    lines = [line for line in result["rows"] if _matches(line, where or {})]
    if not lines:
        raise ValueError(f"no row of {result['case']} matches {dict(where or {})}")
    names = list(dict.fromkeys(name for line in lines for name in line["params"]))
    figures = ["who", "fastest", "median", "spread", "compile", "scratch", "error", "of limit"]
    cells = [[*names, *figures, "note"]]
    for line in lines:
        cells.append(
            [_text(line["params"].get(name, "")) for name in names] + _figures(line, result)
        )
    # Columns without a single entry say nothing.
    kept = [c for c in range(len(cells[0])) if any(row[c] not in ("", "–") for row in cells[1:])]
    head, *body = [[row[c] for c in kept] for row in cells]
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    text += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(text) + "\n\n" + footnote(result)


def footnote(result: Mapping[str, Any]) -> str:
    machine = result["environment"]
    versions = machine["versions"]
    return (
        f"`python -m bench run --only {result['case']}`; {machine['processor']}, "
        f"{machine['cores']} cores, {machine['device']}, jax {versions['jax']}."
    )


def _figures(line, result) -> list[str]:
    timing = line["timing"]
    limit = fraction_of_limit(line, result["limits"])
    error = "–" if line["error"] is None else f"{line['error']:.1e}"
    share = "–" if limit is None else f"{limit[1]:.0%} of {_LIMIT_NAMES.get(limit[0], limit[0])}"
    if timing is None:
        return [line["peer"], "–", "–", "–", "–", "–", error, share, line["note"]]
    scratch = timing["scratch_bytes"]
    return [
        line["peer"],
        seconds(timing["min_seconds"]),
        seconds(timing["median_seconds"]),
        f"{timing['spread']:.0%}",
        seconds(timing["compile_seconds"]) if timing["compile_seconds"] else "–",
        "–" if scratch is None else mebibytes(scratch),
        error,
        share,
        line["note"],
    ]


def seconds(value: float) -> str:
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * scale:.3g} {unit}"
    return f"{value:.3g} s"


def mebibytes(count: float) -> str:
    return f"{count / 2**20:.3g} MiB" if count >= 2**10 else f"{count:.0f} B"


def _text(value) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _matches(line, where: Mapping[str, str]) -> bool:
    values = {**line["params"], "peer": line["peer"]}
    return all(str(values.get(name)) in text.split(",") for name, text in where.items())


_MARKED = re.compile(r"(<!-- bench: (?P<query>[^>]*?) -->\n)(?P<body>.*?)(<!-- /bench -->)", re.S)


def fill(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Replaces what stands between `<!-- bench: CASE name=value,value -->` and `<!-- /bench -->`."""

    def replacement(match):
        name, *conditions = match["query"].split()
        where = dict(condition.split("=", 1) for condition in conditions)
        if name not in results:
            body = f"Not measured: `python -m bench run --only {name}`."
        else:
            body = table(results[name], where)
        return f"{match[1]}\n{body}\n\n{match[4]}"

    return _MARKED.sub(replacement, text)


# Comparison -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Lines for reading, and the regressions among them."""

    lines: list[str]
    regressions: list[str]


# Bytes that a program's scratch may grow by: a few small buffers more or less.
_SCRATCH_NOISE = 2**16


def compare(
    old: Mapping[str, Mapping[str, Any]],
    new: Mapping[str, Mapping[str, Any]],
    threshold: float = 1.1,
) -> Comparison:
    """Ratios of the fastest runs, new over old; above `threshold` is a regression, as is scratch.

    Where a case has a forward and a gradient, a gradient-to-forward ratio that became better only
    because the forward became slower is a regression too, whatever the threshold: a ratio is no
    achievement when its denominator was spoiled.
    """
    before, after = _times(old), _times(new)
    lines, regressions = [], []
    scratch_before, scratch_after = (_times(side, "scratch_bytes") for side in (old, new))
    for key in sorted(scratch_before.keys() & scratch_after.keys()):
        was, became = scratch_before[key], scratch_after[key]
        if became > threshold * was + _SCRATCH_NOISE:
            regressions.append(f"{_label(key)}: scratch {mebibytes(was)} -> {mebibytes(became)}")
    for key in sorted(before.keys() & after.keys()):
        ratio = after[key] / before[key]
        lines.append(
            f"{_label(key)}: {seconds(before[key])} -> {seconds(after[key])} ({ratio:.2f}x)"
        )
        if ratio > threshold:
            regressions.append(f"{_label(key)}: {ratio:.2f} times as long")
    for key in sorted(before.keys() & after.keys()):
        forward = _with_stage(key, "forward")
        if _stage(key) != "gradient" or forward not in before or forward not in after:
            continue
        was, became = before[key] / before[forward], after[key] / after[forward]
        # 3 % is what two runs of the same program differ by on a quiet machine.
        if became < was / 1.03 and after[forward] > before[forward] * 1.03:
            regressions.append(
                f"{_label(key)}: the ratio to the forward fell from {was:.2f} to {became:.2f}, but "
                f"the forward rose from {seconds(before[forward])} to {seconds(after[forward])}"
            )
    for key in sorted(before.keys() - after.keys()):
        lines.append(f"{_label(key)}: only in the first")
    return Comparison(lines, regressions)


def _times(results, what="min_seconds"):
    found = {}
    for name, result in results.items():
        for line in result["rows"]:
            if line["timing"] and line["timing"].get(what) is not None:
                params = tuple(sorted((k, str(v)) for k, v in line["params"].items()))
                found[name, line["peer"], params] = line["timing"][what]
    return found


def _label(key) -> str:
    name, peer, params = key
    return f"{name} [{peer}] " + " ".join(f"{k}={v}" for k, v in params)


def _stage(key):
    return dict(key[2]).get("stage")


def _with_stage(key, stage):
    return key[0], key[1], tuple(sorted({**dict(key[2]), "stage": stage}.items()))


# Plots ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Figure:
    """What one figure shows: rows of some cases, against one of their parameters.

    Attributes:
        name: of the file.
        cases: whose rows are drawn.
        size: the parameter on the horizontal axis, and what it counts.
        where: values that other parameters must have.
        message: what it shows, in a few words.
    """

    name: str
    cases: tuple[str, ...]
    size: tuple[str, str]
    where: Mapping[str, str]
    message: str


_STYLE = Path(__file__).parents[1] / "examples" / "steintrain.mplstyle"

FIGURES = (
    Figure(
        "exact-update",
        ("svgd.exact", "svgd.exact.large"),
        ("n", "particles"),
        {"d": "3", "stage": "forward", "dtype": "float32"},
        "In tiles, each pair once: fastest at every size",
    ),
    Figure(
        "tree",
        ("svgd.tree.exact",),
        ("n", "particles"),
        {"d": "3"},
        "Over cells, time grows as the particles do",
    ),
    Figure(
        "transpose",
        ("t3.transpose",),
        ("W", "probes"),
        {"r": "20", "chunk": "auto|auto, packed|its own"},
        "Chunked transposes: less time, and scratch that stays flat",
    ),
)


def plot(results: Mapping[str, Mapping[str, Any]], figure: Figure, folder: Path) -> Path | None:
    """Time and scratch against size, all peers, log axes; None where no curve has two points."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    size, counted = figure.size
    rows = [
        line
        for case in figure.cases
        for line in results.get(case, {"rows": []})["rows"]
        if line["timing"]
        and all(
            str(line["params"].get(name)) in values.split("|")
            for name, values in figure.where.items()
        )
    ]
    # A curve's name says only what tells it from the others.
    names = {name for line in rows for name in line["params"]} - {size}
    telling = sorted(
        name for name in names if len({str(line["params"].get(name)) for line in rows}) > 1
    )
    curves: dict[str, list[tuple[float, float, float | None]]] = {}
    for line in rows:
        values = [str(line["params"][name]) for name in telling if name in line["params"]]
        timing = line["timing"]
        point = (line["params"][size], timing["min_seconds"], timing["scratch_bytes"])
        curves.setdefault(" ".join([line["peer"], *values]), []).append(point)
    curves = {label: sorted(points) for label, points in curves.items() if len(points) > 1}
    if not curves:
        return None
    plt.style.use(_STYLE)
    drawn, (left, right) = plt.subplots(1, 2)
    for label, points in sorted(curves.items()):
        style = {"marker": "o", "ms": 5, "ls": "-" if label.startswith("ours") else "--"}
        (line,) = left.loglog([p[0] for p in points], [p[1] for p in points], label=label, **style)
        known = [(p[0], p[2] / 2**20) for p in points if p[2]]
        if len(known) > 1:
            right.loglog(*zip(*known, strict=True), color=line.get_color(), **style)
    ticks = []
    for value in sorted({p[0] for points in curves.values() for p in points}):
        if not ticks or value >= 2 * ticks[-1]:  # nearer labels overlap
            ticks.append(value)
    left.set(xlabel=f"{size} ({counted})", ylabel="fastest run (s)", title=figure.message)
    right.set(xlabel=f"{size} ({counted})", ylabel="scratch (MiB)", title="Memory that XLA reports")
    for axis in (left, right):
        axis.grid(True, which="major")
        axis.set_xticks(ticks)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.xaxis.set_minor_formatter("")
    right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.yaxis.set_major_formatter("{x:,.4g}")
    right.yaxis.set_minor_formatter("")
    left.legend()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{figure.name}.png"
    drawn.savefig(path)
    plt.close(drawn)
    return path

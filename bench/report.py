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
    content = {"format": "steintrain-bench-1", "cases": results}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


# Tables -----------------------------------------------------------------------------------------


def table(result: Mapping[str, Any], where: Mapping[str, str] | None = None) -> str:
    """One case as a Markdown table, with what it was measured on below it."""
    lines = [line for line in result["rows"] if _matches(line, where or {})]
    if not lines:
        raise ValueError(f"no row of {result['case']} matches {dict(where or {})}")
    names = list(dict.fromkeys(name for line in lines for name in line["params"]))
    cells = [[*names, "who", "fastest", "median", "spread", "scratch", "error", "of limit", "note"]]
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
        return [line["peer"], "–", "–", "–", "–", error, share, line["note"]]
    scratch = timing["scratch_bytes"]
    return [
        line["peer"],
        seconds(timing["min_seconds"]),
        seconds(timing["median_seconds"]),
        f"{timing['spread']:.0%}",
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


def compare(
    old: Mapping[str, Mapping[str, Any]],
    new: Mapping[str, Mapping[str, Any]],
    threshold: float = 1.1,
) -> Comparison:
    """Ratios of the fastest runs, new over old; above `threshold` is a regression.

    Where a case has a forward and a gradient, a gradient-to-forward ratio that became better only
    because the forward became slower is a regression too, whatever the threshold: a ratio is no
    achievement when its denominator was spoiled.
    """
    before, after = _times(old), _times(new)
    lines, regressions = [], []
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


def _times(results):
    found = {}
    for name, result in results.items():
        for line in result["rows"]:
            if line["timing"]:
                params = tuple(sorted((k, str(v)) for k, v in line["params"].items()))
                found[name, line["peer"], params] = line["timing"]["min_seconds"]
    return found


def _label(key) -> str:
    name, peer, params = key
    return f"{name} [{peer}] " + " ".join(f"{k}={v}" for k, v in params)


def _stage(key):
    return dict(key[2]).get("stage")


def _with_stage(key, stage):
    return key[0], key[1], tuple(sorted({**dict(key[2]), "stage": stage}.items()))


# Plots ------------------------------------------------------------------------------------------

# The parameter that a plot has on its horizontal axis, the first that takes several values.
_SIZES = ("n", "probes", "n_probes", "W", "rows", "chunk", "d")


def plot(result: Mapping[str, Any], folder: Path) -> Path | None:
    """Time and scratch of one case against its size, all peers, log axes; None if nothing varies."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt

    rows = [line for line in result["rows"] if line["timing"]]
    size = next((s for s in _SIZES if len({r["params"].get(s) for r in rows} - {None}) > 1), None)
    if size is None:
        return None
    curves: dict[str, list[tuple[float, float, float | None]]] = {}
    for line in rows:
        others = [f"{k}={v}" for k, v in line["params"].items() if k != size]
        label = ", ".join([line["peer"], *others])
        point = (line["params"].get(size), line["timing"]["min_seconds"])
        curves.setdefault(label, []).append((*point, line["timing"]["scratch_bytes"]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    for label, points in sorted(curves.items()):
        points = sorted(p for p in points if p[0] is not None)
        style = "o-" if label.startswith("ours") else "s--"
        left.loglog([p[0] for p in points], [p[1] for p in points], style, label=label, ms=4)
        known = [(p[0], p[2] / 2**20) for p in points if p[2]]
        if known:
            right.loglog(*zip(*known, strict=True), style, label=label, ms=4)
    left.set(xlabel=size, ylabel="fastest run [s]", title=f"{result['case']}: time")
    right.set(xlabel=size, ylabel="XLA scratch [MiB]", title=f"{result['case']}: memory")
    for axis in (left, right):
        axis.grid(True, which="both", alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['case']}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path

"""`python -m bench`: run the cases, show their tables, compare two runs, measure crossovers."""

import argparse
import importlib
import sys
import time
from pathlib import Path

_FOLDER = Path(__file__).parent
_NOT_CASES = {
    "__init__",
    "__main__",
    "harness",
    "report",
    "peers",
    "references",
    "crossovers",
    "alternate",
}


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["posteriors"]:
        from bench import posteriors

        return posteriors.main(words[1:]) or 0
    options = _parser().parse_args(words)
    return options.do(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser("run", help="run cases and keep their results")
    run.add_argument("--only", action="append", help="a package or a case: svgd, svgd.exact")
    run.add_argument("--smoke", action="store_true", help="tiny sizes; nothing is kept")
    run.add_argument("--out", type=Path, help="one file for all results instead of one per case")
    run.add_argument("--float32-only", action="store_true", help="leave JAX in its 32-bit mode")
    run.set_defaults(do=_run)

    show = commands.add_parser("table", help="Markdown tables of the kept results")
    show.add_argument("cases", nargs="*", help="all when none is named")
    show.add_argument("--fill", nargs="+", type=Path, help="write them between a file's markers")
    show.add_argument("--check", action="store_true", help="with --fill: only say what is stale")
    show.set_defaults(do=_table)

    compare = commands.add_parser("compare", help="ratios of two runs; fails on a regression")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.add_argument("--threshold", type=float, default=1.1)
    compare.set_defaults(do=_compare)

    alternate = commands.add_parser("alternate", help="compare with another checkout, in turns")
    alternate.add_argument("old", type=Path, help="the other checkout")
    alternate.add_argument("--only", action="append", help="a package or a case")
    alternate.add_argument("--rounds", type=int, default=3)
    alternate.add_argument("--smoke", action="store_true", help="tiny sizes")
    alternate.add_argument("--threshold", type=float, default=1.05)
    alternate.add_argument("--out", type=Path, help="folder for both sides' results")
    alternate.set_defaults(do=_alternate)

    crossovers = commands.add_parser("crossovers", help="measure every choice, with its table")
    crossovers.add_argument("names", nargs="*")
    crossovers.add_argument("--seconds", type=float, default=20.0, help="for each choice")
    crossovers.set_defaults(do=_crossovers)

    plots = commands.add_parser("plots", help="time and memory against size, under docs/")
    plots.add_argument("--folder", type=Path, default=_FOLDER.parent / "docs" / "benchmarks")
    plots.set_defaults(do=_plots)

    commands.add_parser("posteriors", help="posteriors whose answer is known")
    return parser


def _run(options) -> int:
    import jax

    if not options.float32_only:
        jax.config.update("jax_enable_x64", True)
    from bench import harness, report

    _import_cases(options.smoke)
    names: list[str] = []
    for only in options.only or [None]:
        found = list(harness.cases(only))
        if not found:
            known = ", ".join(harness.cases()) or "none"
            print(f"no case is called {only}; known: {known}", file=sys.stderr)
            return 2
        names += [name for name in found if name not in names]

    limits = harness.limits(options.smoke)
    for dtype, rates in limits.items():
        print(
            f"limits, {dtype}: matrix products {rates['matmul_flops'] / 1e9:.0f} GF/s, "
            f"exponentials {rates['exponentials'] / 1e9:.2f} G/s, "
            f"copies {rates['copy_bytes'] / 1e9:.1f} GB/s"
        )
    surroundings = harness.environment()
    results = []
    for name in names:
        print(f"\n{name}", flush=True)
        start = time.perf_counter()
        rows = harness.run_case(name, options.smoke, lambda line: print(_line(line), flush=True))
        print(f"  ({time.perf_counter() - start:.0f} s)")
        result = {"case": name, "environment": surroundings, "limits": limits, "rows": rows}
        results.append(result)
        if not options.smoke and options.out is None:
            report.save(harness.RESULTS / f"{name}.json", [result])
    if options.out is not None:
        report.save(options.out, results)
    return 0


def _line(line) -> str:
    from bench.report import mebibytes, seconds

    text = "  " + " ".join(f"{k}={v}" for k, v in line["params"].items()) + f"  {line['peer']}:"
    timing = line["timing"]
    if timing:
        text += f" {seconds(timing['min_seconds'])} (median {seconds(timing['median_seconds'])},"
        text += f" spread {timing['spread']:.0%}, compile {timing['compile_seconds']:.2f} s)"
        if timing["scratch_bytes"] is not None:
            text += f" scratch {mebibytes(timing['scratch_bytes'])}"
    if line["error"] is not None:
        text += f" error {line['error']:.1e}"
    return text + (f"  {line['note']}" if line["note"] else "")


def _import_cases(must_import: bool) -> None:
    for path in sorted(_FOLDER.glob("*.py")):
        if path.stem in _NOT_CASES or path.stem.startswith("_"):
            continue
        try:
            importlib.import_module(f"bench.{path.stem}")
        except ImportError as error:
            if must_import:
                raise
            print(f"bench/{path.name} cannot be imported: {error}", file=sys.stderr)


def _table(options) -> int:
    from bench import report

    results = report.load()
    if not options.fill:
        for name in options.cases or results:
            print(f"### {name}\n\n{report.table(results[name])}\n")
        return 0
    stale = 0
    for path in options.fill:
        text = path.read_text(encoding="utf-8")
        filled = report.fill(text, results)
        if filled != text:
            stale += 1
            print(f"{path} {'is stale' if options.check else 'filled'}")
            if not options.check:
                path.write_text(filled, encoding="utf-8")
    return 1 if options.check and stale else 0


def _alternate(options) -> int:
    from bench import alternate, report

    old, new = alternate.run(
        options.old.resolve(), _FOLDER.parent, options.only, options.rounds, options.smoke
    )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, side in (("old", old), ("new", new)):
            report.save(options.out / f"{name}.json", list(side.values()))
    return _told(report.compare(old, new, options.threshold))


def _compare(options) -> int:
    from bench import report

    for path in (options.old, options.new):
        if not path.is_file():
            print(f"{path} is no file: `run --out {path}` writes one", file=sys.stderr)
            return 2
    return _told(
        report.compare(report.load([options.old]), report.load([options.new]), options.threshold)
    )


def _told(comparison) -> int:
    print("\n".join(comparison.lines))
    if not comparison.lines:
        print("the two have no case in common", file=sys.stderr)
        return 2
    for line in comparison.regressions:
        print(f"REGRESSION {line}")
    return 1 if comparison.regressions else 0


def _crossovers(options) -> int:
    from bench import crossovers

    return crossovers.main(options.names, options.seconds)


def _plots(options) -> int:
    from bench import report

    results = report.load()
    for figure in report.FIGURES:
        path = report.plot(results, figure, options.folder)
        print(path or f"{figure.name}: fewer than two sizes of {', '.join(figure.cases)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

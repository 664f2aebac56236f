"""Tables, their places in text files, comparisons and plots, from results made up here."""

from pathlib import Path

import pytest

from bench import harness, report

ROOT = Path(__file__).parents[2]


def timing(seconds):
    return harness.Timing(0.5, seconds, seconds * 1.1, 0.2, 3 * 2**20, 5)


def result(times, peer="ours"):
    rows = [
        harness.row(
            n=n,
            dtype="float32",
            stage=stage,
            peer=peer,
            timing=timing(t),
            error=1e-7,
            work={"exponentials": 1e6},
        )
        for (n, stage), t in times.items()
    ]
    return {
        "case": "svgd.exact",
        "environment": {
            "versions": {"jax": "1.2.3"},
            "processor": "abacus",
            "cores": 2,
            "device": "cpu: cpu",
        },
        "limits": {"float32": {"exponentials": 1e9}},
        "rows": rows,
    }


BASE = {(1000, "forward"): 0.01, (1000, "gradient"): 0.03, (2000, "forward"): 0.04}


def test_a_table_shows_figures_and_leaves_empty_columns_out():
    content = result(BASE)
    content["rows"].append(harness.peer_row("other", lambda: 1 / 0, n=1000, dtype="float32"))
    text = report.table(content)
    head, _, first, *_, last = text.split("\n\n")[0].splitlines()
    assert head == (
        "| n | dtype | stage | who | fastest | median | spread | compile | scratch | error | of limit "
        "| note |"
    )
    assert first == (
        "| 1,000 | float32 | forward | ours | 10 ms | 11 ms | 20% | 500 ms | 3 MiB | 1.0e-07 "
        "| 10% of exponentials |  |"
    )
    assert "failed: ZeroDivisionError" in last
    assert text.endswith(
        "`python -m bench run --only svgd.exact`; abacus, 2 cores, cpu: cpu, jax 1.2.3."
    )
    assert "note" not in report.table(result(BASE)).splitlines()[0]


def test_rows_are_chosen_by_parameters():
    text = report.table(result(BASE), {"stage": "forward", "n": "1000,2000"})
    assert len(text.split("\n\n")[0].splitlines()) == 4
    with pytest.raises(ValueError, match="no row"):
        report.table(result(BASE), {"n": "3"})


def test_filling_between_markers_is_stable():
    text = "a\n<!-- bench: svgd.exact n=1000 -->\nold\n<!-- /bench -->\nb\n"
    filled = report.fill(text, {"svgd.exact": result(BASE)})
    assert filled.startswith("a\n<!-- bench: svgd.exact n=1000 -->\n\n| n |")
    assert filled.endswith("<!-- /bench -->\nb\n")
    assert "old" not in filled
    assert report.fill(filled, {"svgd.exact": result(BASE)}) == filled
    assert "Not measured" in report.fill(text, {})


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))], ids=lambda p: p.name
)
def test_tables_in_the_documentation_are_not_stale(path):
    text = path.read_text(encoding="utf-8")
    assert report.fill(text, report.load()) == text, "run: make bench-report"


def compare(new):
    return report.compare({"svgd.exact": result(BASE)}, {"svgd.exact": result({**BASE, **new})})


def test_nothing_changed():
    comparison = compare({})
    assert len(comparison.lines) == 3
    assert comparison.regressions == []


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({(2000, "forward"): 0.05}, ["n=2000", "1.25 times as long"]),
        # 3.0 became 2.8, but only because the forward takes 5 % longer.
        ({(1000, "forward"): 0.0105, (1000, "gradient"): 0.0294}, ["ratio", "3.00 to 2.80"]),
    ],
)
def test_regressions(new, words):
    (found,) = compare(new).regressions
    assert all(word in found for word in words)


@pytest.mark.parametrize(
    "new",
    [
        {(2000, "forward"): 0.043},  # within the threshold
        {(1000, "forward"): 0.009},  # the ratio became worse because the forward became faster
        {(1000, "gradient"): 0.02},  # the ratio became better by itself
    ],
)
def test_no_regressions(new):
    assert compare(new).regressions == []


def test_a_missing_case_is_mentioned():
    comparison = report.compare({"svgd.exact": result(BASE)}, {})
    assert all("only in the first" in line for line in comparison.lines)


def test_saved_results_are_loaded_again(tmp_path):
    report.save(tmp_path / "a.json", [result(BASE)])
    assert report.load([tmp_path / "a.json"])["svgd.exact"]["rows"] == result(BASE)["rows"]


def test_plots(tmp_path):
    figure = report.Figure(
        "a", ("svgd.exact",), ("n", "particles"), {"stage": "forward"}, "what it shows"
    )
    drawn = report.plot({"svgd.exact": result(BASE)}, figure, tmp_path)
    assert drawn.stat().st_size > 1000
    one_size = {"svgd.exact": result({(1000, "forward"): 1.0})}
    assert report.plot(one_size, figure, tmp_path) is None
    assert report.plot({}, figure, tmp_path) is None


def test_results_are_kept_with_one_row_a_line(tmp_path):
    path = tmp_path / "results.json"
    results = [result(BASE), {**result(BASE), "case": "other", "rows": []}]
    report.save(path, results)
    assert report.load([path]) == {r["case"]: r for r in results}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum('"params"' in line for line in lines) == len(results[0]["rows"])

"""`python -m bench` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import harness, report

ROOT = Path(__file__).parents[2]


def bench(*words):
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize("package", ["memory", "svgd", "t3"])
def test_every_case_runs_at_smoke_size(package, tmp_path):
    target = tmp_path / "results.json"
    done = bench("run", "--only", package, "--smoke", "--out", str(target))
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(target.read_text())["cases"]
    assert results
    for result in results:
        ours = [line for line in result["rows"] if line["peer"].startswith("ours")]
        assert ours, result["case"]
        assert not any(line["note"].startswith("failed") for line in ours), result["case"]


def test_an_unknown_case_names_the_known_ones():
    done = bench("run", "--only", "nothing", "--smoke")
    assert done.returncode == 2
    assert "memory.map_sum" in done.stderr


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (2.0, 1)])
def test_comparing_fails_on_a_regression(tmp_path, factor, code):
    for name, scale in (("a", 1.0), ("b", factor)):
        timing = harness.Timing(0.0, 0.1 * scale, 0.1 * scale, 0.0, None, 1)
        rows = [harness.row(n=1, peer="ours", timing=timing)]
        report.save(tmp_path / f"{name}.json", [{"case": "memory.x", "rows": rows}])
    done = bench("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == code
    assert ("REGRESSION memory.x" in done.stdout) == (code == 1)


def test_comparing_what_is_not_there_says_how_to_make_it(tmp_path):
    done = bench("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 2
    assert "a.json is no file: `run --out" in done.stderr

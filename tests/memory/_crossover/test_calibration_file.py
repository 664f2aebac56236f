"""The file of calibrated thresholds: kept, read by later processes, never fatal."""

import os
import subprocess
import sys
import time
import warnings

import pytest

from memory import CalibrationWarning
from memory._crossover import calibration_file as _calibration_file
from memory._crossover.calibration_file import Measured


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEINTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    _calibration_file.forget()
    yield tmp_path / "cache"
    _calibration_file.forget()


ENTRY = Measured(threshold=12.5, table=[(10, 1e-3, 2e-3), (20, 3e-3, 2e-3)])


def test_what_is_kept_is_read_again():
    _calibration_file.keep({"test.a": ENTRY})
    _calibration_file.keep({"test.b": Measured(threshold=float("inf"), table=[])})
    _calibration_file.forget()
    assert _calibration_file.thresholds() == {
        "test.a": ENTRY,
        "test.b": Measured(threshold=float("inf"), table=[]),
    }


def test_the_file_belongs_to_a_device_and_a_version(folder, monkeypatch):
    import jax

    name = _calibration_file.path().name
    assert jax.__version__ in name
    assert "cpu" in name
    monkeypatch.setattr(jax, "__version__", "0.0.1")
    assert _calibration_file.path().name != name
    assert _calibration_file.path().parent == folder


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b'"text"',
        b"null",
        b'{"format": "somebody else\'s"}',
        b'{"format": "steintrain-crossovers-1"}',
        b'{"format": "steintrain-crossovers-1", "thresholds": {"a": 3}}',
        b'{"format": "steintrain-crossovers-1", "thresholds": {"a": {"threshold": "x"}}}',
        b'{"format": "steintrain-crossovers-1", "thresholds": {"a": {"threshold": NaN, "table": []}}}',
        b'{"format": "steintrain-crossovers-1", "thresholds": {"a": {"threshold": -1, "table": []}}}',
        b'{"format": "steintrain-crossovers-1", "thresholds": [1]}',
        b"[" * 100_000,
    ],
)
def test_a_corrupt_or_foreign_file_is_ignored_and_replaced(content):
    path = _calibration_file.path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.warns(CalibrationWarning, match="ignoring"):
        assert _calibration_file.thresholds() == {}
    with pytest.warns(CalibrationWarning, match="ignoring"):
        _calibration_file.keep({"test.a": ENTRY})
    _calibration_file.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _calibration_file.thresholds() == {"test.a": ENTRY}


def test_a_folder_in_the_way_is_ignored():
    _calibration_file.path().mkdir(parents=True)
    with pytest.warns(CalibrationWarning, match="ignoring"):
        assert _calibration_file.thresholds() == {}
    with pytest.warns(CalibrationWarning):
        _calibration_file.keep({"test.a": ENTRY})
    assert _calibration_file.thresholds() == {"test.a": ENTRY}


def test_a_folder_that_cannot_be_written_costs_a_warning(folder):
    folder.write_text("a file where the folder should be")
    with pytest.warns(CalibrationWarning, match="lasts for this process"):
        _calibration_file.keep({"test.a": ENTRY})
    assert _calibration_file.thresholds() == {"test.a": ENTRY}


def test_no_trace_of_a_failed_write(folder, monkeypatch):
    _calibration_file.keep({"test.a": ENTRY})

    def full(*args, **kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CalibrationWarning, match="no space left"):
        _calibration_file.keep({"test.b": ENTRY})
    assert {path.suffix for path in folder.iterdir()} == {".json", ".lock"}


_WRITER = """
import sys
from memory._crossover import calibration_file as file
for number in range(40):
    file.forget()
    entry = file.Measured(threshold=float(number), table=[(number, 1.0, 2.0)] * 200)
    file.keep({f"{sys.argv[1]}.{number}": entry})
"""


def test_two_processes_at_once_lose_nothing():
    jobs = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", _WRITER, name], env=dict(os.environ))
        for name in ("one", "two")
    ]
    while any(job.poll() is None for job in jobs):
        # Whatever the moment, a reader finds a whole file or none.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _calibration_file.forget()
            _calibration_file.thresholds()
        time.sleep(0.01)
    assert [job.returncode for job in jobs] == [0, 0]
    _calibration_file.forget()
    expected = {f"{name}.{number}" for name in ("one", "two") for number in range(40)}
    assert set(_calibration_file.thresholds()) == expected


def test_later_processes_use_it(folder):
    _calibration_file.keep({"test.choice": ENTRY})
    program = (
        "import memory; c = memory.register(memory.Crossover("
        "'test.choice', 1000, 'rows', 'few', 'many', 'none'));"
        "print(c.choose(12), c.choose(13), memory.crossovers()['test.choice'].source)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.split() == ["few", "many", "calibrated"]


@pytest.mark.parametrize(
    ("system", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, ("x", "steintrain")),
        ("linux", {"XDG_CACHE_HOME": ""}, (".cache", "steintrain")),
        ("darwin", {}, ("Caches", "steintrain")),
        ("win32", {"LOCALAPPDATA": "/local"}, ("local", "steintrain")),
    ],
)
def test_the_folder_is_the_systems_own(monkeypatch, system, variables, expected):
    monkeypatch.delenv("STEINTRAIN_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", system)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _calibration_file._folder().parts[-2:] == expected


def test_a_size_that_is_infinite_is_no_calibration(folder):
    _calibration_file.keep({"test.a": ENTRY})
    target = _calibration_file.path()
    target.write_text(target.read_text().replace("[\n     10,", "[\n     Infinity,"))
    assert "Infinity" in target.read_text()
    _calibration_file.forget()
    with pytest.warns(CalibrationWarning, match="no calibration"):
        assert _calibration_file.thresholds() == {}


def test_the_folder_may_be_under_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STEINTRAIN_CACHE_DIR", "~/calibrations")
    assert _calibration_file.path().parent == tmp_path / "calibrations"

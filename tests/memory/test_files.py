"""Files of arrays: round trips, faults while writing, files that are something else."""

import io
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memory import FileError, PrecisionWarning, load_arrays, save_arrays

DTYPES = ["float32", "float64", "int8", "bool", "complex64", "bfloat16", "float16", "float8_e4m3fn"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_bit_for_bit(dtype, tmp_path):
    array = jnp.asarray(np.linspace(0, 3, 6).reshape(2, 3)).astype(dtype)
    arrays = {"a": array, "scalar": array[0, 0], "empty": array[:0]}
    save_arrays(tmp_path / "file", "test", arrays, {"text": "ä", "list": [1, None, True]})
    loaded, about = load_arrays(tmp_path / "file", "test")
    assert about == {"text": "ä", "list": [1, None, True]}
    assert list(loaded) == list(arrays)
    for name, expected in arrays.items():
        assert loaded[name].dtype == expected.dtype and loaded[name].shape == expected.shape
        assert loaded[name].tobytes() == np.asarray(expected).tobytes()


def test_every_spelling_of_a_place(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ones = {"a": np.ones(3)}
    places = [
        tmp_path / "p",
        str(tmp_path / "s"),
        os.fsencode(tmp_path / "b"),
        "~/home",
        "relative",
    ]
    for place in places:
        save_arrays(place, "test", ones)
        assert (load_arrays(place, "test")[0]["a"] == 1).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "home", "p", "relative", "s"]
    stream = io.BytesIO()
    save_arrays(stream, "test", ones)
    stream.seek(0)
    assert (load_arrays(stream, "test")[0]["a"] == 1).all()
    with pytest.raises(ValueError, match="needs a name"):
        save_arrays("", "test", ones)


def fails(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(np, "savez"), (os, "fsync"), (os, "replace")],
    ids=["write", "sync", "rename"],
)
def test_a_disk_that_is_full_keeps_the_old_file_and_leaves_nothing(
    owner, name, tmp_path, monkeypatch
):
    path = tmp_path / "file"
    save_arrays(path, "test", {"a": np.zeros(3)})
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(owner, name, fails)
        save_arrays(path, "test", {"a": np.ones(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


_KILLED = """
import os, sys
import numpy as np
from memory import save_arrays
path, where = sys.argv[1:]
calls = {"write": (np, "savez"), "sync": (os, "fsync"), "rename": (os, "replace"), "after": None}[where]
real = getattr(*calls) if calls else None
if calls:
    def killed(*arguments, **options):
        if where == "write":
            arguments[0].write(b"half")
            arguments[0].flush()
        os._exit(9)
    setattr(*calls, killed)
save_arrays(path, "test", {"a": np.ones(3)})
os._exit(0)
"""


@pytest.mark.parametrize("where", ["write", "rename"])
def test_a_process_that_is_killed_leaves_the_old_file(where, tmp_path):
    path = tmp_path / "file"
    save_arrays(path, "test", {"a": np.zeros(3)})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path), where], env=environment)
    assert done.returncode == 9
    assert (load_arrays(path, "test")[0]["a"] == 0).all()
    # The next one is not held up by what is left.
    save_arrays(path, "test", {"a": np.ones(3)})
    assert (load_arrays(path, "test")[0]["a"] == 1).all()


def test_a_link_stays_one(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "file")
    save_arrays(link, "test", {"a": np.ones(3)})
    assert link.is_symlink() and (tmp_path / "folder" / "file").is_file()


def _cut(data):
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda data: b"", "is empty"),
        (_cut, "cut short"),
        (lambda data: b"plain text\n" * 9, "cut short, or of another program"),
    ],
    ids=["empty", "half", "text"],
)
def test_what_is_no_file_of_ours_is_told(make, words, tmp_path):
    path = tmp_path / "file"
    save_arrays(path, "tensor", {"a": np.arange(1000.0)})
    path.write_bytes(make(path.read_bytes()))
    with pytest.raises(FileError, match=f"file is no file of a steintrain tensor: .*{words}"):
        load_arrays(path, "tensor")


def test_foreign_arrays_other_kinds_and_later_formats_are_told(tmp_path, monkeypatch):
    np.savez(tmp_path / "foreign.npz", a=np.ones(2))
    with pytest.raises(FileError, match=r"holds arrays \(a\) without the header"):
        load_arrays(tmp_path / "foreign.npz", "tensor")
    np.save(tmp_path / "bare.npy", np.ones(2))
    with pytest.raises(FileError, match=r"one bare array of shape \(2,\)"):
        load_arrays(tmp_path / "bare.npy", "tensor")
    save_arrays(tmp_path / "fit", "fit", {})
    with pytest.raises(FileError, match="no file of a steintrain tensor: it holds a fit"):
        load_arrays(tmp_path / "fit", "tensor")
    with monkeypatch.context() as patch:
        patch.setattr("memory._files._VERSION", 2)
        save_arrays(tmp_path / "later", "tensor", {})
    with pytest.raises(FileError, match="in format 2.* reads up to 1"):
        load_arrays(tmp_path / "later", "tensor")
    with pytest.raises(FileNotFoundError):
        load_arrays(tmp_path / "none", "tensor")


def test_digits_that_would_be_lost_are_told(tmp_path):
    save_arrays(tmp_path / "file", "test", {"a": np.ones(2)})
    with jax.enable_x64(False), pytest.warns(PrecisionWarning, match=r"64-bit numbers \(a\)"):
        loaded, _ = load_arrays(tmp_path / "file", "test")
    assert loaded["a"].dtype == np.float64

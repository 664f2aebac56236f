"""Fits by several processes on this machine, one of which may die."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "fit_on_many.py"
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join(sys.path),
    # Compiling is most of the time of so small a fit.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=1",
}
# What one run has compiled another need not: set by `compiled`.
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
PATIENCE = 100  # seconds; on a busy machine, several times what a run takes


def start(count, *options):
    """The processes of one fit."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    words = [sys.executable, str(SCRIPT), "--coordinator", address, "--processes", str(count)]
    return [
        subprocess.Popen(
            [*words, "--process", str(number), *map(str, options)],
            env={**ENVIRONMENT, **CACHE},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]


def finish(processes):
    """Their output, all having ended well."""
    try:
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        end(processes)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    return outputs


def end(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def arrays(path, prefix=""):
    with np.load(path, allow_pickle=False) as file:
        names = [n for n in file.files if n.startswith(prefix)]
        return np.concatenate([file[n].ravel() for n in sorted(names)])


def step_of(path):
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file["about"]))["step"]


def assert_equal(value, reference):
    # Float64, added in another order, through some steps of Newton's method.
    np.testing.assert_allclose(value, reference, rtol=0, atol=1e-12 * np.abs(reference).max())


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    CACHE["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    files = folder / "fit.npz", folder / "gradient.npz"
    finish(start(1, "--checkpoint", files[0], "--gradient", files[1]))
    return files


@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_fit_as_one(count, alone, tmp_path):
    files = tmp_path / "fit.npz", tmp_path / "gradient.npz"
    outputs = finish(start(count, "--checkpoint", files[0], "--gradient", files[1]))
    assert f"on {count} devices" in outputs[0]
    assert_equal(arrays(files[1]), arrays(alone[1]))
    assert_equal(arrays(files[0], "x_"), arrays(alone[0], "x_"))
    assert step_of(files[0]) == step_of(alone[0])


def test_a_death_ends_the_others_and_the_checkpoint_resumes(alone, tmp_path):
    file = tmp_path / "fit.npz"
    processes = start(2, "--checkpoint", file, "--pause", 0.5)
    try:
        began = time.monotonic()
        while not file.exists() or step_of(file) < 2:
            assert time.monotonic() - began < PATIENCE and processes[0].poll() is None
            time.sleep(0.1)
        processes[1].send_signal(signal.SIGKILL)
        output, _ = processes[0].communicate(timeout=60)
    finally:
        end(processes)
    assert processes[0].returncode != 0, output[-3000:]
    reached = step_of(file)
    assert reached < step_of(alone[0])
    (output,) = finish(start(1, "--checkpoint", file))
    assert f"step {reached - 1} " not in output
    assert step_of(file) == step_of(alone[0])
    assert_equal(arrays(file, "x_"), arrays(alone[0], "x_"))

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

SCRIPT = Path(__file__).parents[2] / "examples" / "fit_on_many.py"
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join(sys.path),
    # Compiling is most of the time of so small a fit: what one has compiled, others need not.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1",
}
PATIENCE = 2000  # seconds: a guard against processes that never end, and no bound on slow machines


def start(count, folder, *options):
    """The processes of one fit; what they compile is kept in the folder."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    words = [sys.executable, str(SCRIPT), "--coordinator", address, "--processes", str(count)]
    return [
        subprocess.Popen(
            [*words, "--process", str(number), *map(str, options)],
            env={**ENVIRONMENT, "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")},
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


def about(path):
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file["header"]))["about"]


def history(path):
    """Objectives and gradient norms."""
    return np.asarray([row[1:3] for row in about(path)["history"]]).T


def assert_equal(value, reference):
    # Float64, added in another order, through some steps of Newton's method.
    np.testing.assert_allclose(value, reference, rtol=0, atol=1e-12 * np.abs(reference).max())


def test_four_processes_until_one_dies_and_then_two_fit_as_one(tmp_path):
    alone = tmp_path / "alone.npz", tmp_path / "one.npz"
    finish(start(1, tmp_path, "--checkpoint", alone[0], "--gradient", alone[1]))

    file, gradients = tmp_path / "fit.npz", [tmp_path / "four.npz", tmp_path / "two.npz"]
    processes = start(4, tmp_path, "--checkpoint", file, "--gradient", gradients[0], "--pause", 0.5)
    try:
        began = time.monotonic()
        while not file.exists() or about(file)["step"] < 2:
            assert time.monotonic() - began < PATIENCE and processes[0].poll() is None
            time.sleep(0.1)
        processes[-1].send_signal(signal.SIGKILL)
        for process in processes[:-1]:
            output, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode != 0, output[-3000:]
    finally:
        end(processes)
    reached = about(file)["step"]
    assert 2 <= reached < about(alone[0])["step"]

    output, _ = finish(start(2, tmp_path, "--checkpoint", file, "--gradient", gradients[1]))
    assert "on 2 devices" in output and f"step {reached - 1} " not in output
    for gradient in gradients:
        assert_equal(arrays(gradient), arrays(alone[1]))
    assert_equal(arrays(file, "x_"), arrays(alone[0], "x_"))
    # Of the steps by four processes, and of those by two: objective and gradient norm.
    for mine, reference in zip(history(file), history(alone[0]), strict=True):
        assert_equal(mine, reference)

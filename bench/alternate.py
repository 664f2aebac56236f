"""Two trees of this project timed in turns, row by row, so that a busy moment hits both.

One process for each tree runs the tree's own cases; only one of the two works at a time. The figures of a
row are the fastest of several rounds. Other libraries are left out: they are the same on both sides.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve()


class Tree:
    """A process that runs the cases of a checkout on request.

    Args:
        path: of the checkout, which has `bench` and `src`.
    """

    def __init__(self, path: Path):
        if not (path / "bench" / "harness.py").is_file():
            raise ValueError(f"{path} is no checkout of this project: it has no bench/harness.py")
        folders = [str(path), str(path / "src")]
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE), *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a process without pipes")
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self.cases: list[str] = self._answer()

    def begin(self, case: str, smoke: bool) -> None:
        self._say({"case": case, "smoke": smoke})

    def next_row(self) -> dict[str, Any] | None:
        """The next row of the case begun last; None after its end."""
        self._say({})
        return self._answer()

    def close(self) -> None:
        self._questions.close()
        self._process.wait()

    def _say(self, message):
        self._questions.write(json.dumps(message) + "\n")
        self._questions.flush()

    def _answer(self):
        line = self._answers.readline()
        if not line:
            raise RuntimeError("a tree's process ended; its error output is above")
        return json.loads(line)


def run(
    old: Path, new: Path, only: list[str] | None, rounds: int, smoke: bool
) -> tuple[dict, dict]:
    """The rows of the cases that both trees have, as `report.compare` reads them: (old, new)."""
    with contextlib.ExitStack() as stack:
        trees = [Tree(path) for path in (old, new)]
        for tree in trees:
            stack.callback(tree.close)
        names = [
            name
            for name in trees[1].cases
            if name in trees[0].cases
            and (not only or any(name == o or name.startswith(o + ".") for o in only))
        ]
        results: tuple[dict, dict] = ({}, {})
        for name in names:
            print(name, flush=True)
            rows: tuple[dict, dict] = ({}, {})
            for turn in range(rounds):
                # Whoever goes first finds the caches of the other case: each does in turn.
                order = (0, 1) if turn % 2 == 0 else (1, 0)
                for side, line in _in_turns(trees, order, name, smoke):
                    _keep_fastest(rows[side], line)
            for side in (0, 1):
                results[side][name] = {"case": name, "rows": list(rows[side].values())}
        return results


def _in_turns(trees, order, name, smoke) -> Iterator[tuple[int, dict]]:
    for tree in trees:
        tree.begin(name, smoke)
    going = list(order)
    while going:
        for side in list(going):
            line = trees[side].next_row()
            if line is None:
                going.remove(side)
            elif line["peer"].startswith("ours"):
                yield side, line


def _keep_fastest(rows, line) -> None:
    key = line["peer"] + json.dumps(line["params"], sort_keys=True)
    known = rows.get(key)
    if known is None or not known["timing"]:
        rows[key] = line
    elif line["timing"] and line["timing"]["min_seconds"] < known["timing"]["min_seconds"]:
        rows[key] = line


def _serve(folders: list[str]) -> None:
    """The process of a tree: answers one line for each line of its input."""
    sys.path[:1] = folders
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what cases print is no answer
    import jax

    jax.config.update("jax_enable_x64", True)
    from bench import __main__ as command
    from bench import harness

    command._import_cases(False)
    harness.peer_row = lambda peer, run, **params: harness.row(peer=peer, note="not run", **params)

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    answer(list(harness.cases()))
    rows: Iterator[dict] = iter(())
    for text in sys.stdin:
        message = json.loads(text)
        if message:
            rows = harness.cases(message["case"])[message["case"]](message["smoke"])
            continue
        try:
            answer(next(rows, None))
        except Exception as error:
            answer(harness.row(peer="ours", note=f"failed: {type(error).__name__}: {error}"))
            rows = iter(())


if __name__ == "__main__":
    _serve(sys.argv[1:])

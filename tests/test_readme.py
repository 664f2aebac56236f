"""Every Python block of the README and the documentation runs, as a reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
_BLOCK = re.compile(r"^(?P<indent> *)```python\n(?P<code>.*?)^ *```$", re.M | re.S)


def blocks(path: Path) -> list[str]:
    found = []
    for match in _BLOCK.finditer(path.read_text(encoding="utf-8")):
        width = len(match["indent"])
        found.append("\n".join(line[width:] for line in match["code"].splitlines()))
    return found


@pytest.mark.parametrize(
    "path", [p for p in PAGES if p.exists() and blocks(p)], ids=lambda p: p.name
)
def test_code_blocks_run(path, tmp_path):
    # One process for a page, its blocks in order: a block may use what an earlier one defined. JAX
    # is in the state that a reader's is in, without the strict settings of the tests.
    program = "\n\n".join(
        f"# block {number} of {path.name}\n{code}" for number, code in enumerate(blocks(path), 1)
    )
    script = tmp_path / "blocks.py"
    script.write_text(program, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {"MPLBACKEND": "Agg", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_blocks_are_found_with_their_indentation(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```python\nx = 1\n```\n=== tab\n    ```python\n    if x:\n        y = 2\n    ```\n"
    )
    assert blocks(page) == ["x = 1", "if x:\n    y = 2"]

"""Every choice between two ways, measured on this machine beside the shipped threshold."""

import importlib
import json
import os
import tempfile
from collections.abc import Sequence

from bench import harness


def main(names: Sequence[str] = (), seconds: float = 20.0) -> int:
    """Measures choices, prints each one's table, and keeps them with the other results.

    Args:
        names: which choices; all when empty.
        seconds: time for each.
    """
    # Measured for the tables only: the user's own calibration stays as it is.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEINTRAIN_CACHE_DIR"] = folder
        import memory

        for package in ("kernels", "svgd", "t3"):
            importlib.import_module(package)
        shipped = memory.crossovers()
        table = memory.calibrate(names or None, seconds=seconds)
    print(table)
    choices = []
    for name, line in table.items():
        if line.source != "calibrated":
            continue
        was, here = shipped[name].threshold, line.threshold
        print(f"\n{name}: shipped {was:,.6g}, here {here:,.6g} {line.unit}\n  {line.evidence}")
        choices.append(
            {"name": name, "shipped": was, "here": here, "unit": line.unit, "table": line.evidence}
        )
    content = {
        "format": "steintrain-crossover-tables-1",
        "environment": harness.environment(),
        "choices": choices,
    }
    target = harness.RESULTS / "crossovers.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0

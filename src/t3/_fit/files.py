"""Files of named arrays with a header that says what is inside."""

import json
import os
from typing import Any

import numpy as np


def write(
    path: str | os.PathLike, kind: str, about: dict[str, Any], arrays: dict[str, Any]
) -> None:
    """Arrays and what is said about them; a file that is there is replaced when all is written."""
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    header = json.dumps({"kind": kind, **about})
    try:
        with open(part, "wb") as file:
            np.savez(file, about=np.asarray(header), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise


def read(path: str | os.PathLike, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `write` wrote."""
    with np.load(path, allow_pickle=False) as file:
        about = json.loads(str(file["about"]))
        return about, {name: file[name] for name in file.files if name != "about"}

"""The time limits of single cases. The first worker that has collected writes them down for the controller."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from harness.errors import writing

_FILE = "limits.json"


def are_written(folder: Path) -> bool:
    """Whether a worker has written them."""
    return (folder / _FILE).exists()


def write(folder: Path, limits: Mapping[str, float]) -> None:
    """Write the seconds of each case that has a limit of its own. Raises WriteError."""
    path = folder / _FILE
    new = folder / f".{_FILE}-{os.getpid()}"
    with writing(repr(str(path))):
        new.write_text(json.dumps(dict(limits)), encoding="ascii")
        new.replace(path)


def read_limits(folder: Path) -> dict[str, float]:
    """What a worker has written; empty if none has."""
    try:
        found: dict[str, float] = json.loads((folder / _FILE).read_text(encoding="ascii"))
    except FileNotFoundError:
        return {}
    return found

"""Facts about cases for the controller, which has no items.

The first worker that finishes its collection writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.core.errors import convert_to_write_error

_FILE = "case-facts.json"


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """Facts about cases, by id.

    - `limits`: seconds, for each case with its own time limit.
    - `devices`: the number of devices, for each case that takes several, or that takes one alone although several cases
      may share it.
    - `apart`: the cases that run in their own process.
    - `gated`: why a case cannot run on this node, for a session of a cluster run.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    apart: Sequence[str] = ()
    gated: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> CaseFacts:
        """Return the facts that a worker has written; empty facts if none has."""
        try:
            fields = json.loads((folder / _FILE).read_text(encoding="ascii"))
        except FileNotFoundError:
            return cls()
        return cls(**fields)

    def write(self, folder: Path) -> None:
        """Write the facts. Raise WriteError."""
        path = folder / _FILE
        new = folder / f".{_FILE}-{os.getpid()}"
        with convert_to_write_error(repr(str(path))):
            new.write_text(json.dumps(asdict(self)), encoding="ascii")
            new.replace(path)


def are_written(folder: Path) -> bool:
    """Return whether a worker has written the facts."""
    return (folder / _FILE).exists()

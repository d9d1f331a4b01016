"""What the controller, which has no items, must know of cases. The first worker that has collected writes it down."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.core.errors import convert_to_write_error

_FILE = "case-facts.json"


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """`limits`: the seconds of each case that has a time limit of its own. `devices`: how many of them each case takes
    that takes several, or one alone where several cases may share it. `gated`: why each case cannot run on this node,
    for a session of a cluster run.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    gated: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> CaseFacts:
        """What a worker has written; nothing if none has."""
        try:
            found = json.loads((folder / _FILE).read_text(encoding="ascii"))
        except FileNotFoundError:
            return cls()
        return cls(**found)

    def write(self, folder: Path) -> None:
        """Raises WriteError."""
        path = folder / _FILE
        new = folder / f".{_FILE}-{os.getpid()}"
        with convert_to_write_error(repr(str(path))):
            new.write_text(json.dumps(asdict(self)), encoding="ascii")
            new.replace(path)


def are_written(folder: Path) -> bool:
    """Whether a worker has written them."""
    return (folder / _FILE).exists()

"""What a search tried for each test function, and the file of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Tried:
    """The tries for a function. `name`: the break that turned `case` red by its own check, or an empty text.

    `text`: the failure, or why no break can count. `tries`: how many breaks ended in which way: `green`, `checked`,
    `red` by no check of the case, or `unfit` if the break could not be made.
    """

    function: str
    case: str
    name: str
    text: str
    tries: Mapping[str, int]
    seconds: float

    @property
    def ends(self) -> str:
        """How many breaks ended in which way."""
        counts = ", ".join(f"{count} {end}" for end, count in sorted(self.tries.items()))
        return self.text or counts or "it reaches nothing that can be broken"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_tried(file: Path) -> list[Tried]:
    """Read the results. A line that a killed process did not finish is left out."""
    tried = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        tried.append(Tried(**values))
    return tried

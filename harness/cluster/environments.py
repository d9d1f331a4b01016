"""environment.json of a cluster run: the facts of all nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.reporting import environment


class Environments:
    """What the nodes have said of themselves. The facts of the first node are those of the run."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[str, Mapping[str, Any]] = {}

    def keep_earlier(self, part: int) -> None:
        """Keep the file of the part before."""
        path = self._run_dir / environment.FILE_NAME
        if path.exists():
            path.rename(path.with_stem(f"{path.stem}-{part - 1}"))

    def add(self, node: str, text: str) -> None:
        """Write the file anew, with what a node says. A text that is no JSON object is left out. Raises WriteError."""
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(facts, dict):
            return
        self._known[node] = facts
        first = next(iter(self._known.values()))
        devices = [each for known in self._known.values() for each in environment.devices_of(known)]
        by_uuid = {str(each.get("uuid")): each for each in devices}
        environment.write(self._run_dir, {**first, "devices": [*by_uuid.values()], "nodes": dict(self._known)})

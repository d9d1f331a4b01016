"""environment.json of a cluster run: the facts of all nodes."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.text import escape_invalid_xml
from harness.journal import environment


class Environments:
    """The facts that the nodes have sent about themselves.

    The facts of the run come from the node `leading`, which most others resemble, with the command and the host of the
    head, and the devices of all nodes. Therefore they agree with the `run` line of the journal, as evidence requires.
    """

    def __init__(self, run_dir: Path, argv: Sequence[str]) -> None:
        """`argv`: the command of the whole run. The facts of each node have its own command."""
        self._run_dir = run_dir
        self._command = [escape_invalid_xml(word) for word in argv]
        self.leading = ""
        self._facts: dict[str, Mapping[str, Any]] = {}

    def keep_earlier(self, part: int) -> None:
        """Keep the file of the earlier part."""
        path = self._run_dir / environment.FILE_NAME
        if path.exists():
            path.rename(path.with_stem(f"{path.stem}-{part - 1}"))

    def add(self, node: str, text: str) -> None:
        """Rewrite the file with the facts of a node. A text that is not a JSON object is left out. Raise WriteError."""
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(facts, dict):
            return
        self._facts[node] = facts
        first = self._facts.get(self.leading, next(iter(self._facts.values())))
        devices = [device for facts_of_node in self._facts.values() for device in environment.devices_of(facts_of_node)]
        by_uuid = {str(device.get("uuid")): device for device in devices}
        own = {"command": self._command, "host": escape_invalid_xml(platform.node()), "devices": [*by_uuid.values()]}
        environment.write_environment(self._run_dir, {**first, **own, "nodes": dict(self._facts)})

"""The rules of a cluster run, which the head reads from its own files. No node can change them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness.controller import rules
from harness.core.text import format_exit_code, last_error_line
from harness.journal import identity
from harness.journal.events import MustPass, RunStarted, Waiver
from harness.tools.cluster.wanted import ClusterError

#: The facts about a node's machine, which the `run` line takes from the nodes.
_OF_MACHINE = ("torch", "driver", "device", "python")


@dataclass(frozen=True, slots=True)
class Rules:
    """`run`: the fields of the `run` line that the rules decide. `lists`: the lines of waivers and must-pass lists.

    `files`: the facts about files that all sessions must share.
    """

    run: Mapping[str, Any]
    lists: tuple[MustPass | Waiver, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def difference(self, run: RunStarted) -> str:
        """Return how the `run` line of a session differs from these rules; empty if it does not."""
        expected = msgspec.structs.replace(run, **{**self.run, "identity": {**run.identity, **self.files}})
        found = identity.differences(identity.identity_facts(expected), identity.identity_facts(run))
        return "; ".join(difference.against("on the head") for difference in found)

    def run_fields(self, run: RunStarted) -> dict[str, Any]:
        """Return the fields of the run's line. `run`: the line of a session, for the facts about its machine."""
        machine = {name: run.identity[name] for name in _OF_MACHINE if name in run.identity}
        return {**self.run, "identity": {**self.files, **machine}, "rootdir": run.rootdir}


def read_rules(arguments: Sequence[str], folder: str) -> Rules:
    """Read the rules with a pytest in the working folder of the run, if this host has it, else in the current one.

    Raise ClusterError.
    """
    here = Path(folder) if folder and Path(folder).is_dir() else Path.cwd()
    with tempfile.TemporaryDirectory() as temp:
        path = Path(temp, "rules.json")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, "--collect-only", "--numprocesses=0"],
            cwd=here,
            env={**os.environ, rules.VARIABLE: str(path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
        )
        try:
            read = json.loads(path.read_text(encoding="ascii"))
        except FileNotFoundError:
            why = last_error_line(done.stdout) or f"pytest ended with {format_exit_code(done.returncode)}"
            raise ClusterError(f"the head cannot read the rules of the run in {str(here)!r}: {why}") from None
    return Rules(read["run"], msgspec.convert(read["lists"], tuple[MustPass | Waiver, ...]), read["files"])

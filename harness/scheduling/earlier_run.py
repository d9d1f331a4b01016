"""``--from DIR --only WORDS``: the cases that had certain verdicts in an earlier run."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.configuration.options import RED
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.text import format_count, list_first
from harness.gating import patterns
from harness.journal.ledger import Ledger

_FILE = "only.json"


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The cases of an earlier run that have one of the wanted verdicts. `text`: what was selected, for people."""

    ids: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, settings: Mapping[str, Any], base: Path) -> EarlierRun | None:
        """Return the cases that ``--from`` and ``--only`` select; None without them. `base`: the working folder.

        Raise pytest.UsageError.
        """
        if settings["from"] is None:
            if settings["only"]:
                raise pytest.UsageError(
                    f"--only={','.join(settings['only'])} needs --from=DIR: the run with the verdicts"
                )
            return None
        try:
            return cls.read(base / settings["from"], settings["only"])
        except HarnessError as error:
            raise pytest.UsageError(f"--from={str(settings['from'])!r}: {error}") from None

    @classmethod
    def read(cls, run_dir: Path, only: Sequence[str]) -> EarlierRun:
        """Read a run directory. `only`: words of `harness.configuration.options.VERDICTS`; empty for red cases.

        Raise JournalError if it has no run.
        """
        ledger = Ledger.of(run_dir)
        red = {verdict.case for verdict in ledger.red}
        words = only or (RED,)
        ids = tuple(
            verdict.case
            for verdict in ledger.verdicts
            if verdict.outcome.value in words or (RED in words and verdict.case in red)
        )
        return cls(ids, f"{format_count(len(ids), 'case')} of {run_dir} that {_are(ids)} {', '.join(words)}")

    def gone(self, cases: Container[str], arguments: Sequence[str]) -> str:
        """Return a sentence if cases no longer exist; else an empty text.

        `cases`: all collected cases, even deselected ones.

        Cases outside the `arguments` of this run are ignored.
        """
        missing = [case for case in self.ids if case not in cases and patterns.pattern_reaches(case, arguments)]
        if not missing:
            return ""
        amount = "a case" if len(missing) == 1 else f"{len(missing)} cases"
        return f"--from names {amount} that this tree does not have: {list_first(missing)}"

    def write(self, folder: Path) -> Path:
        """Write the ids to a file that workers read (`harness.scheduling.selection.read_ids`). Raise WriteError."""
        path = folder / _FILE
        with convert_to_write_error(repr(str(path))):
            path.write_text(json.dumps(self.ids), encoding="ascii")
        return path


def _are(ids: Sequence[str]) -> str:
    return "is" if len(ids) == 1 else "are"

"""What a cluster run is asked, the head's own rules, and whether the sessions of the nodes are like each other."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness.controller import rules
from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError
from harness.core.text import format_count, format_exit_code, last_error_line
from harness.journal import identity, journal, reader
from harness.journal.events import (
    Batch,
    Collected,
    Confirmation,
    Device,
    Event,
    Executor,
    Finding,
    Finish,
    Levels,
    MustPass,
    RunStarted,
    Start,
    Wait,
    Waiver,
)
from harness.journal.reader import Damaged, Unknown
from harness.scheduling.workers import Resumption
from harness.tools.cluster.link import LinkProtocolError, Ready


class ClusterError(HarnessError):
    """A cluster run cannot begin."""


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """The user's request, with the run directory, its id and the variables for the nodes once the run begins.

    `folder`: the working folder of the run, by default the current one. `resume`: the run directory to continue, in
    spite of changes with `force`. `silence`: a node without a message for this many seconds is lost. `orphaned_after`:
    a node stops after this many seconds without a message from the head. Others: `CaseQueue`.
    """

    arguments: tuple[str, ...]
    argv: tuple[str, ...]
    results_dir: Path | None = None
    resume: Path | None = None
    force: bool = False
    folder: str = ""
    run_dir: Path = Path()
    run_id: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    grace: float = 10.0
    silence: float = 10.0
    orphaned_after: float = 120.0
    start_limit: float = 120.0
    stuck: float = 7200.0
    end_limit: float = 600.0
    second_looks: int = 20


@dataclass(frozen=True, slots=True)
class Earlier:
    """The state of a resumed run.

    `facts`: what must not have changed. `lines`: about attempts that were in flight. `suspects`: the cases that may
    have ended a node, each with its node.
    """

    resumption: Resumption
    run_id: str
    facts: Mapping[str, str]
    lines: tuple[Event, ...] = ()
    suspects: Mapping[str, str] = field(default_factory=dict)
    force: bool = False


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


#: Facts that may differ between the nodes of one run. The lines of each case name its node.
FREE = ("device", "driver")
_ABOUT_CASE = Start | Finish | Levels | Confirmation
_ABOUT_NODE = Executor | Device | Wait


@dataclass(slots=True)
class SessionLines:
    """The first lines of a session's journal."""

    name: str
    number: int
    run: RunStarted | None = None
    ids: tuple[str, ...] = ()
    deselected: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    red: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """Return the facts that must be equal in all sessions of the run."""
        facts = {} if self.run is None else identity.identity_facts(self.run)
        return {name: text for name, text in facts.items() if name not in FREE}

    @property
    def collection(self) -> tuple[tuple[str, ...], ...]:
        """Return the lists of cases, which must also be equal."""
        return self.ids, self.deselected, self.unread


def read_line(text: str) -> Event | None:
    """Return the event in a line of an agent; None if the line is not an event."""
    try:
        event = _parser()(1, text.encode("utf-8", "backslashreplace"))
    except journal.JournalError:
        return None
    return None if isinstance(event, Damaged | Unknown) else event


@functools.cache
def _parser() -> Callable[[int, bytes], Event | Damaged | Unknown]:
    return reader.line_parser(Path("of an agent"))


def cases_of(event: Event) -> tuple[str, ...] | None:
    """Return the cases that a line is about; None if a node may write it about itself."""
    if isinstance(event, _ABOUT_CASE):
        return (event.case,)
    if isinstance(event, Batch | Finding):
        return event.cases
    return None if isinstance(event, _ABOUT_NODE) else ()


def is_head_of_session(event: Event) -> bool:
    """Return whether the line belongs to the start of a session, so that it is not copied."""
    return isinstance(event, RunStarted | Collected | MustPass | Waiver)


def enter_session_line(session: SessionLines, event: Event) -> None:
    """Record a line of the start of a session. Waivers and must-pass lists are those of the head's own files."""
    match event:
        case RunStarted():
            session.run = event
        case Collected() if event.ids or not event.count:
            session.ids, session.deselected, session.unread = event.ids, event.deselected, event.unread


def check_ready(session: SessionLines, ready: Ready) -> None:
    """Raise LinkProtocolError if the answer of a session does not match the lines of its journal."""
    count = len(session.ids)
    if session.run is None:
        raise LinkProtocolError("it sent no 'run' line before it was ready")
    if (ready.count, ready.hash, len(ready.seconds)) != (count, digest_of_ids(session.ids), count):
        answer = f"{ready.count} cases and {len(ready.seconds)} durations"
        raise LinkProtocolError(f"it is ready with {answer}, and its journal has {count} cases")
    if len({*session.ids}) != count:
        raise LinkProtocolError("its journal lists a case twice")


def usual_session(sessions: Sequence[SessionLines]) -> SessionLines:
    """Return the session that equals most of the others; among several, the first."""
    keys = [(tuple(sorted(session.facts.items())), session.collection) for session in sessions]
    most = max(Counter(keys).values())
    return next(session for session, key in zip(sessions, keys, strict=True) if keys.count(key) == most)


def session_difference(session: SessionLines, reference: SessionLines) -> str:
    """Return how a session differs from that of most others; empty if it does not."""
    differences = [
        difference.against("in most others") for difference in identity.differences(reference.facts, session.facts)
    ]
    if not differences and session.collection != reference.collection:
        collected = format_count(len(session.ids), "test")
        differences.append(f"it has collected {collected}, and the run has {format_count(len(reference.ids), 'case')}")
    return "; ".join(differences)


def changes_since(earlier: Earlier, reference: SessionLines) -> tuple[str, ...]:
    """Return what has changed since a resumed run was started."""
    changes = [difference.text for difference in identity.differences(earlier.facts, reference.facts)]
    if changed := earlier.resumption.difference(reference.ids):
        changes.append(f"the list of cases has changed: {changed}")
    return tuple(changes)

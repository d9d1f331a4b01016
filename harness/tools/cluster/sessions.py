"""The first lines of the sessions of a cluster run: what each has collected, and whether it is like the others."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.caseid import digest_of_ids
from harness.core.text import format_count
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
from harness.tools.cluster.messages import LinkProtocolError, Ready
from harness.tools.cluster.wanted import Earlier

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

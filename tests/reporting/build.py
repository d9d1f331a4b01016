"""Events as plain dicts, as the harness appends them to a journal, and as the models that a reader gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from harness.core.caseid import digest_of_ids
from harness.core.outcome import Outcome
from harness.journal.events import SCHEMA, Event
from harness.journal.journal import decode_line
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents

Line = dict[str, Any]


def run(**changes: Any) -> Line:
    return {
        "event": "run",
        "t": 1_760_000_000.25,
        "schema": SCHEMA,
        "run_id": "r1",
        "argv": ["pytest", "suites/"],
        "seed": 7,
        "isolation": "batch",
        "host": "node1",
        "pid": 10,
        "devices": ["cpu"],
        "fail_on_flaky": False,
        "rootdir": "/here",
        **changes,
    }


def collected(*ids: str, worker: str = "gw0", **changes: Any) -> Line:
    return {
        "event": "collected",
        "t": 1_760_000_001.0,
        "worker": worker,
        "count": len(ids),
        "hash": digest_of_ids(ids),
        "ids": list(ids),
        **changes,
    }


def shard(**changes: Any) -> Line:
    line = {"event": "shard", "t": 1_760_000_000.4, "shard": "1/3", "run_id": "r1", "host": "node1", "devices": ["cpu"]}
    return {**line, "exit_status": 0, **changes}


def reopened(case: str) -> Line:
    return {"event": "reopened", "t": 1_760_000_002.1, "case": case}


def must_pass(*ids: str, **changes: Any) -> Line:
    line = {"event": "must_pass", "t": 1_760_000_000.5, "name": "core", "hash": digest_of_ids(ids), "ids": list(ids)}
    return {**line, **changes}


def waiver(case: str, **changes: Any) -> Line:
    line = {
        "event": "waiver",
        "t": 1_760_000_000.6,
        "case": case,
        "when": {},
        "expect": ["failed"],
        "reason": "a known problem",
    }
    more = {"link": "https://example.org/1", "owner": "someone", "expires": "2025-10-31", "source": "known.yaml:3"}
    return {**line, **more, **changes}


def ruling(outcome: Outcome, text: str = "a rule says so") -> dict[str, Any]:
    return {"outcome": outcome.value, "text": text, "source": "known.yaml:3"}


def start(case: str, **changes: Any) -> Line:
    return {
        "event": "start",
        "t": 1_760_000_002.0,
        "case": case,
        "attempt": 1,
        "worker": "gw0",
        "executor": "gw0-1",
        "devices": ["cpu"],
        "seed": 11,
        **changes,
    }


def finish(case: str, outcome: Outcome = Outcome.PASSED, **changes: Any) -> Line:
    return {
        "event": "finish",
        "t": 1_760_000_003.0,
        "case": case,
        "attempt": 1,
        "worker": "gw0",
        "executor": "gw0-1",
        "devices": ["cpu"],
        "seed": 11,
        "outcome": outcome.value,
        "final": True,
        "duration": 0.5,
        **changes,
    }


def executor(name: str = "gw0-1", state: str = "started", **changes: Any) -> Line:
    return {
        "event": "executor",
        "t": 1_760_000_001.5,
        "executor": name,
        "worker": name.partition("-")[0],
        "pid": 11,
        "state": state,
        **changes,
    }


def device(state: str = "healthy", **changes: Any) -> Line:
    return {"event": "device", "t": 1_760_000_001.6, "device": "GPU-a", "state": state, **changes}


def bisected(case: str, culprits: list[str], **changes: Any) -> Line:
    line = {"event": "bisected", "t": 1_760_000_006.0, "case": case, "outcome": "failed", "culprits": culprits}
    return {**line, "trials": 5, "reproduce": f"pytest {case}", **changes}


def confirmation(case: str, **changes: Any) -> Line:
    growths = [{"tensors": 1, "heap_bytes": -64}, {"tensors": 1}]
    line = {"event": "confirmation", "t": 1_760_000_002.5, "case": case, "suspicions": {"tensors": 1}}
    return {**line, "growths": growths, "leaks": ["tensors: 1 more"], **changes}


def batch(*cases: str, **changes: Any) -> Line:
    line = {"event": "batch", "t": 1_760_000_002.7, "executor": "gw0-1", "cases": list(cases)}
    return {
        **line,
        "suspicions": {"heap_bytes": 1 << 20},
        "leaks": [],
        "tried": len(cases),
        "trials": 1,
        "seconds": 0.5,
        **changes,
    }


def levels(case: str, attempt: int = 1, executor: str = "gw0-1", **values: int) -> Line:
    line = {"event": "levels", "t": 1_760_000_002.9, "case": case, "attempt": attempt, "executor": executor}
    return {**line, "values": values}


def activity(what: str, **changes: Any) -> Line:
    return {"event": "activity", "t": 1_760_000_003.5, "worker": "gw0", "what": what, **changes}


def stopped(by: str = "SIGTERM", grace: float = 10.0) -> Line:
    return {"event": "stopped", "t": 1_760_000_004.5, "by": by, "grace": grace}


def finding(message: str, **changes: Any) -> Line:
    return {"event": "finding", "t": 1_760_000_004.0, "kind": "device_lost", "message": message, **changes}


def session_property(name: str, value: str) -> Line:
    return {"event": "session_property", "t": 1.0, "name": name, "value": value}


def wait(message: str, **changes: Any) -> Line:
    return {"event": "wait", "t": 1_760_000_004.0, "worker": "gw1", "message": message, **changes}


def end(**changes: Any) -> Line:
    return {"event": "end", "t": 1_760_000_005.0, "exit_status": 0, "duration": 5.0, **changes}


def passed(case: str) -> list[Line]:
    """Return a case that passed."""
    return [start(case), finish(case)]


def finished(*lines: Line) -> list[Line]:
    """Return the lines with an end, if they have none."""
    return [*lines, *([] if any(line["event"] == "end" for line in lines) else [end()])]


def broke_and(case: str, first: Outcome, second: Outcome | None, **changes: Any) -> list[Line]:
    """Return a case that broke after others and was tried again alone; with `second` None that attempt never ended."""
    return [
        start(case),
        finish(case, first, final=False, message="broke here", **changes),
        start(case, attempt=2, alone=True, executor="gw0-2"),
        *([] if second is None else [finish(case, second, attempt=2, alone=True, executor="gw0-2")]),
    ]


def event(line: Line) -> Event:
    """Return the event of a line as a dictionary. Its time may be left out."""
    return msgspec.convert({"t": 1.0, **line}, Event)  # type: ignore[no-any-return]


def whole_line(event: Event) -> Line:
    """Return the line of an event as a dictionary with all fields, also those that are not written."""
    names = zip(event.__struct_fields__, event.__struct_encode_fields__, strict=True)
    fields: Line = {encoded: getattr(event, name) for name, encoded in names}
    plain: Line = json.loads(json.dumps(msgspec.to_builtins(fields)))  # tuples as lists
    return {"event": event.event, **plain}


#: Fields that are only in a line if they have a value. Tests look whether they are there, and read others at once.
_OPTIONAL = {
    *("detail", "exit_status", "gate", "host", "keeps", "log", "memory", "message", "notes", "pid", "properties"),
    *("reproduce", "ruling", "selected", "selection", "since", "skipped", "stderr", "stdout", "struck", "unread"),
}


def read_lines(data: bytes) -> list[Line]:
    """Return the whole lines of a journal as dictionaries, with the defaults of most fields."""
    return [_with_defaults(json.loads(line)) for line in data.split(b"\n")[:-1] if line]


def _with_defaults(line: Line) -> Line:
    whole = whole_line(decode_line(json.dumps(line).encode()))
    optional = set() if line["event"] in ("executor", "device", "node") else _OPTIONAL
    return {**{name: value for name, value in whole.items() if name not in optional}, **line}


def events(*lines: Line) -> list[Event]:
    return [event(line) for line in lines]


def contents(*lines: Line) -> JournalContents:
    """Return the contents of a journal that exists nowhere."""
    return JournalContents(Path("run/journal.ndjson"), tuple(events(*lines)))


def ledger(*lines: Line) -> Ledger:
    return Ledger.from_lines(events(*lines))

"""Build the lines of a journal. `harness.journal.events` documents their fields and reads them.

Every case writes lines, in processes that have not imported pydantic, so lines are plain dictionaries here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Line = dict[str, Any]


def finding(
    kind: str, message: str, cases: Sequence[str] = (), *, reproduce: str | None = None, host: str | None = None
) -> Line:
    """Return a line: a problem that makes the run red and belongs to no single case. `kind`: see docs/verdicts.md."""
    line = {"event": "finding", "kind": kind, "message": message, "cases": list(cases)}
    return line | _given(reproduce=reproduce, host=host)


def wait(worker: str, message: str) -> Line:
    """Return a line for a worker that must wait before it can continue."""
    return {"event": "wait", "worker": worker, "message": message}


def session_property(name: str, value: str) -> Line:
    """Return a line for a property of the run as a whole, which a case or a fixture recorded."""
    return {"event": "session_property", "name": name, "value": value}


def stopped(by: str, grace: float) -> Line:
    """Return a line for the signal `by` that stopped the run. `grace`: seconds that running cases got to end."""
    return {"event": "stopped", "by": by, "grace": grace}


def reopened(case: str) -> Line:
    """Return a line for a case that ended as `lost` or `not_run` and runs again."""
    return {"event": "reopened", "case": case}


def collected(
    worker: str,
    *,
    count: int,
    digest: str,
    part: int,
    ids: Sequence[str],
    deselected: Sequence[str],
    unread: Sequence[str] = (),
    skipped: Mapping[str, str] | None = None,
    pid: int | None = None,
    selection: str | None = None,
    selected: Sequence[str] | None = None,
) -> Line:
    """Return a line with the cases that a worker has collected. `selection` and `selected` are only for a shard."""
    line = {"event": "collected", "worker": worker, "count": count, "hash": digest, "part": part}
    line |= {"ids": list(ids), "deselected": list(deselected)}
    return line | _given(
        unread=list(unread) or None,
        skipped=skipped or None,
        pid=pid,
        selection=selection,
        selected=None if selected is None else list(selected),
    )


def must_pass(name: str, digest: str, ids: Sequence[str]) -> Line:
    """Return a line with a must-pass list of the run."""
    return {"event": "must_pass", "name": name, "hash": digest, "ids": list(ids)}


def levels(case: str, *, attempt: int, executor: str, values: Mapping[str, int]) -> Line:
    """Return a line with the resources that an executor had in use after an attempt, by meter."""
    return {"event": "levels", "case": case, "attempt": attempt, "executor": executor, "values": dict(values)}


def executor(
    name: str,
    state: Literal["started", "ended"],
    *,
    worker: str,
    pid: int,
    devices: Sequence[str],
    startup: float | None,
    cases: int,
    exit_status: int | None,
    reason: str,
) -> Line:
    """Return a line for an executor that started, or has certainly ended. `startup`: seconds until it was ready."""
    line = {"event": "executor", "executor": name, "worker": worker, "pid": pid, "devices": list(devices)}
    return line | {
        "state": state,
        "startup": startup,
        "cases": cases,
        "exit_status": exit_status,
        "reason": reason,
    }


def device(
    uuid: str,
    state: Literal["healthy", "sick", "drained"],
    *,
    worker: str,
    moment: str,
    message: str,
    seconds: float | None,
) -> Line:
    """Return a line with the health of a device. `seconds`: duration of its examination."""
    line = {"event": "device", "device": uuid, "state": state, "worker": worker, "moment": moment, "message": message}
    return line | {"seconds": None if seconds is None else round(seconds, 6)}


def activity(worker: str, what: str = "", since: float | None = None) -> Line:
    """Return a line with what a worker does between attempts at cases. Empty `what`: the activity is over."""
    return {"event": "activity", "worker": worker, "what": what} | _given(since=since)


def confirmation(
    case: str,
    *,
    suspicions: Mapping[str, int],
    growths: Sequence[Mapping[str, int]],
    leaks: Sequence[str],
    failure: str,
) -> Line:
    """Return a line for a checked leak suspicion. All growths are by meter."""
    line = {"event": "confirmation", "case": case, "suspicions": dict(suspicions)}
    return line | {"growths": [dict(growth) for growth in growths], "leaks": list(leaks), "failure": failure}


def batch(
    executor: str,
    cases: Sequence[str],
    *,
    suspicions: Mapping[str, int],
    leaks: Sequence[str],
    unproven: Sequence[str],
    tried: int,
    trials: int,
    seconds: float,
    failure: str,
) -> Line:
    """Return a line for an executor that grew over its cases, with the result of the search for the cause."""
    line = {"event": "batch", "executor": executor, "cases": list(cases), "suspicions": dict(suspicions)}
    return line | {
        "leaks": list(leaks),
        "unproven": list(unproven),
        "tried": tried,
        "trials": trials,
        "seconds": round(seconds, 3),
        "failure": failure,
    }


def bisected(case: str, *, outcome: str, culprits: Sequence[str], trials: int, reproduce: str) -> Line:
    """Return a line with the earlier cases that make a case fail."""
    line = {"event": "bisected", "case": case, "outcome": outcome, "culprits": list(culprits)}
    return line | {"trials": trials, "reproduce": reproduce}


def _given(**fields: Any) -> Line:
    return {name: value for name, value in fields.items() if value is not None}

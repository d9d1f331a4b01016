"""A fake agent that speaks the protocol, runs nothing, and lies as requested: ``fake_agent.py NAME LIE``."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence
from typing import Any

from harness.core.caseid import digest_of_ids
from harness.tools.cluster.messages import VERSION

CASES = [f"suites/some/test_some.py::test_it[{number}]" for number in range(6)]
_LIES = ("", "foreign", "done", "nonsense", "events", "other", "never", "stays", "clock")


def send(kind: str, **fields: Any) -> None:
    data = memoryview((json.dumps({"say": kind, **fields}) + "\n").encode())
    while data:
        data = data[os.write(1, data) :]


def attempt(case: str, outcome: str, ahead: float = 0.0, device: str = "d") -> list[str]:
    """Return the two lines of an attempt at a case."""
    now = time.time() + ahead
    common = {
        "t": now,
        "case": case,
        "attempt": 1,
        "worker": "gw0",
        "executor": "gw0-e1",
        "devices": [device],
        "seed": 1,
    }
    ended = {"event": "finish", **common, "outcome": outcome, "final": True, "duration": 0.1}
    return [json.dumps({"event": "start", **common}), json.dumps(ended)]


def open_session(
    name: str, cases: Sequence[str], *, session: int = 1, torch: str = "2", workers: int = 1, device: str = "d"
) -> None:
    """Send the messages of a session's start: it has these cases, and takes two per worker."""
    run = {
        "event": "run",
        "t": time.time(),
        "schema": 1,
        "run_id": "r",
        "argv": ["pytest"],
        "seed": 1,
        "isolation": "batch",
        "host": name,
        "pid": os.getpid(),
        "devices": [device],
        "fail_on_flaky": False,
        "rootdir": "/",
        "identity": {"torch": torch},
    }
    collected = {"event": "collected", "t": time.time(), "worker": "gw0", "count": len(cases)}
    collected |= {"hash": digest_of_ids(cases), "ids": [*cases]}
    send("lines", lines=[json.dumps(run), json.dumps(collected)])
    send(
        "ready",
        session=session,
        folder="/",
        workers=workers,
        count=len(cases),
        hash=digest_of_ids(cases),
        seconds=[0.1] * len(cases),
        gated={},
        devices={device: "kind"},
        environment="{}",
    )
    send("want", cases=2 * workers)


def begin(name: str, lie: str, session: int) -> None:
    open_session(name, CASES, session=session, torch="1" if lie == "other" else "2")


def lies(lie: str) -> None:
    """Send what a hostile agent says when it gets its first cases."""
    if lie == "foreign":
        for case in CASES:
            send("lines", lines=attempt(case, "passed"))
    elif lie == "done":
        for case in (*range(len(CASES)), 10_000):
            send("done", case=case)
    elif lie == "nonsense":
        send("open")
    elif lie == "events":
        made_up = {"event": "end", "t": 1.0, "exit_status": 0, "duration": 0.0}
        reopened = {"event": "reopened", "t": 1.0, "case": CASES[0]}
        waived = {"event": "waiver", "t": 1.0, "case": "*", "expect": ["failed"], "reason": "so", "source": "x:1"}
        more: dict[str, Any] = {"event": "collected", "t": 1.0, "worker": "x", "count": 0}
        more["hash"] = "sha256:" + 64 * "0"
        lines = [json.dumps(each) for each in (made_up, reopened, {**waived, "expires": "2099-01-01"}, more)]
        send("lines", lines=[*lines, "{", "[]", '{"event":"run"}', "\x00"])


class Words:
    """The messages of the head."""

    def __init__(self) -> None:
        self._data = b""

    def next(self) -> dict[str, Any] | None:
        """Return the next message; None if none arrives within a second."""
        while b"\n" not in self._data:
            if not select.select([0], [], [], 1.0)[0]:
                return None
            more = os.read(0, 1 << 16)
            if not more:
                return {"say": "quit"}
            self._data += more
        line, _, self._data = self._data.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def main(name: str, lie: str) -> None:
    assert lie in _LIES
    words = Words()
    reported = words.next()
    assert reported is not None
    send("hello", version=VERSION, token=reported["token"], host=name, pid=os.getpid(), harness="0")
    session = 1
    begin(name, lie, session)
    lied = False
    while True:
        message = words.next()
        if message is None:
            send("beat")
            continue
        if message["say"] == "give":
            if not lied:
                lied = True
                lies(lie)
            if lie == "never":
                os._exit(0)  # srun may return 0 for a step whose node died
            for each in message["cases"]:
                send("lines", lines=attempt(CASES[each["case"]], "failed" if lie else "passed", 1e6 * (lie == "clock")))
                send("done", case=each["case"])
                send("want", cases=1)
        elif message["say"] == "open":
            session += 1
            begin(name, lie, session)
        elif message["say"] == "end":
            send("session_over", status=0, output="")
        elif message["say"] == "quit" and lie != "stays":
            send("bye", sessions=1, cases=1)
            return


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A fake agent that speaks the protocol, runs nothing, and lies as requested: ``fake_agent.py NAME LIE``."""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections.abc import Sequence
from typing import Any

from harness.core.caseid import digest_of_ids
from harness.tools.cluster.link import VERSION

CASES = [f"suites/some/test_some.py::test_it[{number}]" for number in range(6)]
#: The lies about what a session has collected, and the others.
_OF_START = ("other", "waivers", "rules", "digits", "short", "long", "twice", "no_run", "fewer", "odd_facts", "text")
_LATER = (
    "red",
    "foreign",
    "done",
    "nonsense",
    "events",
    "never",
    "stays",
    "clock",
    "hour",
    "attempts",
    "flood",
    "ready",
    "any",
)


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


def open_session(name: str, cases: Sequence[str], *, session: int = 1, workers: int = 1, device: str = "d") -> None:
    """Send the messages of a session's start: it has these cases, and takes two per worker."""
    run, collected, ready = start_of_session(name, cases, session=session, workers=workers, device=device)
    send("lines", lines=[json.dumps(run), json.dumps(collected)])
    send("ready", **ready)
    send("want", cases=2 * workers)


def start_of_session(
    name: str, cases: Sequence[str], *, session: int = 1, workers: int = 1, device: str = "d"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the `run` and `collected` lines of a session, and the fields of its message `ready`."""
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
        "identity": {"torch": "2", "waivers": "none"},
    }
    collected = {"event": "collected", "t": time.time(), "worker": "gw0", "count": len(cases)}
    collected |= {"hash": digest_of_ids(cases), "ids": [*cases]}
    ready = {
        "session": session,
        "folder": "/",
        "workers": workers,
        "count": len(cases),
        "hash": digest_of_ids(cases),
        "seconds": [0.1] * len(cases),
        "gated": {},
        "devices": {device: "kind"},
        "environment": "{}",
    }
    return run, collected, ready


WAIVER = {
    "event": "waiver",
    "t": 1.0,
    "case": "*",
    "expect": ["failed"],
    "reason": "so",
    "source": "x:1",
    "expires": "2099-01-01",
}


def begin(name: str, lie: str, session: int) -> None:
    """Open a session, and lie about what it has collected."""
    cases = {"fewer": CASES[:3], "twice": [*CASES, CASES[0]]}.get(lie, CASES)
    run, collected, ready = start_of_session(name, cases, session=session)
    lines = [run, collected]
    match lie:
        case "other":
            run["identity"]["torch"] = "1"
        case "waivers":
            lines.append(WAIVER)
        case "rules":
            run["fail_on_flaky"] = True
        case "digits":
            ready["gated"] = {"1" * 5000: "no"}
        case "short":
            ready["seconds"] = []
        case "long":
            ready["seconds"] = [0.1] * 10_000
        case "no_run":
            lines = [collected]
        case "odd_facts":
            ready["environment"] = '{"devices": {"a": ' + "1" * 4000 + '}, "nodes": 3}'
        case "text":
            send("stopping", why="\x1b[2J\nharness: signed by the king\u202e")
    send("lines", lines=[json.dumps(line) for line in lines])
    send("ready", **ready)
    send("want", cases=2)


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
        more: dict[str, Any] = {"event": "collected", "t": 1.0, "worker": "x", "count": 0}
        more["hash"] = "sha256:" + 64 * "0"
        lines = [json.dumps(each) for each in (made_up, reopened, WAIVER, more)]
        send("lines", lines=[*lines, "{", "[]", '{"event":"run"}', "\x00"])

    elif lie == "attempts":
        send(
            "lines", lines=[json.dumps({**json.loads(attempt(case, "passed")[0]), "attempt": 10**30}) for case in CASES]
        )
    elif lie == "flood":
        for _ in range(200):
            send("lines", lines=attempt("no such case", "passed") * 50)
    elif lie == "ready":
        for _ in range(3):
            begin("again", "", 1)
    elif lie.startswith("any"):
        anything(random.Random(lie))


def anything(rng: random.Random) -> None:
    """Send messages of the right form in a wrong order, with values that a model accepts."""
    texts = ["", "\x1b[31m", "a\nb", "x" * 4096, "\udc80", CASES[0], "0"]
    numbers = [0, 1, 5, 255, 4096, 10_000_000]
    for _ in range(60):
        run, collected, ready = start_of_session(rng.choice(texts), rng.sample(CASES, rng.randrange(1, 6)))
        ready["gated"] = {str(rng.choice(numbers)): rng.choice(texts)}
        ready["workers"], ready["devices"] = rng.choice([1, 4096]), {rng.choice(texts): rng.choice(texts)}
        case = {"event": "finish", "t": 1.0, "case": rng.choice([*CASES, "?"]), "attempt": rng.choice(numbers[1:])}
        case |= {"worker": "w", "seed": 1, "outcome": rng.choice(["passed", "lost", "not_run", "gated", "failed"])}
        case |= {"final": rng.random() < 0.5, "duration": rng.choice([0.0, 1e8])}
        finding = {"event": "finding", "t": 1.0, "kind": "leak", "message": rng.choice(texts), "cases": ["?"]}
        line = rng.choice([run, collected, case, finding, WAIVER, {"event": "end"}])
        kind, fields = rng.choice(
            [
                ("lines", {"lines": [json.dumps(line)]}),
                ("ready", ready),
                ("want", {"cases": rng.choice(numbers)}),
                ("done", {"case": rng.choice(numbers)}),
                ("session_over", {"status": rng.choice([0, 1, 3]), "output": rng.choice(texts)}),
                ("stopping", {"why": rng.choice(texts)}),
                ("hello", {"version": VERSION, "token": "x", "host": "h", "pid": 1, "harness": "0", "clock": 0.0}),
                ("beat", {}),
            ]
        )
        send(kind, **fields)


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
    assert not lie or lie.partition("-")[0] in (*_OF_START, *_LATER)
    words = Words()
    reported = words.next()
    assert reported is not None
    ahead = {"clock": 1e6, "hour": -3600.0}.get(lie, 0.0)
    clock = time.time() + (ahead if lie == "hour" else 0.0)  # the other one lies about its times, but not at first
    facts = {"host": name, "pid": os.getpid(), "harness": "0", "clock": clock}
    send("hello", version=VERSION, token=reported["token"], **facts)
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
                send("lines", lines=attempt(CASES[each["case"]], "failed" if lie else "passed", ahead))
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

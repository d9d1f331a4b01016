"""One run in the form of the store: rows of the staging tables in `sql/stages.sql`, and fingerprints of its failures.

Failures with one fingerprint are one group. The key is a hash of the title: the message without everything that differs
between two runs of one defect, and the innermost frame outside the tests. A message that many defects share, such as a
failed assertion, is too unspecific, so the suite of the case is then part of the title.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.backends.table import backend_of
from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml, single_line
from harness.fleet.run import RunSummary, environment_facts, is_plain, read_run_or_archive
from harness.journal import environment
from harness.journal.environment import Place, Places, mapping
from harness.journal.identity import SUITE_FILES, identity_facts, without_numbers
from harness.journal.verdicts import Verdict
from harness.reporting.page import inert
from harness.tools import conformance

#: Maximum characters of a message, of a reason and of a kept stack.
MOST_OF_MESSAGE = 1000
MOST_OF_REASON = 300
MOST_OF_STACK = 4000
MOST_OF_COMMAND = 2000
#: The largest code of a size, for 2 to the power of 62 bytes.
MOST_CODE = 496
#: Maximum cases of a finding that are kept.
MOST_CASES = 20
#: Maximum levels of conformance of a run, and bytes of its file.
MOST_LEVELS = 50
MOST_BYTES = 64 << 20
_STATES = (conformance.PASSED, conformance.FAILED, conformance.NOT_APPLICABLE, conformance.INCOMPLETE)
#: The outcomes with a row of their own.
_TROUBLE = frozenset(each for each in Outcome if each.is_red or each in (Outcome.FLAKY, Outcome.WAIVED))
#: The name of a fact that is unknown.
UNKNOWN = "unknown"
_XID = re.compile(r"\bXid[s :=()]*(\d+)", re.IGNORECASE)
#: Maximum characters of a message that is used.
_MOST_USED = 600
#: Maximum characters of a title.
MOST_OF_TITLE = 300

_RULES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        # Ids come first: the rules for numbers and paths would leave parts of them.
        (r"\b(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{7,}", "<uuid>"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<uuid>"),
        (r"\b[\w./-]+\.py::[\w:]+(?:\[[^\]\n]*\])?", "<case>"),
        (r"\b[a-z]+://[^\s'\")>]+", "<url>"),
        (r"(?<![\w.])(?:~|\.{1,2})?(?:/[\w.+@~=,-]+){2,}/?(?::\d+)*", "<path>"),
        (r"(?<![\w])(?:[\w.+@-]+/)+[\w.+@-]+\.\w{1,4}(?::\d+)*", "<path>"),
        (r"\b0x[0-9a-fA-F]+", "<address>"),
        (r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}\b", "<id>"),
        (r"(?<!\w)[-+](?=\d)", ""),
        (r"\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", "#"),
        (r"#(?:(?:\s*[,x;]\s*|\s+)#)+", "#"),
        (r"\[[#,.\s…]*\]", "[#]"),
        (r"\b(?:tensor|array)\((?:[^()]|\([^()]*\))*\)", "tensor(#)"),
        (r"# (?:bytes?|[KMGT]i?B)\b", "# bytes"),
        (r"\s+", " "),
    )
)
#: The start of a message that many defects share.
_GENERIC = re.compile(
    r"assert\b|AssertionError\b|a comparison|Failed: |timeout\b|did not finish|leak|crashed\b", re.IGNORECASE
)
#: pytest's text for an assertion without a message: values, which differ between cases of one cause.
_COMPARISON = re.compile(
    r"(?:AssertionError: )?assert \(?(?:not |True|False|None|#|\[#\]|tensor\(#\)|[-+()\s<>=!]|in|is)+"
)
_PYTHON_FRAME = re.compile(r'^\s*File "([^"\n]+)", line \d+,? in ([\w.<>]+)', re.MULTILINE)
_PYTEST_FRAME = re.compile(r"^([\w./@+-]+\.py):\d+: ?(?:in )?([\w.<>]*)", re.MULTILINE)
_TESTS = re.compile(r"(?:^|/)(?:suites|tests?)/|(?:^|/)(?:test_|conftest)")
#: Frames of the code that runs every case.
_MACHINERY = re.compile(r"(?:^|/)(?:harness|_pytest|pluggy|pytest|threading|runpy)(?:/|\.py$)")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One run. `rows`: by the name of a table `stage_…`, its rows without the run's id.

    `print`: the hash of the journal. After a resumption, the record of the run has another hash and the same `run_id`.
    """

    run_id: str
    print: str
    rows: Mapping[str, Sequence[Row]]


def read_history_record(path: Path, machine: str = "") -> HistoryRecord:
    """Return the run in a run directory or in an evidence archive. Raise HarnessError for anything else.

    `machine`: the name of the machine in place of the host's.
    """
    return history_record(read_run_or_archive(path, stacks=True), machine)


def history_record(summary: RunSummary, machine: str = "") -> HistoryRecord:
    """Return the rows of a run that was read. `machine`: as above."""
    return _Maker(summary, machine).made()


class _Maker:
    """Makes a record."""

    def __init__(self, summary: RunSummary, machine: str) -> None:
        self._summary = summary
        self._machine = machine
        self._run = summary.run
        self._recorded = summary.facts or {}
        self._places = Places(summary.ledger.runs, summary.ledger.shards, summary.facts)
        self._devices: dict[str, Row] = {}
        self._facts: dict[Place, dict[str, str]] = {}
        self._keys: dict[tuple[str, str], str] = {}
        #: The devices of each case that ran: UUIDs and keys.
        self._ran_on: dict[str, tuple[tuple[str, ...], list[str]]] = {}

    def made(self) -> HistoryRecord:
        ledger, summary = self._summary.ledger, self._summary
        verdicts = [self._verdict(verdict) for verdict in ledger.verdicts]
        troubles = [self._trouble(verdict) for verdict in ledger.verdicts if verdict.outcome in _TROUBLE]
        # Devices without a case are kept too: a device that was drained at the start is sick.
        for uuid in self._run.devices:
            self._device(uuid, self._run.host)
        absent = dict.fromkeys(summary.deselected, "deselected") | dict.fromkeys(summary.selected, "other_shard")
        for verdict in ledger.verdicts if absent else ():
            absent.pop(verdict.case, None)
        health, seconds, findings = list(self._healths()), list(self._seconds()), list(self._findings())
        rows: dict[str, Sequence[Row]] = {
            "run": [self._run_facts()],
            "verdict": verdicts,
            "absent": [{"case": escape_invalid_xml(case), "outcome": outcome} for case, outcome in absent.items()],
            "trouble": troubles,
            "second": seconds,
            "device": list(self._devices.values()),
            "health": health,
            "finding": findings,
        }
        return HistoryRecord(escape_invalid_xml(self._run.run_id), summary.print, rows)

    # ---- the run ----

    def _run_facts(self) -> Row:
        run, ledger, facts, path = self._run, self._summary.ledger, self._recorded, self._summary.path
        hosts = dict.fromkeys([shard.host for shard in ledger.shards] or [run.host])
        names = sorted({device["name"] for device in self._devices.values()})
        git, versions = mapping(facts.get("git")), mapping(facts.get("versions"))
        identity = {_line(name): _line(text) for name, text in identity_facts(run).items()}
        page = path / "report.html"
        levels, doubt = read_levels(path, run.run_id)
        return {
            "print": self._summary.print,
            "begun": ledger.runs[0].t,
            "run_seconds": None if ledger.end is None else ledger.end.duration,
            "host": _line(self._machine or ", ".join(hosts), 200),
            "model": _line(", ".join(names) or UNKNOWN, 200),
            "driver": self._common("driver", facts.get("driver") or run.identity.get("driver")),
            "cuda": self._common("cuda", versions.get("cuda")),
            "torch": self._common("torch", versions.get("torch") or run.identity.get("torch")),
            "python": _line(run.identity.get("python") or UNKNOWN, 50),
            "harness": _line(run.identity.get("harness") or UNKNOWN, 50),
            "commit": _line(str(git.get("commit") or UNKNOWN), 80),
            "dirty": bool(git.get("dirty")),
            "suites": _line(run.identity.get(SUITE_FILES) or UNKNOWN, 90),
            "profile": _line(run.profile or "none", 100),
            "hardware": _line(run.hardware or "none", 100),
            "isolation": _line(run.isolation, 20),
            "shard": _line(run.shard, 20),
            "seed": str(run.seed),
            "argv": _line(" ".join(run.argv), MOST_OF_COMMAND),
            "tool": "" if run.imported is None else _line(run.imported.tool, 100),
            "exit_status": ledger.run_exit_status(),
            "complete": ledger.end is not None,
            "fail_on_flaky": run.fail_on_flaky,
            "waivers": self._summary.waivers,
            "path": escape_invalid_xml(str(path.resolve())),
            "page": escape_invalid_xml(str(page.resolve())) if path.is_dir() and page.exists() else "",
            "identity": json.dumps(identity, sort_keys=True),
            "parts": [escape_invalid_xml(shard.run_id) for shard in ledger.shards],
            "environment": None if self._summary.facts is None else json.dumps(environment_facts(facts)),
            "levels": json.dumps(levels),
            "notes": [_line(note) for note in ([doubt] if doubt else []) + self._summary.doubts],
            "unread": [*map(escape_invalid_xml, self._summary.unread)],
        }

    def _common(self, name: str, otherwise: object) -> str:
        """Return the values of a fact at all places of the run; several for a merged run."""
        values = dict.fromkeys(place[name] for place in self._facts.values() if name in place)
        return _line(", ".join(values) or str(otherwise or "none"), 100)

    # ---- verdicts ----

    def _verdict(self, verdict: Verdict) -> Row:
        """Return the row of a verdict, with the most memory of one attempt, and why the case did not run."""
        outcome, ran = verdict.outcome, verdict.outcome.ran
        gate = None if outcome is not Outcome.GATED or verdict.decided is None else verdict.decided.gate
        devices = self._devices_of(verdict) if ran or verdict.finishes else []
        memory = [finish.memory for finish in verdict.finishes if finish.memory]
        if verdict.ran:
            self._ran_on[verdict.case] = verdict.devices, devices
        return {
            "case": escape_invalid_xml(verdict.case),
            "suite": _suite(verdict.suite),
            "outcome": outcome,
            "device": devices[0] if devices else "",
            "devices": devices if len(devices) > 1 else None,
            "attempts": min(255, max(verdict.started, len(verdict.finishes))),
            "seconds": verdict.duration if ran and verdict.finishes else None,
            "host_size": _most_memory(memory, "host"),
            "device_size": _most_memory(memory, "device"),
            "reason": "" if ran or outcome.is_red else _line(verdict.message, MOST_OF_REASON),
            "found": None if gate is None else _line(gate.found, MOST_OF_REASON),
        }

    def _trouble(self, verdict: Verdict) -> Row:
        """Return the row of a red, flaky or waived verdict. `rule`: the source of the rule that gave the outcome."""
        cause = verdict.decided
        if verdict.outcome is Outcome.FLAKY or cause is None:
            cause = next((finish for finish in verdict.finishes if finish.outcome.is_red), cause)
        message = verdict.message if cause is None else cause.message or verdict.message
        stack = "" if cause is None else inert.inert_text(cause.detail)
        print_ = fingerprint(verdict.outcome, message, stack, verdict.suite)
        ruling = None if verdict.decided is None else verdict.decided.ruling
        devices = self._devices_of(verdict)
        return {
            "case": escape_invalid_xml(verdict.case),
            "outcome": verdict.outcome,
            "device": devices[0] if devices else "",
            "key": print_.key,
            "title": print_.title,
            "message": _line(verdict.message or message),
            "stack": escape_invalid_xml(stack[-MOST_OF_STACK:]),
            "reproduce": _command(verdict.reproduce),
            "rule": "" if ruling is None else _line(ruling.source, 300),
        }

    # ---- devices ----

    def _devices_of(self, verdict: Verdict) -> list[str]:
        """Return the keys of the devices of a case."""
        place = self._places.of(verdict)
        if place not in self._facts:
            self._facts[place] = self._places.facts(place)
        host = (verdict.decided.host if verdict.decided is not None else "") or place.host or self._run.host
        return [self._device(uuid, host) for uuid in place.devices]

    def _device(self, uuid: str, host: str) -> str:
        """Return the key of a device, and store its row: the UUID, with the host if other hosts have the same UUID."""
        if (uuid, host) in self._keys:
            return self._keys[uuid, host]
        backend = backend_of(uuid)
        unique = backend is not None and backend.nvml
        key = self._keys[uuid, host] = _line(uuid if unique else f"{uuid} on {host}", 300)
        if key not in self._devices:
            rows = {str(row.get("uuid")): row for row in environment.devices_of(self._recorded)}
            row = rows.get(uuid, {})
            label = backend.label if backend is not None and not backend.nvml else ""
            common = self._run.identity.get("device", "")
            name = row.get("name") or label or ("" if ", " in common else common) or UNKNOWN
            self._devices[key] = {
                "key": key,
                "uuid": _line(uuid, 200),
                "host": _line(host, 200),
                "name": _line(str(name), 200),
                "kind": UNKNOWN if backend is None else backend.kind,
                "parent": _line(str(row.get("mig_parent") or ""), 200),
            }
        return key

    def _healths(self) -> Iterator[Row]:
        """Yield the rows of sick and drained devices. `xid`: NVIDIA's number of the error; 0 for none."""
        for event in self._summary.health:
            match = _XID.search(event.message)
            xid = min(int(match[1][:6]), 65535) if match else 0
            device = self._device(event.device, event.host or self._run.host)
            yield {"device": device, "state": event.state, "message": _line(event.message), "xid": xid}

    def _seconds(self) -> Iterator[Row]:
        """Yield the results of red cases on a second device."""
        for event in self._summary.ledger.second_devices:
            _, keys = self._ran_on.get(event.case, ((), []))
            first = next((key for key in keys if self._devices[key]["uuid"] == event.first), None)
            first = first or self._device(event.first, self._run.host)
            yield {"device": first, "other": self._device(event.second, event.host), "red": event.outcome.is_red}

    def _findings(self) -> Iterator[Row]:
        """Yield the rows of findings, with the devices that they name, or that ran the cases that they concern."""
        host = self._run.host
        involved = dict.fromkeys([*self._run.devices, *(uuid for uuids, _ in self._ran_on.values() for uuid in uuids)])
        for finding in self._summary.ledger.findings:
            message = _line(finding.message)
            keys = [self._device(uuid, finding.host or host) for uuid in involved if _names(finding.message, uuid)]
            keys += [key for case in finding.cases if case in self._ran_on for key in self._ran_on[case][1]]
            yield {
                "kind": single_line(finding.kind, 100),
                "message": message,
                "title": without_numbers(message),
                "cases": len(finding.cases),
                "named": [_line(case) for case in finding.cases[:MOST_CASES]],
                "reproduce": _command(finding.reproduce),
                "devices": list(dict.fromkeys(keys)),
            }


def _names(message: str, uuid: str) -> bool:
    """Return whether a text names a device. ``cpu`` may also occur as an ordinary word."""
    return uuid != "cpu" and re.search(rf"(?<![\w-]){re.escape(uuid)}(?![\w-])", message) is not None


def read_levels(run_dir: Path, run_id: str) -> tuple[list[Row], str]:
    """Return the levels that `harness conformance --keep` recorded, and a doubt, or "". Both are empty without a file.

    The statement is not verified; `harness verify` does that.
    """
    path = run_dir / conformance.FILE_NAME
    if not is_plain(path):
        return [], ""
    try:
        if path.stat().st_size > MOST_BYTES:
            return [], f"{conformance.FILE_NAME} is too large"
        statement = json.loads(path.read_bytes())["statement"]
        if statement["run"] != run_id:
            return [], f"{conformance.FILE_NAME} is about another run: {_line(str(statement['run']), 100)}"
        return [_level(level) for level in statement["levels"][:MOST_LEVELS]], ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return [], f"{conformance.FILE_NAME} is no statement of harness conformance"


def _level(row: Any) -> Row:
    """Return a level from its row. Raise ValueError, TypeError or KeyError for an invalid row."""
    if row["state"] not in _STATES:
        raise ValueError(row["state"])
    texts = {"level": _line(str(row["level"]), 100), "hash": _line(str(row["list"]), 100)}
    return {**texts, "state": row["state"], "passed": int(row["passed"]), "cases": int(row["cases"])}


def _command(command: str | None) -> str:
    """Return a command; nothing in place of a long one, since a part of it would not work."""
    return "" if not command or len(command) > MOST_OF_COMMAND else escape_invalid_xml(command)


def _most_memory(of_attempts: Sequence[Mapping[str, int]], place: str) -> int | None:
    """Return the code of the peak memory of the attempts; None if no attempt has a figure."""
    most = max((memory.get(place, 0) for memory in of_attempts), default=0) if of_attempts else 0
    return size_code(most) if most > 0 else None


def size_code(size: int) -> int:
    """Return a number of bytes in the form of the history: 8 times its binary logarithm, rounded up.

    The next larger code is 9 % more. Smaller differences are noise, and would take most of the size of the file.
    """
    return min(math.ceil(8 * math.log2(size)), MOST_CODE)


@functools.lru_cache(1000)
def _suite(name: str) -> str:
    return _line(name, 200)


def _line(text: str, limit: int = MOST_OF_MESSAGE) -> str:
    return single_line(inert.inert_text(text), limit)


# ---- fingerprints ----


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The group of a failure. `title`: for people."""

    key: str
    title: str


def fingerprint(outcome: Outcome, message: str, stack: str, suite: str) -> Fingerprint:
    """Return the fingerprint of a red or flaky case. `stack`: the traceback, or the stacks of a crash; may be empty."""
    plain = normalised(message) or str(outcome)
    frame = innermost_frame(stack)
    parts = [_kind(outcome), plain]
    if frame:
        parts.append(f"in {frame}")
    if _GENERIC.match(plain) and not frame:
        parts.append(f"suite {suite}")
    title = ": ".join(parts[:2]) + "".join(f" ({part})" for part in parts[2:])
    digest = hashlib.sha256(title.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return Fingerprint(digest, title if len(title) <= MOST_OF_TITLE else f"{title[: MOST_OF_TITLE - 1]}…")


def _kind(outcome: Outcome) -> str:
    """Return the kind of failure. A case that is red, flaky or waived for one reason is in one group."""
    same = (Outcome.FAILED, Outcome.FLAKY, Outcome.WAIVED)
    return "failure" if outcome in same else str(outcome)


def normalised(text: str) -> str:
    """Return the text on one line without numbers, addresses, paths, ids and seeds."""
    text = escape_invalid_xml(inert.inert_text(text[: 4 * _MOST_USED]))[:_MOST_USED]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = text.strip(" :")
    return "a comparison failed" if _COMPARISON.fullmatch(text) else text.removeprefix("AssertionError: ")


def innermost_frame(stack: str) -> str:
    """Return file and function of the last frame outside the tests and the code that runs them; "" without one.

    Line numbers are left out because they change with every release.
    """
    frames = [(match.start(), match[1], match[2]) for match in _PYTHON_FRAME.finditer(stack)]
    frames += [(match.start(), match[1], match[2]) for match in _PYTEST_FRAME.finditer(stack)]
    for _, path, function in sorted(frames, reverse=True):
        if _TESTS.search(path) or _MACHINERY.search(path):
            continue
        short = "/".join(path.split("/")[-2:])
        # In the last frame, pytest names the exception in place of the function.
        is_function = function and not function.endswith(("Error", "Exception", "Failed"))
        return f"{short} {function}" if is_function else short
    return ""

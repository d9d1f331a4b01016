"""One run in the form of the history, from a run directory, a merged or imported run, or an evidence archive."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from harness.backends.table import backend_of
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml, single_line
from harness.fleet.fingerprint import fingerprint
from harness.journal import environment, journal, reader
from harness.journal.environment import EnvironmentFileError
from harness.journal.events import Device, RunStarted, Waiver
from harness.journal.finding_kinds import without_numbers
from harness.journal.identity import SUITE_FILES, identity_facts
from harness.journal.ledger import Ledger
from harness.journal.place import Place, Places
from harness.journal.reader import JournalContents
from harness.journal.verdicts import Verdict
from harness.reporting.page import inert

#: Maximum characters of a message, of a reason and of a kept stack.
MOST_OF_MESSAGE = 1000
MOST_OF_REASON = 300
MOST_OF_STACK = 4000
MOST_OF_COMMAND = 2000
#: The largest code of a size, for 2 to the power of 62 bytes.
MOST_CODE = 496
#: The name of a fact that is unknown.
UNKNOWN = "unknown"
_XID = re.compile(r"\bXid[s :=()]*(\d+)", re.IGNORECASE)


class HistoryRecordError(HarnessError):
    """A path is not a run, or its evidence is refused."""


@dataclass(frozen=True, slots=True)
class HistoryDevice:
    """A device. `key`: its UUID, together with the host if other hosts have the same UUID."""

    key: str
    uuid: str
    host: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """A verdict. `device`: the key of the first device, "" for none. `seconds`: of all attempts; None if none ended.

    `host_size`, `device_size`: the peak memory of one attempt, see `size_code`; None if unknown.
    `reason`: why the case did not run.
    """

    case: str
    suite: str
    outcome: Outcome
    device: str
    attempts: int
    seconds: float | None
    host_size: int | None = None
    device_size: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HistoryTrouble:
    """A verdict that is red, flaky or waived. `rule`: the source of the rule that gave the outcome."""

    case: str
    outcome: Outcome
    device: str
    key: str
    title: str
    message: str
    stack: str
    reproduce: str
    rule: str


@dataclass(frozen=True, slots=True)
class Health:
    """A device was sick or drained. `xid`: NVIDIA's number of the error; 0 for none."""

    device: str
    state: str
    message: str
    xid: int


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    """A finding. `title`: the message without numbers."""

    kind: str
    message: str
    title: str
    cases: int


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One run. `facts`: the columns of the table of runs, by name. `identity`: what should be equal in comparable runs.

    `print`: the hash of the journal. After a resumption, the record of the run has another hash and the same `run_id`.
    """

    run_id: str
    print: str
    facts: Mapping[str, Any]
    identity: Mapping[str, str]
    devices: tuple[HistoryDevice, ...]
    verdicts: tuple[CaseVerdict, ...]
    troubles: tuple[HistoryTrouble, ...]
    health: tuple[Health, ...]
    findings: tuple[HistoryFinding, ...]
    parts: tuple[str, ...] = field(default=())


def read_history_record(path: Path, machine: str = "") -> HistoryRecord:
    """Return the run in a run directory or in an evidence archive. Raise HarnessError for anything else.

    `machine`: the name of the machine in place of the host's.
    """
    if path.is_dir():
        record = _of_directory(path)
    elif path.exists():
        record = _of_archive(path)
    else:
        raise HistoryRecordError(f"there is no {str(path)!r}: expected a run directory or an evidence archive")
    return replace(record, facts={**record.facts, "host": _line(machine, 200)}) if machine else record


def _of_directory(path: Path) -> HistoryRecord:
    file = path / journal.FILE_NAME
    print_ = _print(file)  # before the journal is read: later lines of an unfinished run belong to another state
    contents = reader.read_run_journal(file)
    try:
        facts = environment.read_environment(path)
    except EnvironmentFileError:
        facts = None
    page = path / "report.html"
    return make_record(contents, facts, print_, path, page if page.exists() else None)


def _print(file: Path) -> str:
    """Return the hash of a journal; "" if it cannot be read, an error that its reader reports."""
    try:
        with file.open("rb") as data:
            return file_digest(data, "sha256").hexdigest()
    except OSError:
        return ""


def _of_archive(path: Path) -> HistoryRecord:
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise HistoryRecordError(f"{str(path)!r} is no run: expected a run directory or an archive of harness package")
    from harness.tools.evidence import verify  # takes 0.3 s, and few runs are archives

    with path.open("rb") as file:
        verified = verify.verify_archive(file, path, verify.Demands())
    if verified.problems or verified.record is None:
        raise HistoryRecordError(
            f"the evidence {str(path)!r} is refused: {'; '.join(verified.problems[:3])}; see harness verify"
        )
    kept = verified.record
    return make_record(kept.contents, kept.environment, sha256(kept.data).hexdigest(), path, None)


def make_record(
    contents: JournalContents, facts: Mapping[str, Any] | None, print_: str, path: Path, page: Path | None
) -> HistoryRecord:
    """Return the record of a run. `facts`: the facts of environment.json.

    `path`, `page`: the places of run and page.
    """
    return _Maker(contents, facts).made(print_, path, page)


class _Maker:
    """Makes a record."""

    def __init__(self, contents: JournalContents, facts: Mapping[str, Any] | None) -> None:
        self._events = contents.events
        self._ledger = Ledger.from_journal(contents)
        self._recorded: Mapping[str, Any] = facts or {}
        assert self._ledger.run is not None  # the readers of journals have checked this
        self._run: RunStarted = self._ledger.run
        self._places = Places(self._ledger.runs, self._ledger.shards, facts)
        self._devices: dict[str, HistoryDevice] = {}
        self._facts: dict[Place, dict[str, str]] = {}

    def made(self, print_: str, path: Path, page: Path | None) -> HistoryRecord:
        verdicts = tuple(map(self._verdict, self._ledger.verdicts))
        troubles = tuple(map(self._trouble, filter(_is_trouble, self._ledger.verdicts)))
        # Devices without a case are kept too: a device that was drained at the start is sick.
        for uuid in self._run.devices:
            self._device(uuid, self._run.host)
        health = tuple(self._healths())
        return HistoryRecord(
            run_id=self._run.run_id,
            print=print_,
            facts=self._run_facts(path, page),
            identity={_line(name): _line(text) for name, text in identity_facts(self._run).items()},
            devices=tuple(self._devices.values()),
            verdicts=verdicts,
            troubles=troubles,
            health=health,
            findings=tuple(
                HistoryFinding(
                    single_line(finding.kind, 100),
                    _line(finding.message),
                    without_numbers(_line(finding.message)),
                    len(finding.cases),
                )
                for finding in self._ledger.findings
            ),
            parts=tuple(shard.run_id for shard in self._ledger.shards),
        )

    # ---- the run ----

    def _run_facts(self, path: Path, page: Path | None) -> dict[str, Any]:
        run, end, facts = self._run, self._ledger.end, self._recorded
        hosts = list(dict.fromkeys([shard.host for shard in self._ledger.shards] or [run.host]))
        names = list(dict.fromkeys(device.name for device in self._devices.values()))
        places = list(self._facts.values()) or [{}]
        git = facts.get("git")
        git = git if isinstance(git, dict) else {}
        versions = facts.get("versions")
        versions = versions if isinstance(versions, dict) else {}
        return {
            "begun": self._ledger.runs[0].t,
            "seconds": None if end is None else end.duration,
            "host": _line(", ".join(hosts), 200),
            "model": _line(", ".join(names) or UNKNOWN, 200),
            "driver": self._common(places, "driver", run.identity.get("driver")),
            "cuda": self._common(places, "cuda", versions.get("cuda")),
            "torch": self._common(places, "torch", run.identity.get("torch")),
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
            "exit_status": self._ledger.run_exit_status(),
            "complete": end is not None,
            "fail_on_flaky": run.fail_on_flaky,
            "waivers": sum(isinstance(event, Waiver) for event in self._events),
            "path": escape_invalid_xml(str(path.resolve())),
            "page": "" if page is None else escape_invalid_xml(str(page.resolve())),
        }

    @staticmethod
    def _common(places: list[dict[str, str]], name: str, otherwise: object) -> str:
        """Return the values of a fact at all places of the run; several for a merged run."""
        values = list(dict.fromkeys(place[name] for place in places if name in place))
        return _line(", ".join(values) or str(otherwise or "none"), 100)

    # ---- verdicts ----

    def _verdict(self, verdict: Verdict) -> CaseVerdict:
        ran = verdict.outcome.ran
        return CaseVerdict(
            case=_line(verdict.case),
            suite=_line(verdict.suite, 200),
            outcome=verdict.outcome,
            device=self._device_of(verdict) if ran or verdict.finishes else "",
            attempts=min(255, max(verdict.started, len(verdict.finishes))),
            seconds=verdict.duration if ran and verdict.finishes else None,
            host_size=_most_memory(verdict, "host"),
            device_size=_most_memory(verdict, "device"),
            reason="" if ran or verdict.outcome.is_red else _line(verdict.message, MOST_OF_REASON),
        )

    def _trouble(self, verdict: Verdict) -> HistoryTrouble:
        cause = verdict.decided
        if verdict.outcome is Outcome.FLAKY or cause is None:
            cause = next((finish for finish in verdict.finishes if finish.outcome.is_red), cause)
        message = verdict.message if cause is None else cause.message or verdict.message
        stack = "" if cause is None else inert.inert_text(cause.detail)
        print_ = fingerprint(verdict.outcome, message, stack, verdict.suite)
        ruling = None if verdict.decided is None else verdict.decided.ruling
        command = verdict.reproduce or ""
        return HistoryTrouble(
            case=_line(verdict.case),
            outcome=verdict.outcome,
            device=self._device_of(verdict),
            key=print_.key,
            title=print_.title,
            message=_line(verdict.message or message),
            stack=escape_invalid_xml(stack[-MOST_OF_STACK:]),
            reproduce="" if len(command) > MOST_OF_COMMAND else escape_invalid_xml(command),
            rule="" if ruling is None else _line(ruling.source, 300),
        )

    # ---- devices ----

    def _device_of(self, verdict: Verdict) -> str:
        place = self._places.of(verdict)
        if place not in self._facts:
            self._facts[place] = self._places.facts(place)
        host = (verdict.decided.host if verdict.decided is not None else "") or place.host or self._run.host
        keys = [self._device(uuid, host) for uuid in place.devices]
        return keys[0] if keys else ""

    def _device(self, uuid: str, host: str) -> str:
        """Return the key of a device, and store its facts."""
        backend = backend_of(uuid)
        unique = backend is not None and backend.nvml
        key = _line(uuid if unique else f"{uuid} on {host}", 300)
        if key not in self._devices:
            rows = {str(row.get("uuid")): row for row in environment.devices_of(self._recorded)}
            label = backend.label if backend is not None and not backend.nvml else ""
            name = rows.get(uuid, {}).get("name") or label or self._run.identity.get("device") or UNKNOWN
            kind = UNKNOWN if backend is None else backend.kind
            self._devices[key] = HistoryDevice(key, _line(uuid, 200), _line(host, 200), _line(str(name), 200), kind)
        return key

    def _healths(self) -> Iterator[Health]:
        for event in self._events:
            if isinstance(event, Device) and event.state != "healthy":
                match = _XID.search(event.message)
                xid = min(int(match[1][:6]), 65535) if match else 0
                device = self._device(event.device, event.host or self._run.host)
                yield Health(device, event.state, _line(event.message), xid)


def _most_memory(verdict: Verdict, place: str) -> int | None:
    """Return the peak memory of the attempts; None if no attempt has a figure."""
    most = max((finish.memory.get(place, 0) for finish in verdict.finishes), default=0)
    return size_code(most) if most > 0 else None


def size_code(size: int) -> int:
    """Return a number of bytes in the form of the history: 8 times its binary logarithm, rounded up.

    The next larger code is 9 % more. Smaller differences are noise, and would take most of the size of the file.
    """
    return min(math.ceil(8 * math.log2(size)), MOST_CODE)


def _is_trouble(verdict: Verdict) -> bool:
    return verdict.outcome.is_red or verdict.outcome in (Outcome.FLAKY, Outcome.WAIVED)


def _line(text: str, limit: int = MOST_OF_MESSAGE) -> str:
    return single_line(inert.inert_text(text), limit)


def identity_json(record: HistoryRecord) -> str:
    """Return the identity as one text, for comparisons."""
    return json.dumps(dict(record.identity), sort_keys=True)

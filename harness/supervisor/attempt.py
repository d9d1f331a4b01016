"""One attempt at a case: ask an executor to run it, listen until it is over, and gather what was seen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.checks.meters.table import meter_of
from harness.checks.process import Problem
from harness.outcome import Outcome
from harness.protocol import reports
from harness.protocol.reports import Failure, RecordedWarning
from harness.protocol.wire import Message, ProtocolError, decode
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.verdict import Evidence, Judgement, Phase, judge, phase_of
from harness.zygote.client import ZygoteError

#: Seconds that the supervisor's deadline stands behind the watchdog in the executor.
GRACE = 5.0
#: Bytes kept of each output stream of a case.
OUTPUT_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """What an executor is asked to do. `following` is the case that it will run next, which keeps shared fixtures.

    `leave`: it is to end afterwards, its end being part of this attempt; `light`: by the short way. `levels`: it is to
    tell what its process has in use afterwards.
    """

    item: pytest.Item
    case: str
    seed: int
    limit: float
    following: str | None = None
    leave: bool = False
    light: bool = False
    levels: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: where it ran, what pytest reported and warned of, what it means.

    `alone`: its process had run nothing before. `suspicions`: by meter, what grew, and grew once more when the case was
    run a second time in the same process; `spent`: that second run broke the process. `levels`: by meter, what the
    process had in use after the first, where that was asked for. `struck`: how often each injected fault struck.
    """

    number: int
    alone: bool
    executor: str
    devices: tuple[str, ...]
    environment: Mapping[str, str | None]
    reports: tuple[pytest.TestReport, ...]
    warnings: tuple[RecordedWarning, ...]
    evidence: Evidence
    judgement: Judgement
    duration: float
    stdout: str
    stderr: str
    temp: Path
    kept: Path
    notes: tuple[str, ...]
    suspicions: Mapping[str, int]
    spent: bool
    levels: Mapping[str, int]
    struck: Mapping[str, int]

    @property
    def outcome(self) -> Outcome:
        return self.judgement.outcome

    @property
    def usable(self) -> bool:
        """Whether the executor is still fit to run another case."""
        seen = self.evidence
        # What went wrong and seems to leak as well is not looked into: nothing is to inherit what it left.
        leaky = self.outcome.is_red and bool(self.suspicions)
        broken_off = seen.interruption or seen.hook_error is not None
        harmed = seen.problems or seen.poison or broken_off or seen.unknown or self.spent or leaky
        cut = seen.late or seen.stopped or seen.lost_by_harness
        return seen.done and seen.exit_status is None and not harmed and not cut


def run_attempt(handle: ExecutorHandle, request: CaseRequest, number: int) -> Attempt:
    """Run one case in `handle`; whatever breaks is in the result. The executor is killed when it has to be."""
    alone = not handle.cases
    handle.trim_output()
    begun = time.monotonic()
    listener = _Listener(handle, request)
    evidence = listener.run()
    out_start, err_start = listener.start
    out, err = handle.outputs.out, handle.outputs.err
    out_end, err_end = listener.end or (out.size(), err.size())
    stdout = out.read(out_start, out_end, OUTPUT_LIMIT)
    stderr = err.read(err_start, err_end, OUTPUT_LIMIT)
    judgement = judge(evidence)
    notes = list(judgement.notes)
    notes += listener.blind
    if handle.swept:
        notes.append(f"killed what it left running: {', '.join(handle.swept)[:500]}")
    return Attempt(
        number=number,
        alone=alone,
        executor=handle.name,
        devices=handle.binding.devices,
        environment=handle.binding.environment,
        reports=tuple(listener.reports),
        warnings=tuple(listener.warnings),
        evidence=evidence,
        judgement=judgement,
        duration=time.monotonic() - begun,
        stdout=stdout,
        stderr=stderr,
        temp=handle.temp,
        kept=handle.kept,
        notes=tuple(notes),
        suspicions=listener.suspicions,
        spent=listener.spent,
        levels=listener.levels,
        struck=listener.struck,
    )


@dataclass
class _Listener:
    handle: ExecutorHandle
    request: CaseRequest
    reports: list[pytest.TestReport] = field(default_factory=list)
    warnings: list[RecordedWarning] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    start: tuple[int, int] = (0, 0)
    over: bool = False
    late: bool = False
    stopped: str = ""
    unknown: str = ""
    poison: str = ""
    interruption: str = ""
    hook_error: Failure | None = None
    zygote_lost: str = ""
    garbled: str = ""
    leaving: bool = False
    problems: tuple[Problem, ...] = ()
    suspicions: dict[str, int] = field(default_factory=dict)
    spent: bool = False
    blind: list[str] = field(default_factory=list)
    levels: dict[str, int] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)
    end: tuple[int, int] | None = None

    def run(self) -> Evidence:
        self.start = self.handle.marks
        try:
            self._converse()
        except ZygoteError as error:
            self.zygote_lost = str(error).splitlines()[0]
        except StoppedError as error:
            self.stopped = str(error)
        stacks = self.handle.outputs.stacks
        return Evidence(
            phases=tuple(self.phases),
            done=self.over,
            problems=self.problems,
            poison=self.poison,
            interruption=self.interruption,
            exit_status=None if self.spent else self.handle.exit_status,
            leaving=self.leaving,
            late=self.late,
            stopped=self.stopped,
            limit=self.request.limit,
            stacks=stacks.read(0, stacks.size(), OUTPUT_LIMIT),
            garbled=self.garbled or self.handle.garbled,
            unknown=self.unknown,
            zygote_lost=self.zygote_lost,
            harness_error=None if self.spent else self.handle.harness_error,
            hook_error=self.hook_error,
            unkillable=self.handle.unkillable,
        )

    def _converse(self) -> None:
        """Raises ZygoteError."""
        handle, request = self.handle, self.request
        message = {"op": "run", "case": request.case, "next": request.following, "limit": request.limit}
        handle.send({**message, "seed": request.seed, "levels": request.levels})
        handle.cases.append(request.case)
        deadline = time.monotonic() + request.limit + GRACE
        try:
            heard = handle.receive(deadline)
        except StoppedError:
            with contextlib.suppress(ProtocolError):  # it may have been in the middle of a line
                self._take_facts()
            raise
        self.late = heard is NoMessage.DEADLINE
        try:
            if isinstance(heard, dict):
                self._take_end(heard)
            self._take_facts()
        except ProtocolError as error:
            self.garbled, self.over = str(error), False
        if self.over and self.suspicions and not (self._broken_off or self.poison or self.problems):
            self._look_again()
        if self.over and request.leave and not (self._broken_off or self.spent):
            self.leaving = True
            self.late = not leave(handle, request.limit, light=request.light)
        if self.late or not (self.over or self.unknown):
            handle.kill()

    @property
    def _broken_off(self) -> bool:
        return bool(self.interruption) or self.hook_error is not None

    def _look_again(self) -> None:
        """Run the case a second time in the same process: what grew the first time only is no suspicion any more.

        The case itself is over: whatever this breaks, the zygote even, is not held against it.
        """
        handle, request = self.handle, self.request
        self.end = handle.outputs.out.size(), handle.outputs.err.size()
        message = {"op": "again", "case": request.case, "next": request.following, "limit": request.limit}
        self.spent = True
        with contextlib.suppress(ZygoteError):  # it has taken the process with it
            handle.send({**message, "seed": request.seed})
            heard = handle.receive(time.monotonic() + request.limit + GRACE)
            if isinstance(heard, dict) and heard.get("op") == "grown":
                self.spent, grown = False, heard["growths"]
                self.suspicions = {
                    name: size for name, size in self.suspicions.items() if grown.get(name, 0) > meter_of(name).confirm
                }
            else:
                handle.kill()

    def _take_end(self, message: Message) -> None:
        """Note what the executor says at the end of the case. Raises ProtocolError."""
        if message["op"] == "done":
            self.over = True
            self.poison = str(message.get("poison", ""))
            self.interruption = str(message.get("interruption", ""))
            if "hook_error" in message:
                self.hook_error = reports.unpack_failure(message["hook_error"])
            self.problems = _problems(message.get("problems", []))
            self.blind = [str(text) for text in message.get("blind", [])]
            self.suspicions = {str(name): int(amount) for name, amount in message.get("suspicions", {}).items()}
            self.struck = {str(name): int(count) for name, count in message.get("struck", {}).items()}
            self.levels = {str(name): int(amount) for name, amount in message.get("levels", {}).items()}
        elif message["op"] == "unknown":
            self.unknown = str(message["known"])
        else:
            raise ProtocolError(f"executor {self.handle.name} sent an unknown message {message['op']!r}")

    def _take_facts(self) -> None:
        """Note the reports that the executor wrote down. Raises ProtocolError."""
        peer = f"executor {self.handle.name}"
        facts = [decode(line, peer) for line in self.handle.new_facts()]
        self.warnings = [reports.unpack_warning(message) for message in facts if message["op"] == "warning"]
        messages = [message for message in facts if message["op"] != "warning"]
        self.reports = reports.unpack(self.request.item, messages)
        for report, message in zip(self.reports, messages, strict=True):
            self._add_output(report, message)
            self.phases.append(phase_of(report))

    def _add_output(self, report: pytest.TestReport, message: Message) -> None:
        marks = _marks(message)
        before, self.handle.marks = self.handle.marks, marks
        if marks == before:
            return
        files = (self.handle.outputs.out, self.handle.outputs.err)
        for name, file, begin, end in zip(("stdout", "stderr"), files, before, marks, strict=True):
            if end > begin:
                report.sections.append((f"Captured {name} {report.when}", file.read(begin, end, OUTPUT_LIMIT)))


def leave(handle: ExecutorHandle, limit: float, *, light: bool) -> bool:
    """Ask an executor to end, and wait for it; False when it has not ended in `limit` seconds.

    Raises ZygoteError, StoppedError.
    """
    handle.send({"op": "exit", "limit": limit, "light": light})
    deadline = time.monotonic() + limit + GRACE
    while handle.exit_status is None:
        heard = handle.receive(deadline)
        if heard is NoMessage.DEADLINE:
            return False
        if isinstance(heard, dict):
            handle.teardown_error = str(heard.get("error", ""))
            handle.grown = {str(name): int(amount) for name, amount in heard.get("grown", {}).items()}
    return True


def _marks(message: Message) -> tuple[int, int]:
    match message.get("out"):
        case [int(out), int(err)]:
            return out, err
        case other:
            raise ProtocolError(f"an executor sent output marks {other!r}, expected two sizes")


def _problems(entries: object) -> tuple[Problem, ...]:
    try:
        return tuple(Problem(Outcome(outcome), str(text)) for outcome, text in entries)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"an executor sent problems {entries!r}, expected pairs of outcome and text") from error

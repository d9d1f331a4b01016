"""An attempt at a case, with the evidence from its executor, and the verdict from all attempts at a case."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.backends.table import is_hardware
from harness.checks.meters import meter_of
from harness.core import clock
from harness.core.outcome import AttemptResult, Outcome, Ruling, deciding_attempt, final_verdict
from harness.protocol import phase_page, reports
from harness.protocol.endings import CaseEnd, ProcessEnd, parse_ending
from harness.protocol.phase_page import PassedPhase
from harness.protocol.reports import RecordedWarning
from harness.protocol.wire import Message, ProtocolError, decode_messages
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.case import Case, first_line
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.judgement import Evidence, Judgement, judge, phase_of
from harness.zygote.client import ZygoteError

#: Seconds from the executor's watchdog to the supervisor's own deadline.
GRACE = 5.0
#: Bytes kept of each output stream of a case.
OUTPUT_LIMIT = 64 << 10
#: Seconds within which a request to stop comes, if the signal that ended an executor was sent to the whole run.
_STOP_COMES = 2.0


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """A request to an executor. `following` is the id of the case that it runs next; fixtures shared with it are kept.

    `leave`: the executor must exit afterwards, and the exit is part of this attempt. `light`: the exit is the short
    one. `levels`: the executor must then report what its process uses.
    """

    case: Case
    following: str | None = None
    leave: bool = False
    light: bool = False
    levels: bool = False

    @property
    def fields(self) -> Message:
        """The fields of the message to the executor."""
        case = self.case
        return {
            "case": case.id,
            "next": self.following,
            "limit": case.limit,
            "seed": case.seed,
            "levels": self.levels,
        }


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: where it ran, the reports and warnings of pytest, and the judgement.

    `alone`: its process had run no other case before. `ended`: in seconds since 1970. `spent`: a second run, which
    looked whether a suspected leak shows again, broke the process. `reproduce`: the shell command that reproduces the
    outcome, if it is not the command for a single run of the case.
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
    ended: float
    stdout: str
    stderr: str
    temp: Path
    kept: Path
    notes: tuple[str, ...]
    spent: bool
    memory: Mapping[str, int]
    reproduce: str = ""

    @property
    def outcome(self) -> Outcome:
        return self.judgement.outcome

    @property
    def suspicions(self) -> Mapping[str, int]:
        """Growth by meter that showed again when the case ran a second time in the same process."""
        return self.evidence.end.suspicions

    @property
    def usable(self) -> bool:
        """Whether the executor can run another case."""
        seen, end = self.evidence, self.evidence.end
        # The suspected leak of a red case is not confirmed, so no other case may run in its process.
        leaky = self.outcome.is_red and bool(end.suspicions)
        harmed = end.problems or end.fixtures or end.poison or end.aborted or end.unknown or self.spent or leaky
        cut = seen.late or seen.stopped or seen.lost_by_harness
        # After a failed capture, torch's generators refuse to work: state on a GPU that no check reads.
        doubtful = self.outcome.is_red and any(is_hardware(uuid) for uuid in self.devices)
        return seen.done and seen.exit_status is None and not harmed and not cut and not doubtful


def attempt_of(listener: Listener, number: int, *, alone: bool, duration: float, ended: float) -> Attempt:
    """Return an attempt with the output and the reports of its executor."""
    handle, evidence = listener.handle, listener.seen
    out, err = handle.outputs.out, handle.outputs.err
    end = listener.output_end or (out.size(), err.size())
    stdout, stderr = (
        file.read(first, last, OUTPUT_LIMIT) for file, first, last in zip((out, err), listener.start, end, strict=True)
    )
    judgement = judge(evidence)
    notes = list(judgement.notes)
    notes += evidence.end.blind
    if handle.swept and not listener.followed:
        notes.append(f"killed processes that it left running: {', '.join(handle.swept)[:500]}")
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
        duration=duration,
        ended=ended,
        stdout=stdout,
        stderr=stderr,
        temp=handle.temp,
        kept=handle.kept,
        notes=tuple(notes),
        spent=listener.spent,
        memory={name: size for name, size in zip(("host", "device"), listener.memory, strict=True) if size},
    )


@dataclass
class Listener:
    """Receives the messages and reports of one case from its executor."""

    handle: ExecutorHandle
    request: CaseRequest
    reports: list[pytest.TestReport] = field(default_factory=list)
    warnings: list[RecordedWarning] = field(default_factory=list)
    start: tuple[int, int] = (0, 0)
    deadline: float = 0.0
    seen: Evidence = field(default_factory=Evidence)
    spent: bool = False
    memory: tuple[int, int] = (0, 0)
    output_end: tuple[int, int] | None = None
    followed: bool = False

    def plain(self, facts: list[bytes], passed: Sequence[PassedPhase], *, silent: bool = False) -> None:
        """Complete the evidence of a case that has passed in these phases, with these further facts.

        Another case has begun since. `silent`: the case has written nothing. Raises ProtocolError.
        """
        self.seen.done = self.followed = True
        self._take_reports(facts, passed, silent=silent)

    def conclude(self, receive: Callable[[], Message | NoMessage]) -> None:
        """Complete the evidence of the case, whose end `receive` returns.

        Before that, do everything that this end requires: a second run, or the exit or kill of the executor.
        """
        handle, seen = self.handle, self.seen
        try:
            self._converse(receive)
        except ZygoteError as error:
            seen.zygote_lost = str(error).splitlines()[0]
        except StoppedError as error:
            seen.stopped = str(error)
        if not (seen.done or seen.late or seen.stopped or seen.garbled) and handle.exit_status == -signal.SIGTERM:
            seen.stopped = handle.stop_within(_STOP_COMES)
        if not self.spent:
            seen.exit_status, seen.harness_error = handle.exit_status, handle.harness_error
        seen.starved, seen.stacks = handle.starvation.text(), handle.outputs.stacks.whole(OUTPUT_LIMIT)
        seen.garbled, seen.unkillable = seen.garbled or handle.garbled, handle.unkillable

    def _converse(self, receive: Callable[[], Message | NoMessage]) -> None:
        """Receive the executor's messages until the case, and with `leave` the executor, has ended.

        Raises ZygoteError.
        """
        request, seen = self.request, self.seen
        try:
            answer = receive()
        except StoppedError:
            with contextlib.suppress(ProtocolError):  # the executor may have been in the middle of a line
                self._take_all_reports()
            raise
        seen.late = answer is NoMessage.DEADLINE
        try:
            if isinstance(answer, dict):
                seen.end, seen.done = parse_ending(answer, CaseEnd), True
            self._take_all_reports()
        except ProtocolError as error:
            seen.garbled, seen.end, seen.done = str(error), CaseEnd(), False
        end = seen.end
        if end.suspicions and not (end.aborted or end.poison or end.problems):
            self._run_again(end)
        if seen.done and request.leave and not (end.aborted or end.unknown or self.spent):
            seen.leaving = True
            seen.late = not leave(self.handle, request.case.limit, light=request.light)
        if seen.late or not seen.done:
            self.handle.kill()

    def _run_again(self, end: CaseEnd) -> None:
        """Run the case a second time in the same process. Growth of the first run alone is no longer suspected.

        The case itself has finished: damage done by the second run, even to the zygote, does not change its outcome.
        """
        handle, request = self.handle, self.request
        self.output_end = handle.outputs.out.size(), handle.outputs.err.size()
        self.spent = True
        with contextlib.suppress(ZygoteError):  # the executor ended with its zygote
            handle.send({"op": "again", **request.fields})
            answer = handle.receive(clock.monotonic() + request.case.limit + GRACE)
            if isinstance(answer, dict) and answer.get("op") == "grown":
                self.spent, grown = False, answer["growths"]
                end.suspicions = {
                    name: size for name, size in end.suspicions.items() if grown.get(name, 0) > meter_of(name).confirm
                }
            else:
                handle.kill()

    def _take_all_reports(self) -> None:
        """Take the reports and facts that the executor has written about its last case. Raises ProtocolError."""
        handle = self.handle
        self._take_reports(handle.new_facts(), handle.outputs.phases.read(len(handle.cases)))

    def _take_reports(self, lines: list[bytes], passed: Sequence[PassedPhase], *, silent: bool = False) -> None:
        """Take the reports and warnings among the facts, and the passed phases. Raises ProtocolError."""
        facts = decode_messages(lines, f"executor {self.handle.name}") if lines else []
        self.warnings = [reports.unpack_warning(message) for message in facts if message["op"] == "warning"]
        others = [message for message in facts if message["op"] != "warning"] if self.warnings else facts
        messages = phase_page.merge_phases_and_facts(passed, others)
        self.reports = reports.unpack_reports(self.request.case.item, messages)
        for report, message in zip(self.reports, messages, strict=True):
            self.memory = _larger(self.memory, message.get("memory"))
            if not silent:
                self._add_output(report, message)
            self.seen.phases += (phase_of(report),)

    def _add_output(self, report: pytest.TestReport, message: Message) -> None:
        marks = marks_in(message)
        before, self.handle.marks = self.handle.marks, marks
        if marks == before:
            return
        files = (self.handle.outputs.out, self.handle.outputs.err)
        for name, file, begin, end in zip(("stdout", "stderr"), files, before, marks, strict=True):
            if end > begin:
                report.sections.append((f"Captured {name} {report.when}", file.read(begin, end, OUTPUT_LIMIT)))


def leave(handle: ExecutorHandle, limit: float, *, light: bool, owned: bool = False) -> bool:
    """Ask an executor to exit, and wait for it. Returns False if it has not ended within `limit` seconds.

    `owned`: the processes that the last case has left are its own, and no fixture's. Raises ZygoteError, StoppedError.
    """
    handle.send({"op": "exit", "limit": limit, "light": light, "owned": owned})
    deadline = clock.monotonic() + limit + GRACE
    while handle.exit_status is None:
        answer = handle.receive(deadline)
        if answer is NoMessage.DEADLINE:
            return False
        if isinstance(answer, dict):
            handle.end = parse_ending(answer, ProcessEnd)
    return True


def marks_in(message: Message) -> tuple[int, int]:
    """Return the sizes of standard output and error in a fact. Raises ProtocolError."""
    match message.get("out"):
        case [int(out), int(err)]:
            return out, err
        case other:
            raise ProtocolError(f"an executor sent output marks {other!r}, expected two sizes")


def phases_in(message: Message) -> list[PassedPhase]:
    """Return the passed phases of the previous case, from the message that a case has begun. Raises ProtocolError."""
    match message.get("passed", []):
        case list(entries):
            return [phase_page.parse_passed_phase(entry) for entry in entries]
        case other:
            raise ProtocolError(f"an executor sent the phases {other!r}, expected a list")


def _larger(before: tuple[int, int], sizes: object) -> tuple[int, int]:
    """Return the maximum of `before` and `sizes`, host and device separately. Raises ProtocolError."""
    match sizes:
        case None:
            return before
        case [int(host), int(device)] if host >= 0 and device >= 0:
            return max(before[0], host), max(before[1], device)
        case other:
            raise ProtocolError(f"an executor sent the memory {other!r}, expected two sizes")


@dataclass(slots=True)
class CaseHistory:
    """The attempts at a case so far. `ruling` is the decision of a rule of the run, None if no rule applies.

    `earlier` counts attempts that are not stored here: the case already had a verdict and is examined again.
    """

    case: Case
    earlier: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    ruling: Ruling | None = None
    _results: list[AttemptResult] = field(default_factory=list)
    _settled: Outcome | None = None

    @property
    def next_number(self) -> int:
        """The number of the next attempt, from 1."""
        return self.case.before + self.earlier + len(self.attempts) + 1

    def add(self, attempt: Attempt, *, final: bool) -> None:
        """Add a finished attempt. An attempt that makes the case run again is not `final`."""
        self.attempts.append(attempt)
        self._results.append(attempt_result(attempt, final=final))
        self.ruling = self._settled = None

    @property
    def settled(self) -> Outcome:
        """The outcome of the attempts, before any ruling."""
        if self._settled is None:
            self._settled = final_verdict(self._results, len(self._results))
        return self._settled

    @property
    def outcome(self) -> Outcome:
        """The current verdict."""
        return self.settled if self.ruling is None else self.ruling.outcome

    @property
    def decisive(self) -> Attempt:
        """The attempt that explains the verdict, see `deciding_attempt`; the worst one while none is final."""
        if len(self.attempts) == 1:
            return self.attempts[0]
        place = deciding_attempt(self._results, self.outcome, ruled=self.ruling is not None)
        if place is None:
            return max(reversed(self.attempts), key=lambda attempt: attempt.outcome.severity)
        return self.attempts[place]

    def counting(self) -> list[AttemptResult]:
        """Return the attempts that count, in the form that rules need."""
        return [result for result in self._results if result.final]

    @property
    def message(self) -> str:
        """One line about what happened in the last attempt; "" for a plain pass."""
        return self._results[-1].message


def attempt_result(attempt: Attempt, *, final: bool = True) -> AttemptResult:
    """Return an attempt in the form that verdicts and rules need."""
    return AttemptResult(
        attempt.outcome, final=final, message=message(attempt), alone=attempt.alone, duration=attempt.duration
    )


def message(attempt: Attempt) -> str:
    """Return one line about what happened; "" for a plain pass."""
    return attempt.judgement.message or first_line(attempt.reports)

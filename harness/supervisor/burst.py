"""One case, or several, that an executor runs one after the other, for one request.

Two processes that wake each other for each case lose more time than a short case takes. Therefore an executor continues
by itself while cases pass, and records in its file of facts when a case begins. Each attempt has the same result as in
a request of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from harness.core import clock
from harness.protocol.endings import CaseEnd, as_message
from harness.protocol.phase_page import PassedPhase
from harness.protocol.wire import Message, ProtocolError, decode_message
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import (
    GRACE,
    Attempt,
    CaseHistory,
    CaseRequest,
    Listener,
    attempt_of,
    marks_in,
    phases_in,
)
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.judgement import Evidence
from harness.zygote.client import ZygoteError

#: The most cases of one request.
MOST = 128
#: Seconds without a message after which the supervisor looks which cases have ended. The interval grows while a case
#: runs. The executor sends a message earlier, unless a case takes that long.
LOOK = 0.05
_PLAIN = as_message(CaseEnd())
_BEGUN = b'{"op":"begun"'


@dataclass(frozen=True, slots=True)
class _Place:
    """The fields of an attempt that follow from its place in the burst; see `Attempt`."""

    number: int
    alone: bool
    duration: float
    ended: float


class Burst:
    """Attempts at cases. The first has begun; each other one begins only after the previous one has passed."""

    def __init__(self, handle: ExecutorHandle, requests: Sequence[CaseRequest], numbers: Sequence[int]) -> None:
        """`numbers`: the number of each attempt."""
        self.handle = handle
        self._requests = requests
        self._numbers = numbers
        #: For a case that has passed in silence, a function that makes its attempt later: the executor need not wait
        #: for it.
        self._attempts: list[Attempt | Callable[[], Attempt]] = []
        #: When each case began, as far as is known.
        self._begins = [clock.now()]
        self._alone = not handle.cases
        self._over = 0.0
        self._answer: Message | NoMessage | None = None
        self._error: Exception | None = None
        handle.trim_output()
        first, *others = requests
        more = {"more": [request.fields for request in others]} if others else {}
        handle.send({"op": "run", "number": len(handle.cases) + 1, **first.fields, **more})
        self._listener = self._listen(first)

    @property
    def ran(self) -> int:
        """The number of cases that have begun, as far as is known."""
        return len(self._begins)

    @property
    def over(self) -> bool:
        """Whether no other case will begin."""
        return self._answer is not None or self._error is not None

    @property
    def last(self) -> Attempt | None:
        """The attempt at the last case, if it has ended and the executor has nothing to report about it."""
        if self._answer != _PLAIN:
            return None
        return self.result(self.ran - 1)

    def begun_at(self, place: int) -> float:
        """Return when a case began, in seconds since 1970."""
        return self._begins[place]

    def result(self, place: int) -> Attempt:
        """Wait for the end of a case that has begun. The result describes any failure.

        The executor is killed if necessary.
        """
        while len(self._attempts) <= place:
            self._take_ended()
            if len(self._attempts) > place:
                break
            if self.over or self.ran == len(self._requests):
                self._conclude()
            else:
                self._look()
        attempt = self._attempts[place]
        if not isinstance(attempt, Attempt):
            attempt = self._attempts[place] = attempt()
        return attempt

    def _look(self) -> None:
        """Wait for a message, or until it is time to look for cases that have begun."""
        deadline, now = self._listener.deadline, clock.monotonic()
        until = min(deadline, now + max(LOOK, now - self._since))
        try:
            answer = self.handle.receive(until)
        except (ZygoteError, StoppedError) as error:
            self._error = error
        else:
            if answer is not NoMessage.DEADLINE or until == deadline:
                self._answer = answer
        self._over = clock.now()

    def _receive(self) -> Message | NoMessage:
        """Return the message at the end of the request, or why none came. Raises ZygoteError, StoppedError."""
        if self._error is not None:
            raise self._error
        if self._answer is None:
            self._answer = self.handle.receive(self._listener.deadline)
            self._over = clock.now()
        return self._answer

    def _take_ended(self) -> None:
        """Take the attempts that have ended: another case began after each of them."""
        lines = self.handle.new_facts()
        first = 0
        for place, line in enumerate(lines):
            if not line.startswith(_BEGUN) or self.ran == len(self._requests):
                continue
            try:
                message = decode_message(line, f"executor {self.handle.name}")
                begun, marks = self._begin(message), marks_in(message)
                facts, passed, self._listener.output_end = lines[first:place], phases_in(message), marks
                if facts or marks != self.handle.marks:
                    self._listener.plain(facts, passed)
                    self._add(begun)
                else:
                    self._attempts.append(partial(_silent_attempt, self._listener, passed, self._place(begun)))
            except ProtocolError:  # the case has written to the file, so what follows cannot be trusted
                self._answer = NoMessage.GARBLED
                self._listener = self._listen(self._requests[self.ran - 1], again=True)
                return
            self.handle.pass_facts(lines[first : place + 1])
            self.handle.marks = marks
            self._begins.append(begun)
            self._alone = False
            self._listener = self._listen(self._requests[self.ran - 1])
            first = place + 1

    def _conclude(self) -> None:
        """Take the attempt at the last case that has begun."""
        self._listener.conclude(self._receive)
        self._add(clock.now() if self._listener.seen.leaving else self._over or clock.now())

    def _place(self, ended: float) -> _Place:
        """Return the place of the next attempt, which has ended."""
        begun = self._begins[-1]
        return _Place(self._numbers[len(self._attempts)], self._alone, max(0.0, ended - begun), ended)

    def _add(self, ended: float) -> None:
        self._attempts.append(_attempt(self._listener, self._place(ended)))

    def _listen(self, request: CaseRequest, *, again: bool = False) -> Listener:
        if not again:
            self.handle.cases.append(request.case.id)
        self._since = clock.monotonic()
        self.handle.starvation.begin(self._since)
        limit = request.case.limit
        seen, deadline = Evidence(limit=limit), self._since + limit + GRACE
        return Listener(self.handle, request, start=self.handle.marks, deadline=deadline, seen=seen)

    def _begin(self, message: Message) -> float:
        """Return when the next case began; if a case has changed the clock, a time between the last begin and now.

        Raises ProtocolError.
        """
        case, begun = self._requests[self.ran].case.id, message.get("t")
        if message.get("case") != case or not isinstance(begun, float):
            raise ProtocolError(f"an executor began {message.get('case')!r}, expected {case!r}")
        return min(max(self._begins[-1], begun), clock.now())


def run_attempt(handle: ExecutorHandle, request: CaseRequest, number: int) -> Attempt:
    """Run one case in `handle`. The result describes any failure. The executor is killed if necessary."""
    return Burst(handle, [request], [number]).result(0)


def _attempt(listener: Listener, place: _Place) -> Attempt:
    return attempt_of(listener, place.number, alone=place.alone, duration=place.duration, ended=place.ended)


def _silent_attempt(listener: Listener, passed: Sequence[PassedPhase], place: _Place) -> Attempt:
    """Return an attempt that has passed in silence. Its output is not read: the files may have been emptied since."""
    listener.plain([], passed, silent=True)
    return _attempt(listener, place)


@dataclass(frozen=True, slots=True)
class Begun:
    """A case whose first attempt the executor was asked for before pytest asked for the case."""

    history: CaseHistory
    burst: Burst
    place: int
    nextitem: pytest.Item | None

    @property
    def handle(self) -> ExecutorHandle:
        return self.burst.handle

    @property
    def at(self) -> float:
        """When the case began, in seconds since 1970."""
        return self.burst.begun_at(self.place)

    def result(self) -> Attempt:
        """Wait for the end of the case."""
        return self.burst.result(self.place)

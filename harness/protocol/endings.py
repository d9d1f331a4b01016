"""What an executor reports at the end of a case and at its own end, as messages or as its exit status.

Each class is the message of the executor and the evidence of its supervisor: a new kind of evidence is one field here.
"""

from __future__ import annotations

import signal
from typing import Literal, TypeVar, get_args

import msgspec

from harness.core.outcome import Outcome
from harness.core.text import format_exit_code
from harness.protocol.wire import Message, ProtocolError

#: A case has closed or replaced the executor's channel, so that it cannot send anything.
EXIT_CHANNEL_GONE = 241
#: No memory was left to send a report.
EXIT_NO_MEMORY = 242
#: The device could not be made ready: its library could not be loaded, or its set-up failed.
EXIT_NO_DEVICE = 243
#: The harness's own code failed in an executor. The traceback goes over the channel.
EXIT_HARNESS_ERROR = 244
#: Ends an executor whose case exceeds its time limit. A real-time signal, which other code is unlikely to use.
WATCHDOG_SIGNAL = signal.SIGRTMAX - 1


#: The reasons for the harness's own exit statuses.
HARNESS_EXITS = {
    EXIT_CHANNEL_GONE: "a case closed or replaced a descriptor of the harness",
    EXIT_NO_MEMORY: "a case left too little memory to report",
    EXIT_NO_DEVICE: "the device could not be made ready",
    EXIT_HARNESS_ERROR: "an error of the harness's own code",
    -WATCHDOG_SIGNAL: "the time limit of a case",
}


def format_executor_exit(status: int, outcome: Outcome) -> str:
    """Return ``exit status 3``, ``SIGSEGV``, or ``exit status 244 (an error of the harness's own code)``.

    `outcome`: that of the attempt. A crashed attempt has ended its process itself, whatever the status.
    """
    own = "" if outcome is Outcome.CRASHED else HARNESS_EXITS.get(status, "")
    return f"{format_exit_code(status)} ({own})" if own else format_exit_code(status)


SessionEnd = Literal["shouldfail", "shouldstop"]
#: The attributes of a session that end it after the current test.
SESSION_ENDS: tuple[SessionEnd, ...] = get_args(SessionEnd)


class StateProblem(msgspec.Struct, frozen=True, array_like=True):
    """A problem with the process after a case: the outcome that it causes, and a description."""

    outcome: Outcome
    text: str


class RemoteFailure(msgspec.Struct, frozen=True):
    """An exception of another process: one line of text, and its traceback."""

    error: str
    traceback: str


class SessionNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changes to pytest's session by code in an executor, where the session is a copy. pytest's own must adopt them.

    `ends`: reasons to fail or to stop, by the attribute of the session. `failed`: the change of
    ``session.testsfailed``, which may be negative. `properties`: those of ``record_testsuite_property``.
    """

    ends: dict[SessionEnd, str] = {}
    failed: int = 0
    properties: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ends or self.failed or self.properties)


class CaseEnd(msgspec.Struct, omit_defaults=True, tag_field="op", tag="done"):
    """The end of a case, as its executor reports it. Nearly every case ends as `CaseEnd()`.

    - `unknown`: the executor did not collect the case; the text describes the cases that it collected.
    - `interruption`: KeyboardInterrupt, SystemExit or ``pytest.exit`` ended the case.
    - `hook_error`: an exception of a hook of a conftest or of another plugin; it aborted pytest's run protocol.
    - `problems`: what the case has left behind in its process.
    - `raced`: work of the case that used the same memory without an order.
    - `fixtures`: problems of fixtures that ended with the case, and that the case does not use.
    - `poison`: the error with which the device refuses all further work.
    - `suspicions`: growth by meter that may be a leak.
    - `blind`: why some meters could not be read, one text each.
    - `levels`: what the process uses, by meter, if the request asked for it.
    - `struck`: how often each injected fault was triggered.
    - `session`: the changes by the case to its session.
    """

    unknown: str = ""
    interruption: str = ""
    hook_error: RemoteFailure | None = None
    problems: list[StateProblem] = []
    raced: str = ""
    fixtures: list[str] = []
    poison: str = ""
    suspicions: dict[str, int] = {}
    blind: list[str] = []
    levels: dict[str, int] = {}
    struck: dict[str, int] = {}
    session: SessionNews = SessionNews()

    @property
    def aborted(self) -> bool:
        """Whether pytest's run protocol ended early, so that reports are missing."""
        return bool(self.interruption) or self.hook_error is not None


class ProcessEnd(msgspec.Struct, omit_defaults=True, tag_field="op", tag="bye"):
    """The end of an executor that was asked to exit.

    `error`: what the teardown of shared fixtures raised or left behind. `grown`: growth by meter over all cases, and
    `by_case`: by case and meter, for the meters that have grown suspiciously.
    """

    error: str = ""
    grown: dict[str, int] = {}
    by_case: dict[str, dict[str, int]] = {}
    session: SessionNews = SessionNews()


Ending = TypeVar("Ending", CaseEnd, ProcessEnd, RemoteFailure)


def as_message(ending: CaseEnd | ProcessEnd | RemoteFailure) -> Message:
    """Return the message of an executor. A failure is one of the harness's own code, which ends the executor."""
    message: Message = msgspec.to_builtins(ending)
    return {"op": "harness_error", **message} if isinstance(ending, RemoteFailure) else message


def parse_ending(message: Message, kind: type[Ending]) -> Ending:
    """Return the ending in a message of an executor. Raise ProtocolError if the message is another one, or invalid."""
    try:
        return msgspec.convert(message, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"an executor sent an invalid {message['op']!r} ({error})") from error

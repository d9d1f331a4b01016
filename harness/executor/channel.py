"""The executor's way to its supervisor: messages on the channel, facts in a file, and the report of its own error.

A case may have closed or replaced the descriptors, set limits that prevent a write, or left a fork of this process
running.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator, Sequence

# Imported by name: a case may have replaced the attributes of the modules.
from os import _exit, fstat, ftruncate, getpid
from os import write as write_to
from resource import RLIM_INFINITY, getrlimit, setrlimit
from signal import pause
from traceback import format_exception, format_exception_only, walk_tb
from typing import NoReturn

from harness.checks.state.essentials import LIMITS, descriptor_identity
from harness.core.plain_values import safe_repr
from harness.core.text import single_line, truncate_middle
from harness.protocol.endings import EXIT_CHANNEL_GONE, EXIT_HARNESS_ERROR, EXIT_NO_MEMORY, RemoteFailure, as_message
from harness.protocol.wire import Channel, Message, encode_message

#: Characters kept of a traceback.
_MOST_OF_TRACEBACK = 32 << 10


def describe_exception(error: BaseException) -> RemoteFailure:
    """Return an exception in one line, and its traceback."""
    try:
        line, text = "".join(format_exception_only(error)), "".join(format_exception(error))
    except Exception:  # noqa: BLE001 - the traceback's lines are read by code that a case may have replaced
        line = text = safe_repr(error)
    return RemoteFailure(single_line(line) or type(error).__name__, truncate_middle(text, _MOST_OF_TRACEBACK))


def is_raised_by_other_plugin(error: BaseException) -> bool:
    """Return whether a hook of a conftest or of another plugin raised an exception that came out of a hook call."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return is_other_plugin_traceback([frame.f_globals.get("__name__", "") for frame in frames])


def is_other_plugin_traceback(modules: Sequence[str]) -> bool:
    """Return the same for the modules of the traceback's frames, outermost first.

    The last hook call decides: its frame follows the last frame of pluggy. Frames below belong to that hook, because
    libraries such as torch and json raise in calls from the harness as well as from other plugins.
    """
    calls = [position for position, module in enumerate(modules) if _package(module) == "pluggy"]
    if not calls:
        return False
    below = modules[calls[-1] + 1 :]
    return not below or _package(below[0]) != "harness"


def _package(module: str) -> str:
    return module.partition(".")[0]


def report_error_and_exit(error: BaseException, channel: Channel) -> NoReturn:
    """Report an exception of the harness's own code to the supervisor, and exit.

    The report uses the channel, which works even if the executor's files cannot be written, for example on a full disk.
    """
    try:
        channel.send(as_message(describe_exception(error)))
    except OSError:  # the supervisor is gone
        sys.excepthook(type(error), error, error.__traceback__)
    _exit(EXIT_HARNESS_ERROR)


class GuardedChannel:
    """Writes messages and facts of this process, or ends the process if that is impossible."""

    def __init__(self, channel: Channel, facts: int) -> None:
        """`facts`: the descriptor of the file for facts. Make this before the first case."""
        self._channel = channel
        self._facts = facts
        self._pid = getpid()
        self._limits = {name: getrlimit(number) for name, number in LIMITS.items()}
        self._own = {number: descriptor_identity(number) for number in (channel.fileno(), facts)}

    def receive(self) -> Message:
        """Wait for a request. Exit at the end of the stream, because the supervisor is gone."""
        while (message := self._channel.pop()) is None:
            self._channel.receive()
            if self._channel.closed:
                _exit(0)
        return message

    def send(self, message: Message) -> None:
        """Send a message, which wakes the supervisor."""
        self._guarded(lambda: self._channel.send(message))

    def note(self, message: Message) -> None:
        """Write a fact down, so that it survives a later crash. This does not wake the supervisor."""
        self._guarded(lambda: _append(self._facts, encode_message(message)))

    def unguarded(self) -> Channel:
        """Return the channel for a last message. Exit or wait if it is not intact or not that of this process."""
        self._expect_intact()
        return self._channel

    def _expect_intact(self) -> None:
        """Return if this is the executor's own process and its channel is intact. Otherwise exit or wait."""
        self.expect_own_process()
        for number, identity in self._own.items():
            if descriptor_identity(number) != identity:
                _exit(EXIT_CHANNEL_GONE)

    def expect_own_process(self) -> None:
        """Return if this is the executor's own process, and not a fork of it that a case has left running.

        Such a fork waits here, so that the check after the case finds it as a leftover child.
        """
        while getpid() != self._pid:
            pause()

    def _guarded(self, write: Callable[[], object]) -> None:
        """Write. If limits that the case has set prevent it, lift them and try again."""
        self._expect_intact()
        try:
            write()
        except MemoryError:
            self._restore_limits()
            try:
                write()
            except MemoryError:
                _exit(EXIT_NO_MEMORY)
        except BrokenPipeError:
            _exit(0)
        except OSError as error:
            if error.errno != errno.EFBIG:  # the case's limit on file sizes must not apply to the harness's files
                raise
            with self._limits_lifted():
                write()

    @contextlib.contextmanager
    def _limits_lifted(self) -> Iterator[None]:
        """Restore the initial limits as far as permitted, and afterwards set the case's limits again."""
        left = {name: getrlimit(LIMITS[name]) for name in self._limits}
        self._restore_limits()
        try:
            yield
        finally:
            for name, limits in left.items():
                setrlimit(LIMITS[name], limits)

    def _restore_limits(self) -> None:
        for name, (soft, _) in self._limits.items():
            number = LIMITS[name]
            hard = getrlimit(number)[1]
            allowed = soft if hard == RLIM_INFINITY else min(soft, hard) if soft >= 0 else hard
            setrlimit(number, (allowed, hard))


def _append(descriptor: int, data: bytes) -> None:
    """Append all of `data` to a file of the harness, or nothing: a partial line would look like a write of a case."""
    left = data
    try:
        while left:
            left = left[write_to(descriptor, left) :]
    except OSError:
        ftruncate(descriptor, fstat(descriptor).st_size - (len(data) - len(left)))
        raise

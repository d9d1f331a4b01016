"""The executor's way to its supervisor: messages on the channel, and facts in a file.

A case may have closed or replaced the descriptors of both, set limits that prevent a write, or left a fork of this
process running.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator

# Imported by name: a case may have replaced the attributes of the modules.
from os import _exit, fstat, ftruncate, getpid
from os import write as write_to
from resource import RLIM_INFINITY, getrlimit, setrlimit
from signal import pause

from harness.checks.state.essentials import LIMITS, descriptor_identity
from harness.protocol.exit_status import EXIT_CHANNEL_GONE, EXIT_NO_MEMORY
from harness.protocol.wire import Channel, Message, encode_message


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

"""Whether an exception that ended a case is the harness's own, and how such an exception is reported."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from harness.executor import channel
from harness.protocol.endings import EXIT_HARNESS_ERROR

OURS = ["harness.executor.executor", "pluggy._hooks", "pluggy._callers"]


@pytest.mark.parametrize(
    ("modules", "others"),
    [
        (["harness.executor.executor"], False),
        (["harness.executor.executor", "harness.executor.around_case", "torch.random"], False),
        ([*OURS, "_pytest.runner", "pluggy._callers", "harness.executor.session", "harness.executor.executor"], False),
        ([*OURS, "harness.executor.session", "harness.protocol.reports", "json.encoder"], False),
        # A hook of another plugin that the harness has called, or that has called the harness.
        ([*OURS, "harness.executor.session", "harness.protocol.reports", "pluggy._hooks", "suites.conftest"], True),
        ([*OURS, "suites.conftest", "harness.fixtures"], True),
        ([*OURS, "_pytest.runner", "pluggy._callers", "some_plugin", "json"], True),
        ([*OURS, "_pytest.runner"], True),
        (OURS, True),  # a call that pluggy refuses: a hook with an unknown argument
        ([*OURS, "harness_of_somebody.plugin"], True),
        ([*OURS, ""], True),
        ([], False),
    ],
)
def test_the_hook_that_was_called_last_is_to_blame(modules: list[str], others: bool) -> None:
    assert channel.is_other_plugin_traceback(modules) is others


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyError(), "KeyError"),
        (ValueError("\x1b[31m\udc80"), "ValueError: \\x1b[31m\\udc80"),
    ],
)
def test_an_exception_in_one_line(error: BaseException, line: str) -> None:
    assert channel.describe_exception(error).error == line


def test_an_exception_that_cannot_be_printed_is_reported_all_the_same() -> None:
    reported = channel.describe_exception(UnprintableError())
    assert "UnprintableError: <exception str() failed>" in reported.error


def test_a_long_traceback_is_cut() -> None:
    assert len(channel.describe_exception(ValueError("x" * (1 << 20))).traceback) < 64 << 10


_ENDS = """
import socket, sys
from harness.executor.channel import report_error_and_exit
from harness.protocol.wire import Channel
report_error_and_exit(ValueError("ours"), Channel(socket.socket(fileno=int(sys.argv[1])), "the supervisor"))
"""


@pytest.mark.parametrize("listened_to", [True, False])
def test_a_process_ends_with_a_status_and_the_traceback_reported(listened_to: bool) -> None:
    """Without a listener, it goes to standard error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if not listened_to:
            ours.shutdown(socket.SHUT_RD)
        command = [sys.executable, "-u", "-c", _ENDS, str(theirs.fileno())]
        done = subprocess.run(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, timeout=60, check=False)
        assert done.returncode == EXIT_HARNESS_ERROR
        if not listened_to:
            assert b"ValueError: ours" in done.stderr
            return
        reported = json.loads(ours.recv(1 << 16))
    assert (reported["op"], reported["error"]) == ("harness_error", "ValueError: ours")
    assert done.stderr == b""

"""What an executor does about an exception that no case raised: whose it is, and how it is told."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from harness.protocol.exit_status import EXIT_HARNESS_ERROR
from harness.protocol.wire import Channel, Message
from harness.text import cap, one_line

#: Characters kept of a traceback.
_MOST = 32 << 10


def describe(error: BaseException) -> Message:
    """An exception in one line, and its traceback."""
    return {
        "error": one_line("".join(traceback.format_exception_only(error))) or type(error).__name__,
        "traceback": cap("".join(traceback.format_exception(error)), _MOST),
    }


def is_of_others(error: BaseException) -> bool:
    """Whether an exception that came out of a hook call was raised by a hook of a conftest or of another plugin."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return raised_by_others([frame.f_globals.get("__name__", "") for frame in frames])


def raised_by_others(modules: Sequence[str]) -> bool:
    """The same, given the modules of the traceback's frames, the outermost first.

    The hook that was called last decides: it stands behind the last frame of pluggy. What it calls counts as its own,
    since both torch and json raise for us as for others.
    """
    calls = [position for position, module in enumerate(modules) if _package(module) == "pluggy"]
    if not calls:
        return False
    below = modules[calls[-1] + 1 :]
    return not below or _package(below[0]) != "harness"


def _package(module: str) -> str:
    return module.partition(".")[0]


def end_process(error: BaseException, channel: Channel) -> NoReturn:
    """Tell the supervisor of an exception of the harness's own, and end.

    Over the channel, since the executor's files may be what cannot be written to: a full disk takes a message.
    """
    try:
        channel.send({"op": "harness_error", **describe(error)})
    except OSError:  # nobody listens any more
        sys.excepthook(type(error), error, error.__traceback__)
    os._exit(EXIT_HARNESS_ERROR)

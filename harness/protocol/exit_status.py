"""Exit statuses with which an executor reports a failure that it can no longer send as a message."""

from __future__ import annotations

import signal

from harness.core.outcome import Outcome
from harness.core.text import format_exit_code

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

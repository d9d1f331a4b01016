"""The end of an executor as text for people. docs/verdicts.md has a table of the harness's own statuses."""

from __future__ import annotations

from harness.core.outcome import Outcome
from harness.core.text import format_exit_code
from harness.protocol import exit_status

#: The reasons for the harness's own exit statuses.
HARNESS_EXITS = {
    exit_status.EXIT_CHANNEL_GONE: "a case closed or replaced a descriptor of the harness",
    exit_status.EXIT_NO_MEMORY: "a case left too little memory to report",
    exit_status.EXIT_NO_DEVICE: "the device could not be made ready",
    exit_status.EXIT_HARNESS_ERROR: "an error of the harness's own code",
    -exit_status.WATCHDOG_SIGNAL: "the time limit of a case",
}


def format_executor_exit(status: int, outcome: Outcome) -> str:
    """Return ``exit status 3``, ``SIGSEGV``, or ``exit status 244 (an error of the harness's own code)``.

    `outcome`: that of the attempt. A crashed attempt has ended its process itself, whatever the status.
    """
    own = "" if outcome is Outcome.CRASHED else HARNESS_EXITS.get(status, "")
    return f"{format_exit_code(status)} ({own})" if own else format_exit_code(status)

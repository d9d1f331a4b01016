"""A case that the watchdog in its own process cannot end: only the supervisor's deadline and its ladder can."""

import faulthandler
import os
import signal

import pytest

EXPECTED = {
    "test_disarmed": "timeout: did not finish within 0.3 s (in call)",
    "test_after": "passed",
}


@pytest.mark.timeout(0.3)
def test_disarmed() -> None:
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A stopped process runs no watchdog thread either, and only the ladder's last signal ends it.
    os.kill(os.getpid(), signal.SIGSTOP)


def test_after() -> None:
    pass

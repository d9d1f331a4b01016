"""A case that breaks the end of its process and has a waiver for it, and other cases."""

import atexit
import os
import signal

EXPECTED = {
    "test_before": "passed",
    "test_registers": "waived: /1; suites/policy_ends/waivers.yaml:2): crashed: SIGKILL at",
    "test_after": "passed",
    "test_last": "passed",
}
OPTIONS = ["--waivers=suites/policy_ends/waivers.yaml"]


def test_before() -> None:
    pass


def test_registers() -> None:
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_after() -> None:
    pass


def test_last() -> None:
    pass

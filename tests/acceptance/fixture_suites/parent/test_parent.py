"""A case that kills its process's parent, from which it was forked."""

import os
import signal

EXPECTED = {
    "test_before": "passed",
    "test_kills_its_parent": "lost: the harness lost its zygote while the case ran",
    "test_after": "passed",
    "test_last": "passed",
}
FINDINGS = ["zygote"]


def test_before() -> None:
    pass


def test_kills_its_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def test_after() -> None:
    pass


def test_last() -> None:
    pass

"""Cases that end their process themselves, or try to."""

import os
import sys

EXPECTED = {
    "test_before": "passed",
    "test_exit_0": "crashed: exit status 0 in call",
    "test_between": "passed",
    "test_exit_1": "crashed: exit status 1 in call",
    "test_exit_3": "crashed: exit status 3 in call",
    "test_sys_exit": "failed: SystemExit: 3",
    "test_keyboard_interrupt": "failed: raised KeyboardInterrupt",
    "test_after": "passed",
}


def test_before() -> None:
    pass


def test_exit_0() -> None:
    os._exit(0)


def test_between() -> None:
    pass


def test_exit_1() -> None:
    os._exit(1)


def test_exit_3() -> None:
    os._exit(3)


def test_sys_exit() -> None:
    sys.exit(3)


def test_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def test_after() -> None:
    pass

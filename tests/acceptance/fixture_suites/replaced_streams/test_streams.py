"""Cases that replace objects which their process needs to report them."""

import os
import sys
from typing import Any

EXPECTED = {
    "test_no_stdout": "passed",
    "test_stdout_without_flush": "passed",
    "test_flush_interrupts": "passed",
    "test_no_stdout_left": "contaminated: did not restore sys.stdout (now None",
    "test_stdout_deleted": "contaminated: did not restore sys.stdout (now None",
    "test_stdout_detached": "contaminated: did not restore whether sys.stdout is closed (now True",
    "test_other_pid": "passed",
    "test_other_pid_left": "contaminated: did not restore os.getpid",
    "test_large_properties_are_no_leak": "passed",
}
OPTIONS = ["--case-timeout=30"]


class Interrupts:
    def flush(self) -> Any:
        raise KeyboardInterrupt


def test_no_stdout(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdout", None)


def test_stdout_without_flush(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdout", object())


def test_flush_interrupts(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stderr", Interrupts())


def test_no_stdout_left() -> None:
    sys.stdout = None


def test_stdout_deleted() -> None:
    del sys.stdout


def test_stdout_detached() -> None:
    sys.stdout.detach()  # type: ignore[union-attr]


def test_other_pid(monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)


def test_other_pid_left() -> None:
    os.getpid = lambda: 1


def test_large_properties_are_no_leak(record_property: Any) -> None:
    record_property("large", [bytes(1000) for _ in range(8000)])

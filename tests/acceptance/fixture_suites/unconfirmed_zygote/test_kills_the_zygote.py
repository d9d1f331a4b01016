"""Cases that kill their parent process when they run again to confirm a leak."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

EXPECTED = {
    "test_before": "passed",
    "test_kills_in_the_same_process": "passed",
    "test_between": "passed",
    "test_kills_in_a_fresh_process": "passed",
    "test_after": "passed",
}
NOTES = {
    "test_kills_in_the_same_process": "a suspected leak could not be confirmed: ",
    "test_kills_in_a_fresh_process": "a suspected leak could not be confirmed: ",
}

KEPT: list[torch.Tensor] = []
FIRST = Path(os.environ["PROBE_DIR"]) / "first"


def test_before() -> None:
    pass


def test_kills_in_the_same_process() -> None:
    KEPT.append(torch.zeros(10))
    if len(KEPT) == 2:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()


def test_between() -> None:
    assert not KEPT


def test_kills_in_a_fresh_process() -> None:
    KEPT.append(torch.zeros(10))
    if not FIRST.exists():
        FIRST.write_text(str(os.getpid()))
    elif FIRST.read_text() != str(os.getpid()) and len(KEPT) == 2:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()


def test_after() -> None:
    assert not KEPT

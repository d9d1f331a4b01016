"""Cases before, during and after which an outside process is killed."""

import os
import time
from pathlib import Path

import pytest

EXPECTED = {
    "test_before[0]": "passed",
    "test_before[1]": "passed",
    "test_waits": "lost: never finished",
    "test_after[0]": "passed",
    "test_after[1]": "passed",
    "test_after[2]": "passed",
    "test_after[3]": "passed",
}


@pytest.mark.parametrize("number", range(2))
def test_before(number: int) -> None:
    assert number < 2


def test_waits() -> None:
    """The case waits until the test lets it continue."""
    folder = Path(os.environ["PROBE_DIR"])
    print("waiting", flush=True)
    (folder / f"waits-{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


@pytest.mark.parametrize("number", range(4))
def test_after(number: int) -> None:
    assert number < 4

"""A case of which two runs crash: that after other cases, and that which confirms it alone."""

import os
import signal
from pathlib import Path

EXPECTED = {
    "test_before": "passed",
    "test_crashes": {
        "batch": "crashed: crashed in 1 of 3 repetitions: SIGKILL in call",
        "case": "crashed: crashed in 2 of 3 repetitions: SIGKILL in call",
    },
}


def test_before() -> None:
    pass


def test_crashes() -> None:
    with (Path(os.environ["PROBE_DIR"]) / "runs").open("a+") as file:
        file.write("run\n")
        file.seek(0)
        number = len(file.readlines())
    if number in (2, 3):
        os.kill(os.getpid(), signal.SIGKILL)

"""A case that is killed while it builds a C++ extension. Each attempt has a build folder of its own.

torch waits for as long as there is a lock in the folder.
"""

import os
import signal
from pathlib import Path

EXPECTED = {"test_before": "passed", "test_killed_while_it_builds": "crashed: SIGKILL in call"}


def test_before() -> None:
    pass


def test_killed_while_it_builds() -> None:
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"], "mine")
    folder.mkdir(parents=True, exist_ok=True)
    os.open(folder / "lock", os.O_CREAT | os.O_EXCL)
    os.kill(os.getpid(), signal.SIGKILL)

"""What capturing sets is set before test files are imported; and the zygote, which has imported them, ignores SIGTERM.

Slurm sends SIGTERM to all processes of a step, and the running cases have their grace.
"""

import os
import signal
from tempfile import tempdir

EXPECTED = {"test_temporary_folder": "passed", "test_terminates_the_zygote": "passed", "test_after": "passed"}


def test_temporary_folder() -> None:
    """click's tests import the temporary folder, which tempfile determines when pytest starts capturing."""
    assert tempdir is not None


def test_terminates_the_zygote() -> None:
    os.kill(os.getppid(), signal.SIGTERM)


def test_after() -> None:
    pass

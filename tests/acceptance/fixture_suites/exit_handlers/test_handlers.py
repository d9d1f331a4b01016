"""Exit handlers run once, in the process in which they were registered, and temporary folders go with them."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

EXPECTED = {"test_it[0]": "passed", "test_it[1]": "passed", "test_it[2]": "passed", "test_it[3]": "passed"}
OPTIONS = ["--leak-check=off"]

PROBE = Path(os.environ["PROBE_DIR"])
FOLDER = tempfile.mkdtemp(dir=PROBE)
atexit.register(shutil.rmtree, FOLDER)
KEPT = tempfile.TemporaryDirectory(dir=PROBE)


def note(name: str) -> None:
    with (PROBE / name).open("a") as file:
        print(os.getpid(), file=file)


@atexit.register
def of_import() -> None:
    note("of-import")


@pytest.mark.parametrize("number", range(4))
def test_it(number: int) -> None:
    assert number >= 0
    assert os.path.isdir(FOLDER)
    assert os.path.isdir(KEPT.name)
    atexit.register(note, "of-case")
    note("cases")

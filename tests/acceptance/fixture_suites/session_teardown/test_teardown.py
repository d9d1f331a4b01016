"""A failing tear-down of a session fixture is reported, also if its executor was retired for another reason.

After the last case it is an error of that case.
"""

import os
from collections.abc import Iterator

import pytest

EXPECTED = {
    "test_first": "passed",
    "test_moves": "contaminated: did not restore the working folder",
    "test_last": "error: RuntimeError: cannot clean up",
}
OPTIONS = ["--dist=loadfile"]
FINDINGS = ["teardown: RuntimeError('cannot clean up')"]
COUNTS = {"passed": 1}


@pytest.fixture(scope="session")
def shared() -> Iterator[None]:
    yield
    raise RuntimeError("cannot clean up")


@pytest.mark.usefixtures("shared")
def test_first() -> None:
    pass


def test_moves() -> None:
    os.chdir("/")


@pytest.mark.usefixtures("shared")
def test_last() -> None:
    pass

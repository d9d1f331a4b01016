"""The harness's code raises in a process that a case has left in a broken state: this is the case's own doing."""

import os
import resource
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

EXPECTED = {
    "test_limits_files": "contaminated: did not restore RLIMIT_FSIZE (now [",
    "test_limits_files_for_a_while": "passed",
    "test_breaks_what_is_asked": "contaminated: did not restore os.getcwd",
    "test_uses_up_descriptors": "contaminated: ",
    "test_after": "passed",
}

HOARD: list[Any] = []


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_limits_files() -> None:
    limit_files(0)


@pytest.fixture
def no_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    limit_files(0)
    yield
    limit_files(before)


@pytest.mark.usefixtures("no_files")
def test_limits_files_for_a_while() -> None:
    pass


def test_breaks_what_is_asked() -> None:
    os.getcwd = None  # type: ignore[assignment]


def test_uses_up_descriptors() -> None:
    HOARD.append(subprocess.Popen(["sleep", "1000"]))
    try:
        while True:
            HOARD.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass


def test_after() -> None:
    pass

"""What a fixture of a wider scope leaves is attributed to the last case of its scope, if that uses the fixture."""

import os
import subprocess

import pytest

EXPECTED = {
    "test_first": {"batch": "passed", "case": "leaked: the module fixture 'forgets_a_process' left a child process"},
    "test_second": "leaked: the module fixture 'forgets_a_process' left a child process running: ",
}
SAYS = ["the module fixture 'forgets_its_folder' did not restore the working folder (now '/', was "]


@pytest.fixture(scope="module")
def forgets_a_process() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "1000"])


@pytest.fixture(scope="module")
def forgets_its_folder() -> None:
    os.chdir("/")


@pytest.mark.usefixtures("forgets_a_process", "forgets_its_folder")
def test_first() -> None:
    pass


@pytest.mark.usefixtures("forgets_a_process", "forgets_its_folder")
def test_second() -> None:
    pass

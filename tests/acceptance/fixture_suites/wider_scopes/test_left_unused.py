"""What a fixture of a wider scope leaves is a finding, if the last case of its scope does not use the fixture."""

import os
import subprocess

import pytest

EXPECTED = {
    "test_first": {"batch": "passed", "case": "leaked: the module fixture 'leaves_a_process' left a child process"},
    "test_second": "passed",
}
FINDINGS = {
    "batch": ["teardown: the module fixture 'leaves_a_process' left a child process running: "],
    "case": [],
}
SAYS = ["the module fixture 'leaves_its_folder' did not restore the working folder (now '/', was "]


@pytest.fixture(scope="module")
def leaves_a_process() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "1000"])


@pytest.fixture(scope="module")
def leaves_its_folder() -> None:
    os.chdir("/")


@pytest.mark.usefixtures("leaves_a_process", "leaves_its_folder")
def test_first() -> None:
    pass


def test_second() -> None:
    pass

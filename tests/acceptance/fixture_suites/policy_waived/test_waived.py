"""Cases with each kind of red outcome, as their waivers in waivers.yaml expect."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_fails": "waived: /1; suites/policy_waived/waivers.yaml:2): failed: AssertionError: way 2",
    "test_setup_fails": "waived: /2; suites/policy_waived/waivers.yaml:3): error: OSError",
    "test_crashes": "waived: /3; suites/policy_waived/waivers.yaml:4): crashed: SIGSEGV",
    "test_hangs": "waived: /4; suites/policy_waived/waivers.yaml:5): timeout: did not finish",
    "test_contaminates": "waived: /5; suites/policy_waived/waivers.yaml:6): contaminated",
    "test_leaks": "waived: /6; suites/policy_waived/waivers.yaml:7): leaked: left a child",
    "test_of_many[a-1]": "waived: /7; suites/policy_waived/waivers.yaml:8): failed",
    "test_of_many[a-2]": "waived: /7; suites/policy_waived/waivers.yaml:8): failed",
    "test_of_many[b-1]": "passed",
    "test_comes_and_goes[0]": "waived: /8; suites/policy_waived/waivers.yaml:9): failed",
    "test_comes_and_goes[1]": "passed: passed this time; waived as failed or passed: known",
    "test_other_machines": "passed",
    "test_skips": "skipped: not today",
    "test_gated": "gated: memory: wanted >=1000TiB",
    "test_after": "passed",
}


@pytest.fixture
def no_ground() -> None:
    raise OSError("no ground to stand on")


def test_before() -> None:
    pass


def test_fails() -> None:
    raise AssertionError("way 2")


def test_setup_fails(no_ground: None) -> None:
    pass


def test_crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.timeout(0.5)
def test_hangs() -> None:
    threading.Event().wait()


def test_contaminates(tmp_path: Path) -> None:
    os.chdir(tmp_path)


def test_leaks() -> None:
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])


@pytest.mark.parametrize("name", ["a-1", "a-2", "b-1"])
def test_of_many(name: str) -> None:
    assert name.startswith("b")


@pytest.mark.parametrize("value", [0, 1])
def test_comes_and_goes(value: int) -> None:
    assert value


def test_other_machines() -> None:
    pass


def test_skips() -> None:
    pytest.skip("not today")


@pytest.mark.requires(memory=">=1000TiB")
def test_gated() -> None:
    pass


def test_after() -> None:
    pass

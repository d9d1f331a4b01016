"""The second half of the mixed suite."""

import subprocess
import threading

import pytest

EXPECTED = {
    "test_gated": "gated: memory",
    "test_skips": "skipped: not now",
    "TestClass::test_hangs": "timeout: did not finish within 0.5 s (in call)",
    "TestClass::test_innocent": "passed",
    "test_leaves_a_child": "leaked: left a child process running",
    "test_parametrised[0]": "passed",
    "test_parametrised[1]": "passed",
    "test_parametrised[2]": "passed",
}


@pytest.mark.requires(memory=">=1000TiB")
def test_gated() -> None:
    raise AssertionError("it must not run")


def test_skips() -> None:
    pytest.skip("not now")


class TestClass:
    @pytest.mark.timeout(0.5)
    def test_hangs(self) -> None:
        threading.Event().wait()

    def test_innocent(self) -> None:
        pass


@pytest.mark.xdist_group("two")
def test_leaves_a_child() -> None:
    subprocess.Popen(["sleep", "1000"])


@pytest.mark.parametrize("number", range(3))
def test_parametrised(number: int) -> None:
    assert number < 3

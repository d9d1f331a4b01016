"""Cases whose repetitions differ."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

EXPECTED = {
    "test_passes": "passed",
    "test_fails_the_second_time": "failed: failed in 1 of 3 repetitions: assert 2 != 2",
    "test_fails": "failed: failed in 3 of 3 repetitions: AssertionError: assert 1 == 2",
    "test_waived": "waived: waived: known",
    "test_skips": "skipped: skipped in 3 of 3 repetitions",
}


def note(name: str, what: str) -> int:
    with (Path(os.environ["PROBE_DIR"]) / name).open("a+") as file:
        file.write(f"{what}\n")
        file.seek(0)
        return len(file.readlines())


@pytest.fixture(scope="module", autouse=True)
def ground() -> Iterator[None]:
    note("ground", f"up {os.getpid()}")
    yield
    note("ground", f"down {os.getpid()}")


def test_passes() -> None:
    pass


def test_fails_the_second_time() -> None:
    number = note("second", "run")
    assert number != 2


def test_fails() -> None:
    assert int("1") == 2


def test_waived() -> None:
    assert note("waived", "run") != 2


def test_skips() -> None:
    pytest.skip("not today")

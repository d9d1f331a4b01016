"""A serial case ends no executor on the CPU: nothing is leased there, so an executor of its own would not help it."""

import pytest

EXPECTED = {"test_one": "passed", "test_serial": "passed", "test_two": "passed"}
OPTIONS = ["--dist=loadfile"]


def test_one() -> None:
    pass


@pytest.mark.serial
def test_serial() -> None:
    pass


def test_two() -> None:
    pass

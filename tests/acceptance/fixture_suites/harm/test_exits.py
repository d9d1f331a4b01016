"""Cases that end their process: only an explicit message of the executor is attributed to the harness, no status."""

import os

import pytest

EXPECTED = {
    "test_exits[1]": "crashed: exit status 1 in call",
    "test_exits[244]": "crashed: exit status 244 in call",
}


@pytest.mark.parametrize("status", [1, 244])
def test_exits(status: int) -> None:
    os._exit(status)

"""A case that crashes after another one, and passes alone."""

import os

EXPECTED = {
    "test_first": "passed",
    "test_flaky": "flaky: crashed after other cases, passed alone: exit status 3 in call",
}

RAN: list[int] = []


def test_first() -> None:
    RAN.append(1)


def test_flaky() -> None:
    if RAN:
        os._exit(3)

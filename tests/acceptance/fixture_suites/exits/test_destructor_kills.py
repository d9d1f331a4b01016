"""A case that leaves an object in a global of its module, whose destructor kills the process."""

import os

EXPECTED = {
    "test_before": "passed",
    "test_leaves": "crashed: SIGABRT at interpreter exit",
    "test_after": "passed",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has already passed when the bad end is found


class Bomb:
    def __init__(self) -> None:
        # The object holds these itself, since the module's globals may be gone when it is destroyed.
        self.kill, self.getpid = os.kill, os.getpid

    def __del__(self) -> None:
        self.kill(self.getpid(), 6)


KEPT: list[Bomb] = []


def test_before() -> None:
    pass


def test_leaves() -> None:
    KEPT.append(Bomb())


def test_after() -> None:
    pass

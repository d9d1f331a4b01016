"""A case that leaves an object in a global of its module whose destructor kills the process."""

import os

EXPECTED = {
    "test_before": "passed",
    "test_leaves": "crashed: SIGABRT at interpreter exit",
    "test_after": "passed",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has passed by the time that its end is found bad


class Bomb:
    def __init__(self) -> None:
        # Kept by the object, since at its end the module's own names may be gone.
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

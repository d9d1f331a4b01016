"""Cases that fork, and whose child forgets to exit: messages of the child, a copy of the executor, are ignored."""

import os

EXPECTED = {
    "test_before": "passed",
    "test_forks": "leaked: left a child process running",
    "test_between": "passed",
    "test_child_fails": "leaked: left a child process running",
    "test_fails": "failed: AssertionError: on purpose",
    "test_after": "passed",
}
OPTIONS = ["--dist=loadfile", "--case-timeout=20"]


def test_before() -> None:
    pass


def test_forks() -> None:
    os.fork()


def test_between() -> None:
    pass


def test_child_fails() -> None:
    assert os.fork()


def test_fails() -> None:
    raise AssertionError("on purpose")


def test_after() -> None:
    pass

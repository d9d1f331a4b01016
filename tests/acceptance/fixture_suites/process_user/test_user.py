"""Cases that change the users and groups of a process, which only root can do."""

import os

EXPECTED = {
    "test_user": "contaminated: did not restore the users (real, effective, saved) (now [1, 1, 0], was [0, 0, 0])",
    "test_user_for_good": "contaminated: did not restore the users (real, effective, saved) (now [1, 1, 1]",
    "test_group": "contaminated: did not restore the groups (real, effective, saved) (now [1, 1, 1], was [0, 0, 0])",
    "test_groups": "contaminated: did not restore the supplementary groups (now [1, 2], was ",
    "test_after": "passed",
}
OPTIONS = ["--case-timeout=30"]


def test_user() -> None:
    os.setresuid(1, 1, 0)


def test_user_for_good() -> None:
    os.setresuid(1, 1, 1)


def test_group() -> None:
    os.setresgid(1, 1, 1)


def test_groups() -> None:
    os.setgroups([1, 2])


def test_after() -> None:
    assert os.getuid() == 0

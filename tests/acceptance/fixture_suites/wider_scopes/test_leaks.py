"""Cases that leak beside a fixture of a wider scope, which leaves nothing."""

import subprocess
import threading
import time

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_leaves_a_process": {
        "batch": "leaked: 1 more running child process after each of 4 repetitions",
        "case": "leaked: left a child process running",
    },
    "test_between": "passed",
    "test_leaves_a_thread": "leaked: ",
    "test_after": "passed",
}
SAYS = {"batch": ["children: ", "sleep 1000"], "case": []}

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture(scope="module")
def server() -> None:
    pass


def test_before() -> None:
    pass


def test_leaves_a_process() -> None:
    subprocess.Popen(["sleep", "1000"])


def test_between() -> None:
    pass


def test_leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def test_after() -> None:
    pass

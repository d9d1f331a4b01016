"""Cases that leave processes running, and cases that only seem to."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

EXPECTED = {
    "test_before": "passed",
    "test_child": "leaked: left a child process running",
    "test_between": "passed",
    "test_daemon": "leaked: left a child process running",
    "test_child_holds_the_output": "leaked: left a child process running",
    "test_child_holds_a_pipe": "leaked: left a child process running",
    "test_fails_and_leaves_a_child": "failed: AssertionError: beside the child",
    "test_child_that_was_waited_for": "passed",
    "test_child_that_has_ended": "passed",
    "test_daemon_thread": "leaked: 1 more thread (Python or native) after each of 4 repetitions",
    "test_after": "passed",
}

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]


def test_before() -> None:
    pass


def test_child() -> None:
    subprocess.Popen(WAITS)


def test_between() -> None:
    pass


def test_daemon() -> None:
    """Fork twice, change session, folder, descriptors and environment, and ignore all signals that can be ignored."""
    reported, tells = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            with (Path(os.environ["PROBE_DIR"]) / "daemons").open("a") as file:
                file.write(f"{os.getpid()}\n")
            os.write(tells, b"!")
            os.closerange(0, 100)
            os.chdir("/")
            os.execve(sys.executable, WAITS, {})
        os._exit(0)
    os.wait()
    assert os.read(reported, 1) == b"!"


def test_child_holds_the_output() -> None:
    subprocess.Popen(WAITS, stdout=1, stderr=2, start_new_session=True)


def test_child_holds_a_pipe() -> None:
    subprocess.Popen(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)


def test_fails_and_leaves_a_child() -> None:
    subprocess.Popen(WAITS)
    raise AssertionError("beside the child")


def test_child_that_was_waited_for() -> None:
    assert subprocess.run(["true"], check=False).returncode == 0


def test_child_that_has_ended() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_daemon_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def test_after() -> None:
    pass

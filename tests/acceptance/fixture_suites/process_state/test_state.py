"""What the kernel and Python keep for a process: changed by a case, of which the next case would suffer."""

import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator

import pytest

EXPECTED = {
    "test_dump_later": "contaminated: left faulthandler.dump_traceback_later() running",
    "test_exit_later": "contaminated: left faulthandler.dump_traceback_later() running",
    "test_dump_later_cancelled": "passed",
    "test_affinity": "contaminated: did not restore the CPUs that it may run on",
    "test_blocked_signals": "contaminated: did not restore the blocked signals (now ['SIGUSR1'], was [])",
    "test_number_of_processes": "contaminated: left RLIMIT_NPROC at",
    "test_closed_stdin": "contaminated: closed sys.stdin",
    "test_other_stdin": "contaminated: left another object as sys.stdin",
    "test_no_temporary_folder": "contaminated: removed the folder for temporary files",
    "test_nice": "contaminated: did not restore the nice value (now",
    "test_timer": "contaminated: did not restore the timer of the process's and the kernel's time (now True",
    "test_wakeup": "contaminated: did not restore the wakeup descriptor of signals",
    "test_faulthandler": "contaminated: did not restore faulthandler.is_enabled() (now False, was True)",
    "test_tracemalloc": "contaminated: did not restore tracemalloc.is_tracing() (now True, was False)",
    "test_traceback_limit": "contaminated: did not restore sys.tracebacklimit (now 1, was None)",
    "test_fixture_of_the_module[1]": "passed",
    "test_fixture_of_the_module[2]": "passed",
    "test_after": "passed",
}


def test_dump_later() -> None:
    faulthandler.dump_traceback_later(1000)


def test_exit_later() -> None:
    faulthandler.dump_traceback_later(0.2, True, exit=True)


def test_dump_later_cancelled() -> None:
    faulthandler.dump_traceback_later(1000)
    faulthandler.cancel_dump_traceback_later()


def test_affinity() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def test_blocked_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def test_number_of_processes() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))


def test_closed_stdin() -> None:
    sys.stdin.close()


def test_other_stdin() -> None:
    sys.stdin = open(os.devnull)  # noqa: SIM115


def test_no_temporary_folder() -> None:
    shutil.rmtree(tempfile.gettempdir())


def test_nice() -> None:
    os.nice(1)


def test_timer() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_PROF, 1000)


def test_wakeup() -> None:
    _, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)


def test_faulthandler() -> None:
    faulthandler.disable()


def test_tracemalloc() -> None:
    tracemalloc.start()


def test_traceback_limit() -> None:
    sys.tracebacklimit = 1


@pytest.fixture(scope="module")
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("number", [1, 2])
def test_fixture_of_the_module(number: int) -> None:
    assert tracemalloc.is_tracing(), number


def test_after() -> None: ...

"""Cases that change process state of the kernel and of Python, which would affect the next case."""

import ctypes
import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBC = ctypes.CDLL(None)
EXPECTED = {
    "test_dump_later": "contaminated: did not restore the dump of faulthandler.dump_traceback_later() (now 'pending'",
    "test_exit_later": "contaminated: did not restore the dump of faulthandler.dump_traceback_later() (now 'pending'",
    "test_dump_later_cancelled": "passed",
    "test_affinity": "contaminated: did not restore the CPUs that it may run on",
    "test_blocked_signals": "contaminated: did not restore the blocked signals (now ['SIGUSR1'], was [])",
    "test_number_of_processes": "contaminated: did not restore RLIMIT_NPROC (now [",
    "test_closed_stdin": "contaminated: did not restore whether sys.stdin is closed (now True",
    "test_other_stdin": "contaminated: did not restore sys.stdin (now ",
    "test_no_temporary_folder": "contaminated: did not restore the folder for temporary files (now 'removed'",
    "test_nice": "contaminated: did not restore the nice value (now",
    "test_timer": "contaminated: did not restore the timer of the process's and the kernel's time (now True",
    "test_wakeup": "contaminated: did not restore the wakeup descriptor of signals",
    "test_faulthandler": "contaminated: did not restore faulthandler.is_enabled() (now False, was True)",
    "test_tracemalloc": "contaminated: did not restore tracemalloc.is_tracing() (now True, was False)",
    "test_traceback_limit": "contaminated: did not restore sys.tracebacklimit (now 1, was None)",
    "test_death_signal": "contaminated: did not restore the signal at its parent's death (now 0, was 9)",
    "test_orphans": "contaminated: did not restore whether it adopts orphans (now False, was True)",
    "test_dumpable": "contaminated: did not restore whether it can dump core (now False, was True)",
    "test_timer_slack": "contaminated: did not restore the timer slack in ns (now 1000000000, was",
    "test_memory_errors": "contaminated: did not restore when memory errors kill it (now 'killed early', was",
    "test_execution_domain": "contaminated: did not restore the execution domain (now '0x40000', was",
    "test_traps": "contaminated: did not restore the floating-point exceptions that trap (now",
    "test_oom_score": "contaminated: did not restore the adjustment of its OOM score (now 500, was",
    "test_timer_of_c": "contaminated: did not restore the number of timers of C code (now 2, was 1)",
    "test_privileges": "contaminated: did not restore no_new_privs (now '1', was '0')",
    "test_handler_of_c": "contaminated: did not restore the signals that C code handles (added 'SIGUSR2 ignored'",
    "test_handler_of_python": "contaminated: did not restore the handler of SIGUSR2 (now",
    "test_huge_pages": "contaminated: did not restore whether it may have transparent huge pages (now '0', was '1')",
    "test_fixture_of_the_module[1]": "passed",
    "test_fixture_of_the_module[2]": "passed",
    "test_fixture_with_a_handler_of_c[1]": "passed",
    "test_fixture_with_a_handler_of_c[2]": "passed",
    "test_after": "passed",
}
OPTIONS = ["--case-timeout=30"]


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


def prctl(option: int, argument: int, *others: int) -> None:
    """Call prctl(2). The numbers are those of <linux/prctl.h>."""
    assert LIBC.prctl(option, ctypes.c_ulong(argument), *map(ctypes.c_ulong, (*others, 0, 0, 0)[:3])) == 0


def test_death_signal() -> None:
    prctl(1, 0)


def test_orphans() -> None:
    prctl(36, 0)


def test_dumpable() -> None:
    prctl(4, 0)


def test_timer_slack() -> None:
    prctl(29, 1_000_000_000)


def test_memory_errors() -> None:
    prctl(33, 1, 1)


def test_execution_domain() -> None:
    assert LIBC.personality(ctypes.c_ulong(0x40000)) == 0  # ADDR_NO_RANDOMIZE


def test_traps() -> None:
    assert LIBC.feenableexcept(8) == 0  # overflow, on x86-64 and AArch64


def test_oom_score() -> None:
    Path("/proc/self/oom_score_adj").write_text("500")


def test_timer_of_c() -> None:
    assert LIBC.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0


def test_privileges() -> None:
    prctl(38, 1)


def test_handler_of_c() -> None:
    LIBC.signal(signal.SIGUSR2, ctypes.c_void_p(1))


def test_handler_of_python() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def test_huge_pages() -> None:
    prctl(41, 1)


@pytest.fixture(scope="module")
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("number", [1, 2])
def test_fixture_of_the_module(number: int) -> None:
    assert tracemalloc.is_tracing(), number


@pytest.fixture(scope="module")
def registered() -> Iterator[None]:
    faulthandler.register(signal.SIGUSR2)
    prctl(29, 60_000)
    yield
    faulthandler.unregister(signal.SIGUSR2)
    prctl(29, 0)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("number", [1, 2])
def test_fixture_with_a_handler_of_c(number: int) -> None:
    assert LIBC.prctl(30, 0, 0, 0, 0) == 60_000, number


def test_after() -> None: ...

"""Cases that harm the process they run in."""

import os
import resource
import signal
import sys
import tempfile
import time

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_memory_limit": "failed: MemoryError",
    "test_no_memory_for_the_report": "contaminated: left too little memory to send its report",
    "test_between": "passed",
    "test_limit_left_behind": "contaminated: did not restore RLIMIT_NOFILE (now [",
    "test_closes_above_2": "contaminated: closed or replaced a descriptor of the harness",
    "test_closes_standard_streams": "contaminated: did not restore descriptor 0, which belongs to the process",
    "test_closes_all": "contaminated: closed or replaced a descriptor of the harness",
    "test_prints_afterwards": "passed",
    "test_replaces_all": "contaminated: closed or replaced a descriptor of the harness",
    "test_writes_garbage": "contaminated: wrote to a descriptor of the harness",
    "test_writes_half_a_line": "contaminated: wrote to a descriptor of the harness",
    "test_changes_folder": "contaminated: did not restore the working folder (now '",
    "test_changes_folder_and_back": "passed",
    "test_removes_folder": "contaminated: did not restore the working folder (now 'a removed folder'",
    "test_fails_in_another_folder": "failed: assert",
    "test_leaves_an_alarm": "contaminated",
    "test_when_the_alarm_rings": "passed",
    "test_closes_stdout": "contaminated",
    "test_prints_after_that": "passed",
    "test_after": "passed",
}

HOARD: list[bytes] = []


def test_before() -> None:
    assert os.path.exists("pytest.ini")


def limit_memory(room: int) -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.getrlimit(resource.RLIMIT_AS)[1]))


def test_memory_limit() -> None:
    limit_memory(64 << 20)
    bytearray(1 << 30)


def takes_memory(_: object) -> bool:
    return bool(bytes(32 << 20))


def test_no_memory_for_the_report() -> None:
    # pytest calls this while it builds the report. Otherwise the result would depend on the memory that is free then.
    __tracebackhide__ = takes_memory
    limit_memory(64 << 20)
    while True:
        HOARD.append(bytes(1 << 20))


def test_between() -> None:
    assert os.path.exists("pytest.ini")


def test_limit_left_behind() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def test_closes_above_2() -> None:
    os.closerange(3, 4096)


def test_closes_standard_streams() -> None:
    os.closerange(0, 3)


def test_closes_all() -> None:
    os.closerange(0, 4096)


def test_prints_afterwards() -> None:
    print("to standard output")
    print("to standard error", file=sys.stderr)


def open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def test_replaces_all() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in open_descriptors():
        if number != null:
            os.dup2(null, number)


def write_everywhere(data: bytes) -> None:
    for number in open_descriptors():
        try:
            os.write(number, data)
        except OSError:
            continue  # closed since the listing, or not writable


def test_writes_garbage() -> None:
    write_everywhere(b"\x00garbage\xff\n{}\n")


def test_writes_half_a_line() -> None:
    write_everywhere(b'{"op": ')


def test_changes_folder() -> None:
    os.chdir("/")


def test_changes_folder_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")


def test_removes_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def test_fails_in_another_folder() -> None:
    os.chdir("/")
    assert os.path.exists("pytest.ini")


def test_leaves_an_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def test_when_the_alarm_rings() -> None:
    time.sleep(0.2)  # to be running when the alarm rings, if it rings in this process


def test_closes_stdout() -> None:
    sys.stdout.close()


def test_prints_after_that() -> None:
    print("to standard output")


def test_after() -> None:
    assert os.path.exists("pytest.ini")

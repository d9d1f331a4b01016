"""Attributes of this process that Python's standard library does not provide: those of prctl(2) and similar calls.

Every getter makes at most three system calls, so that all of them may run after each case. All names are bound at
import, since a case may replace them later. Each function raises OSError if the kernel refuses, and AttributeError if
the C library has no such call.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_prctl_call, _get_errno = _libc.prctl, ctypes.get_errno
_int, _ulong, _byref = ctypes.c_int, ctypes.c_ulong, ctypes.byref
_open, _read, _close, _text_of = os.open, os.read, os.close, os.strerror
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC

# Options of <linux/prctl.h>.
_SET_PDEATHSIG, _GET_PDEATHSIG = 1, 2
_GET_DUMPABLE, _SET_DUMPABLE = 3, 4
_GET_TSC, _SET_TSC = 25, 26
_GET_SECUREBITS = 27
_SET_TIMERSLACK, _GET_TIMERSLACK = 29, 30
_MCE_KILL_GET = 34
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37
_MEMORY_ERROR_POLICIES = ("killed late", "killed early", "as the machine is set")
_TSC_MODES = {1: "readable", 2: "a signal"}
#: The argument of personality(2) that changes nothing.
_ASK = _ulong(0xFFFFFFFF)
_STATUS_SIZE = 1 << 14


def _prctl(option: int, argument: object = 0) -> int:
    result: int = _prctl_call(option, argument, 0, 0, 0)
    if result == -1:
        code = _get_errno()
        raise OSError(code, f"prctl({option}): {_text_of(code)}")
    return result


def _prctl_value(option: int) -> int:
    value = _int()
    _prctl(option, _byref(value))
    return value.value


def process_status() -> bytes:
    """Return the text of /proc/self/status."""
    return _file("/proc/self/status", _STATUS_SIZE)


def oom_score_adjustment() -> int:
    """Return the adjustment of the score by which the kernel chooses a process to kill when memory is short."""
    return int(_file("/proc/self/oom_score_adj", 16))


def posix_timers() -> int:
    """Return the number of timers that C code made with timer_create(2)."""
    return _file("/proc/self/timers", _STATUS_SIZE).count(b"notify: ")


def _file(path: str, size: int) -> bytes:
    descriptor = _open(path, _READ_ONLY)
    try:
        return _read(descriptor, size)
    finally:
        _close(descriptor)


def parent_death_signal() -> int:
    """Return the signal that this process gets when its parent ends; 0 for none."""
    return _prctl_value(_GET_PDEATHSIG)


def set_parent_death_signal(number: int) -> None:
    """Choose the signal that this process gets when its parent ends; 0 for none."""
    _prctl(_SET_PDEATHSIG, _ulong(number))


def adopts_orphans() -> bool:
    """Return whether this process becomes the parent of descendants whose own parent ends."""
    return _prctl_value(_GET_CHILD_SUBREAPER) != 0


def set_adopts_orphans(on: bool) -> None:
    """Choose whether this process becomes the parent of descendants whose own parent ends."""
    _prctl(_SET_CHILD_SUBREAPER, _ulong(on))


def is_dumpable() -> bool:
    """Return whether the process can dump core. If not, only root may open its files in /proc."""
    return _prctl(_GET_DUMPABLE) == 1


def set_dumpable(on: bool) -> None:
    """Choose whether the process can dump core."""
    _prctl(_SET_DUMPABLE, _ulong(on))


def timestamp_counter() -> str:
    """Return what a read of the processor's time stamp counter does. x86 only."""
    mode = _prctl_value(_GET_TSC)
    return _TSC_MODES.get(mode, str(mode))


def set_timestamp_counter(mode: str) -> None:
    """Choose what a read of the processor's time stamp counter does, by a word of `timestamp_counter`."""
    _prctl(_SET_TSC, _ulong(next(number for number, word in _TSC_MODES.items() if word == mode)))


def securebits() -> int:
    """Return the flags of capabilities(7) about the rights of root."""
    return _prctl(_GET_SECUREBITS)


def timer_slack() -> int:
    """Return by how many nanoseconds the kernel may delay the end of a wait of this thread."""
    return _prctl(_GET_TIMERSLACK)


def set_timer_slack(nanoseconds: int) -> None:
    """Choose by how many nanoseconds the kernel may delay the end of a wait of this thread."""
    _prctl(_SET_TIMERSLACK, _ulong(nanoseconds))


def memory_error_policy() -> str:
    """Return when the kernel kills this process for a memory error of the hardware."""
    return _MEMORY_ERROR_POLICIES[_prctl(_MCE_KILL_GET)]


def personality() -> str:
    """Return the execution domain and its flags, such as the one against random addresses, in hexadecimal."""
    result = _libc.personality(_ASK)
    if result == -1:
        code = _get_errno()
        raise OSError(code, f"personality: {_text_of(code)}")
    return f"{result:#x}"


def floating_point_traps() -> int:
    """Return the floating-point exceptions that raise SIGFPE in this thread, in the bits of <fenv.h>. glibc only."""
    traps: int = _libc.fegetexcept()
    return traps


def set_floating_point_traps(traps: int) -> None:
    """Choose the floating-point exceptions that raise SIGFPE in this thread."""
    _libc.fedisableexcept(~traps)
    _libc.feenableexcept(traps)

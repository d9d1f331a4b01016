"""Linux calls that Python's standard library does not provide. Effects only; no policy."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

# Bound at import, because a case may have replaced these names when its process is checked, and when it ends.
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


# Attributes of this process: those of prctl(2) and similar calls. Every getter makes at most three system calls, so
# that all of them may run after each case. Each function raises OSError if the kernel refuses, and AttributeError if
# the C library has no such call.


def _prctl(option: int, argument: object = 0) -> int:
    result: int = _prctl_call(option, argument, 0, 0, 0)
    if result == -1:
        raise _error(f"prctl({option})")
    return result


def _error(call: str) -> OSError:
    code = _get_errno()
    return OSError(code, f"{call}: {_text_of(code)}")


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
        raise _error("personality")
    return f"{result:#x}"


def floating_point_traps() -> int:
    """Return the floating-point exceptions that raise SIGFPE in this thread, in the bits of <fenv.h>. glibc only."""
    traps: int = _libc.fegetexcept()
    return traps


def set_floating_point_traps(traps: int) -> None:
    """Choose the floating-point exceptions that raise SIGFPE in this thread."""
    _libc.fedisableexcept(~traps)
    _libc.feenableexcept(traps)


_libc_exit, _python_exit = _libc.exit, ctypes.pythonapi.Py_Exit
_fflush, _timer_settime = _libc.fflush, _libc.timer_settime

_IOLBF = 1
#: Flags of a task in <linux/sched.h>: it is ending; it was forked and has not called exec.
_PF_EXITING = 0x4
_PF_FORKNOEXEC = 0x40
#: The inode of the pid namespace that a machine starts with: PROC_PID_INIT_INO in <linux/proc_ns.h>.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SharedMapping:
    """The beginning of a file, mapped into this process. Unlike Python's own mmap it keeps no descriptor."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Raise OSError."""
        flags = mmap.PROT_READ | mmap.PROT_WRITE
        self._address = _libc.mmap(None, size, flags, mmap.MAP_SHARED, descriptor, 0)
        if self._address == ctypes.c_void_p(-1).value:
            raise _error(f"mmap of {size} bytes")
        self._size = size
        self.bytes = memoryview((ctypes.c_char * size).from_address(self._address)).cast("B")

    def close(self) -> None:
        """Unmap the memory."""
        self.bytes.release()
        _libc.munmap(self._address, self._size)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Make the kernel kill this process when the process `parent` ends. Exit immediately if it has ended already.

    `number`: the signal, also if this process executes another program. The kernel sends it when the *thread* that
    forked this process ends. Therefore a parent must fork from its main thread.
    """
    set_parent_death_signal(number)
    if os.getppid() != parent:
        os._exit(1)


def wait_for_dying_parent() -> None:
    """If the parent of this process is ending, wait until the kernel kills this process too. Otherwise return.

    The descriptors of a process are closed a moment before its children are killed.
    """
    if parent_death_signal() == signal.SIGKILL:
        while is_process_ending(os.getppid()):
            time.sleep(0.01)


def fields_of_stat(text: str) -> list[str]:
    """Return the fields of proc_pid_stat(5) after the name, from the state on. The name may have any characters."""
    return text.rpartition(")")[2].split()


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="backslashreplace") as file:
            return fields_of_stat(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_process_ending(pid: int) -> bool:
    """Return whether a process has begun to end, or is a zombie. False if there is none."""
    fields = _stat(pid)
    return fields is not None and bool(int(fields[6]) & _PF_EXITING)


def is_stopped_unseen(pid: int) -> bool:
    """Return whether a process is stopped by a signal and no shell shows that. False if there is none.

    A shell takes its terminal back when it sees that a job has stopped.
    """
    fields = _stat(pid)
    return fields is not None and is_stopped_line(fields)


def is_stopped_line(fields: Sequence[str]) -> bool:
    """Return whether these fields are of such a process."""
    state, _, group, _, terminal, foreground = fields[:6]
    return state == "T" and (terminal == "0" or foreground == group)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that no leftover process escapes."""
    set_adopts_orphans(True)


def has_children() -> bool:
    """Return whether this process has any child, running or unreaped. One system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def child_pids() -> list[int]:
    """Return the process ids of this process's running or unreaped children, of all threads."""
    pids: list[int] = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                pids += [int(pid) for pid in file.read().split()]
        except FileNotFoundError:
            continue  # the thread has ended since
    return pids


class ProcessDescription(NamedTuple):
    """A process at one moment."""

    #: The letter of proc_pid_stat(5). "Z" and "X": it has ended.
    state: str
    #: Its command line, or its name if it has none, as during exec and once a process that ends has freed its memory.
    command: str
    #: Whether it has not called exec since it was forked. A fork that never calls exec is starting while it lives.
    starting: bool = False
    #: Whether it is between its last instruction and its end, which takes long if it has much memory, or if the driver
    #: of a GPU hangs.
    ending: bool = False


#: In place of the description of a process that is gone.
GONE = ProcessDescription("X", "")


def describe_process(pid: int) -> ProcessDescription | None:
    """Return the description of a process, or None if it is gone."""
    try:
        # In this order: a process that has no command line because it ends is known to end.
        with open(f"/proc/{pid}/cmdline", "rb") as raw:
            words = raw.read()
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="backslashreplace") as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = stat.partition("(")[2].rpartition(")")[0]
    fields = fields_of_stat(stat)
    state, flags = fields[0], int(fields[6])
    command = words.replace(b"\0", b" ").decode("utf-8", "backslashreplace").strip() or name
    if state in "ZX":
        return ProcessDescription(state, command)
    if flags & _PF_EXITING:
        return ProcessDescription(state, command, ending=True)
    # During exec, the flag is cleared for a moment while the command line is still empty.
    return ProcessDescription(state, command, starting=bool(flags & _PF_FORKNOEXEC) or not words)


def ancestor_pids(pid: int) -> list[int]:
    """Return the process ids of a process and of all its ancestors, nearest first; an empty list if it is gone."""
    line: list[int] = []
    while pid and (fields := _stat(pid)) is not None:
        line.append(pid)
        pid = int(fields[1])
    return line


def child_state(pid: int, parent: int) -> str:
    """Return the state of a process as /proc shows it, one letter. Empty if the process is no child of `parent`.

    "T" and "t": stopped by a signal or a debugger. "Z": ended.
    """
    fields = _stat(pid)
    return fields[0] if fields is not None and int(fields[1]) == parent else ""


def kernel_wait_channel(pid: int) -> str:
    """Return the kernel function in which a process sleeps; an empty string if it is unknown or does not sleep."""
    try:
        with open(f"/proc/{pid}/wchan") as file:
            name = file.read().strip()
    except OSError:
        return ""
    return "" if name == "0" else name


def process_start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since the boot; None if there is no such process."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def boot_id() -> str:
    """Return the kernel's random id of this boot; an empty string if the kernel has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def pid_namespace() -> str:
    """Return the name of this process's pid namespace."""
    return os.readlink("/proc/self/ns/pid")


def sees_all_processes() -> bool:
    """Return whether process ids here are those of the machine, which drivers report.

    In a container they usually are not.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except FileNotFoundError:
        return False


def has_ended_before(pid: int, deadline: float, pause: float) -> bool:
    """Return whether a child has ended before `deadline`, on the clock of `time.monotonic`. Wait for that.

    The child is not reaped, so its pid is not reused. `pause`: seconds between two looks.
    """
    try:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
    except ChildProcessError:
        return True  # if SIGCHLD is ignored, the kernel reaps the child itself
    return True


def is_proc_mounted() -> bool:
    """Return whether /proc is mounted and contains this process."""
    return os.path.exists(f"/proc/{os.getpid()}/stat")


def forget_dead_terminals() -> None:
    """Redirect descriptors of closed terminals to /dev/null. Otherwise each write to them would fail."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        try:
            terminal = os.readlink(f"/proc/self/fd/{name}").startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if terminal and _is_hung_up(int(name)):
            os.dup2(null, int(name), inheritable=os.get_inheritable(int(name)))
    os.close(null)


def _is_hung_up(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def line_buffer_c_stdio() -> None:
    """Make C's stdout line-buffered. With a file, C would buffer 4 KiB, and lose them in a crash."""
    stdout = ctypes.c_void_p.in_dll(_libc, "stdout")
    _libc.setvbuf(stdout, None, _IOLBF, 0)


def flush_c_stdio() -> None:
    """Flush every C output stream."""
    _fflush(None)


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class _TimerTimes(ctypes.Structure):
    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


_NEVER = _TimerTimes(0, 0, 0, 0)


class PosixTimer:
    """A POSIX timer of this process that raises a signal once, on the monotonic clock.

    It replaces `signal.setitimer`: a process has only one such timer, and cases and other plugins use it.
    """

    def __init__(self, number: int) -> None:
        """`number` is the signal. Raise OSError."""
        self._timer = ctypes.c_void_p()
        event = _SignalEvent(signal=number, notify=0)  # SIGEV_SIGNAL
        self._check(_libc.timer_create(time.CLOCK_MONOTONIC, _byref(event), _byref(self._timer)))

    def start(self, seconds: float) -> None:
        """Raise the signal in `seconds` (above 0). This replaces an earlier start."""
        whole = int(seconds)
        self._set(_TimerTimes(0, 0, whole, max(1, int((seconds - whole) * 1e9))))

    def stop(self) -> None:
        """Disarm the timer."""
        self._set(_NEVER)

    def _set(self, times: _TimerTimes) -> None:
        self._check(_timer_settime(self._timer, 0, _byref(times), None))

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            raise _error("timer")


_HUGE = 2 << 20
_MADV_COLLAPSE = 25


def collapse_memory() -> int:
    """Have the kernel move this process's private memory into huge pages, as far as possible.

    Return the number of huge pages.

    A fork copies one table entry per page, and the exit of the child frees each. With 150 MiB in small pages, both make
    up most of the cost of a process. This requires Linux 6.1; older kernels collapse nothing. Copy-on-write still
    copies small pages.
    """
    done = 0
    with open("/proc/self/maps") as file:
        fields = [line.split() for line in file]
    for where, mode, _, _, inode, *name in fields:
        if mode != "rw-p" or inode != "0" or (name and name[0] != "[heap]"):
            continue
        start, end = (int(bound, 16) for bound in where.split("-"))
        for address in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            done += _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE) == 0
    return done


def exit_before_earlier_handlers() -> bool:
    """Make processes forked from now on skip the C exit handlers that are registered now.

    Exit handlers run in reverse order of registration. Therefore handlers that a case registers later, for example
    those of a driver, still run. The destructors of libraries loaded before the fork do not run: they are the same in
    every process, and those of torch take 0.1 s per process. Return False if the C library has no ``on_exit`` (glibc
    has).
    """
    try:
        return bool(_libc.on_exit(_libc._exit, None) == 0)
    except AttributeError:
        return False


def c_exit(status: int) -> None:
    """Call C's ``exit``: C exit handlers run, the interpreter is not finalised. Does not return."""
    _libc_exit(status)


def interpreter_exit(status: int) -> None:
    """Finalise the interpreter and exit, from any depth of Python frames (CPython's ``Py_Exit``). Does not return."""
    _python_exit(status)


class _Timex(ctypes.Structure):
    """The head of ``struct timex`` on 64-bit machines; the rest is only there for the kernel to write to."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("most_error", ctypes.c_long),
        ("error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


_STA_UNSYNC = 0x40


def clock_error() -> tuple[bool, int]:
    """Return whether the kernel considers its clock synchronised, and its estimate of the error in microseconds.

    Raise OSError.
    """
    state = _Timex()
    if _libc.adjtimex(_byref(state)) < 0:
        raise _error("adjtimex")
    return not state.status & _STA_UNSYNC, int(state.error)

"""The Linux calls without a Python function; each test shows the intended effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from harness.core import linux

_NUMBER = signal.SIGRTMAX - 2


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_a_timer_raises_its_signal_once_and_not_after_stop() -> None:
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {_NUMBER})
    try:
        timer = linux.PosixTimer(_NUMBER)
        timer.start(0.01)
        assert signal.sigtimedwait({_NUMBER}, 30) is not None
        assert signal.sigtimedwait({_NUMBER}, 0.1) is None
        timer.start(0.1)
        timer.stop()
        assert signal.sigtimedwait({_NUMBER}, 0.3) is None
        timer.start(60)
        timer.start(0.01)
        assert signal.sigtimedwait({_NUMBER}, 30) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def test_ancestry_of_a_child_of_a_child_and_of_one_that_is_gone() -> None:
    code = (
        "import os; from harness.core import linux; print(os.getpid(), os.getppid(), *linux.ancestor_pids(os.getpid()))"
    )
    done = _run(
        f"import os, subprocess, sys; print(os.getpid(), flush=True); subprocess.run([sys.executable, '-c', {code!r}])"
    )
    middle, reported = done.stdout.splitlines()
    child, parent, *line = map(int, reported.split())
    assert line[:3] == [child, parent, os.getpid()]
    assert parent == int(middle)
    assert linux.ancestor_pids(child) == []


def test_exit_handlers_registered_before_the_barrier_do_not_run() -> None:
    done = _run(
        "import ctypes, os\n"
        "from harness.core import linux\n"
        "libc = ctypes.CDLL(None)\n"
        "kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)\n"
        "early = kind(lambda status, _: os.write(1, b'early ') and None)\n"
        "late = kind(lambda status, _: os.write(1, b'late ') and None)\n"
        "libc.on_exit(early, None)\n"
        "assert linux.exit_before_earlier_handlers()\n"
        "libc.on_exit(late, None)\n"
        "linux.c_exit(3)\n"
    )
    assert (done.stdout, done.returncode) == ("late ", 3)


def test_the_interpreter_is_finalised_from_any_depth() -> None:
    done = _run(
        "import atexit\n"
        "from harness.core import linux\n"
        "atexit.register(print, 'callback')\n"
        "def deep(n): return deep(n - 1) if n else linux.interpreter_exit(4)\n"
        "deep(50)\n"
    )
    assert (done.stdout, done.returncode) == ("callback\n", 4), done.stderr


def test_collapsed_memory_holds_what_it_held() -> None:
    done = _run(
        "import hashlib\n"
        "from harness.core import linux\n"
        "data = [bytes([n % 256]) * 100_000 for n in range(300)]\n"
        "digest = lambda: hashlib.sha256(b''.join(data)).hexdigest()\n"
        "before = digest()\n"
        "assert linux.collapse_memory() >= 0\n"
        "assert digest() == before\n"
        "print('same')\n"
    )
    assert done.stdout == "same\n", done.stderr


def test_a_process_ends_with_its_parent() -> None:
    """A grandchild that waits forever on the pipe ends with its parent, which closes the pipe."""
    done = _run(
        "import os, signal\n"
        "from harness.core import linux\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.close(reading)\n"
        "    parent = os.getpid()\n"
        "    ready, tell = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        linux.die_with_parent(parent)\n"
        "        os.write(tell, b'x')\n"
        "        signal.pause()\n"
        "    os.read(ready, 1)\n"
        "    os.kill(parent, signal.SIGKILL)\n"
        "os.close(writing)\n"
        "assert os.read(reading, 1) == b''\n"
        "print('ended')\n"
    )
    assert done.stdout == "ended\n", done.stderr


def test_a_zombie_is_ending_and_a_process_that_runs_is_not() -> None:
    assert not linux.is_process_ending(os.getpid())
    assert not linux.is_process_ending(1 << 22)
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert linux.is_process_ending(pid)
    os.waitpid(pid, 0)


def test_nothing_is_waited_for_while_the_parent_lives() -> None:
    done = _run(
        "import os\n"
        "from harness.core import linux\n"
        "linux.wait_for_dying_parent()\n"
        "print('no child of ours', flush=True)\n"
        "parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    linux.die_with_parent(parent)\n"
        "    linux.wait_for_dying_parent()\n"
        "    print('the parent lives', flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert done.stdout == "no child of ours\nthe parent lives\n", done.stderr


def test_a_parent_that_is_ending_is_waited_for() -> None:
    """The parent's main thread has ended, as during the parent's end, while another thread delays it."""
    done = _run(
        "import ctypes, os, select, signal, threading, warnings\n"
        "from harness.core import linux\n"
        "warnings.simplefilter('ignore')\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    parent = os.getpid()\n"
        "    def fork():\n"
        "        if os.fork() == 0:\n"
        "            linux.die_with_parent(parent)\n"
        "            while not linux.is_process_ending(parent):\n"
        "                pass\n"
        "            os.write(writing, b'expects ')\n"
        "            linux.wait_for_dying_parent()\n"
        "            os.write(writing, b'goes on')\n"
        "            os._exit(0)\n"
        "        signal.pause()\n"
        "    threading.Thread(target=fork).start()\n"
        "    ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"  # exit of one thread
        "os.close(writing)\n"
        "print(os.read(reading, 100).decode())\n"
        "print(select.select([reading], [], [], 1.0)[0])\n"
        "os.kill(int(open('/proc/self/task/%d/children' % os.getpid()).read().split()[0]), signal.SIGKILL)\n"
        "print(os.read(reading, 100))\n"
    )
    assert done.stdout == "expects \n[]\nb''\n", done.stderr


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    done = _run("from harness.core import linux; linux.die_with_parent(1 << 22); print('alive')")
    assert (done.stdout, done.returncode) == ("", 1)


def test_a_stopped_child_is_distinguished_from_one_that_runs_and_from_another_s() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        assert linux.child_state(child.pid, os.getpid()) in tuple("RSD")
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert linux.child_state(child.pid, os.getpid()) == "T"
        assert linux.child_state(child.pid, os.getppid()) == ""
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert linux.child_state(child.pid, os.getpid()) == "Z"
        child.wait()
    assert linux.child_state(child.pid, os.getpid()) == ""

"""Process state before and after a case."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from harness.checks.process import (
    ExecPatience,
    describe_leftover,
    describe_stuck,
    stuck_text,
    wait_for_exec,
)
from harness.core import linux


def test_only_living_strangers_are_findings() -> None:
    processes = {
        11: ("Z", "true"),
        12: ("S", "python -c from multiprocessing.resource_tracker import main"),
        13: None,
        14: ("R", "x" * 1000),
        15: ("S", "/usr/lib/python3/dist-packages/torch/bin/torch_shm_manager"),
        19: ("S", "python -B -c from joblib.externals.loky.backend.resource_tracker import main; main(5, False)"),
        18: ("S", "python -m joblib.externals.loky.backend.popen_loky_posix --process-name LokyProcess-1 --pipe 18"),
        16: ("S", "python -m harness.zygote 12"),
        17: ("S", "addr2line -C -f -e /lib/libtorch_cpu.so"),
    }
    texts = [describe_leftover(processes[pid], pid, "python -m harness.zygote 12") for pid in sorted(processes)]
    assert [text[:25] for text in texts if text is not None] == ["14 '" + "x" * 21, "16, a fork of the case"]
    assert all(text is None or len(text) < 300 for text in texts)


@pytest.mark.parametrize(
    ("state", "wait_channel", "end"),
    [
        ("D", "nv_wait", "state D, uninterruptible sleep in nv_wait"),
        ("t", "ptrace_stop", "state t, held by a debugger in ptrace_stop"),
        ("R", "", "state R, running"),
        ("?", "", "state ?, unknown"),
    ],
)
def test_a_process_that_cannot_be_killed_is_named(state: str, wait_channel: str, end: str) -> None:
    assert stuck_text(7, "sleep 9", state, wait_channel) == f"process 7 'sleep 9': {end}"


def test_a_real_process_is_named(child: subprocess.Popen[bytes]) -> None:
    assert describe_stuck(child.pid).startswith(f"process {child.pid} ")
    assert "input()" in describe_stuck(child.pid)
    assert ": state " in describe_stuck(child.pid)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    code = "print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # right after `exec` it has no command line yet
    yield process
    process.communicate(b"\n")


def test_a_real_child_is_found_and_described(child: subprocess.Popen[bytes]) -> None:
    assert linux.has_children()
    assert child.pid in linux.child_pids()
    described = linux.describe_process(child.pid)
    assert described is not None
    assert "input()" in described[1]


def test_a_process_that_is_gone_has_no_description() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert linux.describe_process(process.pid) is None


@pytest.mark.parametrize(
    ("looks", "patience", "left"),
    [
        ({}, 0, {}),
        ({7: [False]}, 0, {7: []}),
        ({7: [True, True, False]}, 2, {7: []}),
        # The patience is shared by all of them.
        ({7: [True, False], 8: [True, False, True], 9: [True, True]}, 2, {7: [], 8: [True], 9: [True]}),
        ({7: [True, True, True], 8: [False]}, 1, {7: [True], 8: []}),
    ],
)
def test_children_are_waited_for_while_they_start(
    looks: dict[int, list[bool]], patience: int, left: dict[int, list[bool]]
) -> None:
    pauses = iter([True] * patience)
    wait_for_exec(sorted(looks), lambda pid: looks[pid].pop(0), lambda: next(pauses, False))
    assert looks == left
    assert list(pauses) == []


def test_patience_lasts_for_its_seconds() -> None:
    assert ExecPatience(60)()
    assert not ExecPatience(0)()


def test_a_child_between_fork_and_exec_is_starting() -> None:
    """A pipe holds it there; another, which the exec closes, signals the end."""
    (go, let_go), (gone, closed_by_exec) = os.pipe(), os.pipe()
    stay, end = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(let_go)
        os.read(go, 1)
        os.set_inheritable(stay, True)
        os.close(end)
        os.execv("/bin/cat", ["cat", f"/proc/self/fd/{stay}"])
    os.close(closed_by_exec)
    commands = []

    def pause() -> bool:
        described = linux.describe_process(pid)
        commands.append(described and described[1])
        os.write(let_go, b"x")
        os.read(gone, 1)
        return True

    try:
        wait_for_exec([pid], linux.has_not_called_exec, pause)
        described = linux.describe_process(pid)
    finally:
        for descriptor in (go, let_go, gone, stay, end):
            os.close(descriptor)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        over = linux.has_not_called_exec(pid)
        os.waitpid(pid, 0)
    assert described is not None
    assert described[1].startswith("cat ")
    assert commands
    assert "cat " not in str(commands)
    assert (over, linux.has_not_called_exec(pid)) == (False, False)

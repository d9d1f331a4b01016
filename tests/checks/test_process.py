"""Process state before and after a case."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from harness.checks.process import Patience, describe_leftover, describe_settled, describe_stuck, stuck_text
from harness.core import linux
from harness.core.linux import ProcessDescription


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
    found = {pid: each and ProcessDescription(*each) for pid, each in processes.items()}
    texts = [describe_leftover(found[pid], pid, "python -m harness.zygote 12") for pid in sorted(found)]
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


_FORK = ProcessDescription("R", "python -m harness.zygote 12", starting=True)
_RUNS = ProcessDescription("S", "addr2line -C -f -e /lib/libtorch_cpu.so")
_ENDS = ProcessDescription("R", "addr2line", ending=True)


@pytest.mark.parametrize(
    ("looks", "patience", "found"),
    [
        ([_RUNS], 0, _RUNS),
        ([_FORK, _FORK, _RUNS], 2, _RUNS),
        ([_FORK, _FORK, _RUNS], 1, _FORK),
        ([_ENDS, None], 1, None),
        ([_ENDS, _ENDS], 1, _ENDS),
    ],
)
def test_a_child_is_waited_for_while_it_starts_or_ends(
    looks: list[ProcessDescription | None], patience: int, found: ProcessDescription | None
) -> None:
    seen, pauses = iter(looks), iter([True] * patience)
    assert describe_settled(7, lambda: next(pauses, False), lambda _pid: next(seen)) == found


def test_a_process_without_a_command_line_starts_or_ends() -> None:
    """A process that ends gives its memory back first, and has no command line from then on."""
    code = "kept = b'x' * (1 << 28); print(flush=True); input()"
    nameless: list[ProcessDescription] = []
    while not nameless:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        while (found := linux.describe_process(process.pid) or linux.GONE).state not in "ZX":
            nameless += [found] if "kept" not in found.command else []
        process.communicate()
    assert all(each.ending for each in nameless)


def test_patience_lasts_for_its_seconds() -> None:
    assert Patience(60)()
    assert not Patience(0)()


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
        commands.append((linux.describe_process(pid) or linux.GONE).command)
        os.write(let_go, b"x")
        os.read(gone, 1)
        return True

    try:
        described = describe_settled(pid, pause)
    finally:
        for descriptor in (go, let_go, gone, stay, end):
            os.close(descriptor)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        over = linux.describe_process(pid)
        os.waitpid(pid, 0)
    assert described is not None
    assert described.command.startswith("cat ")
    assert commands
    assert "cat " not in str(commands)
    assert over is not None
    assert (over.state, over.starting, over.ending) == ("Z", False, False)

"""The data collected on a failure. The programs are fakes of NVIDIA's: shell scripts with the same names."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from harness.configuration.context import RunContext
from harness.configuration.values import DIAGNOSTICS
from harness.core.outcome import Outcome
from harness.devices import kernel_log
from harness.scheduling.stop_request import StopListener, StopRequest, send_stop
from harness.supervisor import diagnostics
from harness.supervisor.diagnostics import Diagnostics, RedAttempt
from tests.supervisor.fakes import FakeJournal


class World:
    """A machine with fake programs, and a worker's diagnostics."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.temp = folder / "temp"
        self.temp.mkdir()
        self.files = folder / "files"
        self.kmsg = folder / "kmsg"
        self.kmsg.write_text("3,1,9000000000000,-;NVRM: Xid (PCI:0000:01:00): 31\n")
        self.core_pattern = folder / "core_pattern"
        self.core_pattern.write_text("|/bin/apport %p")
        monkeypatch.setenv("PATH", f"{self.programs}:{os.environ['PATH']}")
        monkeypatch.setattr(kernel_log.gpu_log_lines_since, "__defaults__", (self.kmsg,))
        monkeypatch.setattr(diagnostics, "CORE_PATTERN", self.core_pattern)
        self.stops = folder / "stop"
        self.stop = StopListener(self.stops, "gw0")

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)

    def worker(self, *items: str) -> Diagnostics:
        facts = SimpleNamespace(collect_on_failure=items, temp_dir=str(self.temp), invocation_dir=str(self.temp))
        return Diagnostics(cast(RunContext, facts), FakeJournal(), self.stop)

    def failure(self, **changes: Any) -> RedAttempt:
        failure = RedAttempt(Outcome.CRASHED, self.files / "gw0-e1", 3, True, 4242, -signal.SIGSEGV, (0.0, 0.0))
        return replace(failure, **changes)

    def kept(self) -> dict[str, str]:
        return {str(path.relative_to(self.files)): path.read_text() for path in self.files.rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.stop.close()


FOLDER = "gw0-e1/diagnostics/3"


def test_everything_is_collected(world: World) -> None:
    world.program("nvidia-smi", 'echo "asked $*"; echo trouble >&2')
    world.program("nvidia-bug-report.sh", 'echo working; echo "$1" > "$2"')
    (world.files / "gw0-e1").mkdir(parents=True)
    (world.files / "gw0-e1" / "allocator-snapshot-1.pickle").write_text("a snapshot")
    lines = world.worker(*DIAGNOSTICS).collect(world.failure())
    assert world.kept() == {
        f"{FOLDER}/nvidia-smi.txt": "asked -q\ntrouble\n",
        f"{FOLDER}/kernel-log.txt": "[9000000.000000] NVRM: Xid (PCI:0000:01:00): 31\n",
        f"{FOLDER}/allocator-snapshot-1.pickle": "a snapshot",
        f"{FOLDER}/nvidia-bug-report.log.gz": "--output-file\n",
    }
    assert lines == [
        f"diagnostics are in {world.files / FOLDER}: nvidia-smi.txt, kernel-log.txt, allocator-snapshot-1.pickle, "
        "nvidia-bug-report.log.gz",
        "no diagnostics of core file: the kernel gives it to /bin/apport (process 4242), see coredumpctl or that "
        "program's folder",
    ]


@pytest.mark.parametrize(
    ("script", "kept", "said"),
    [
        ("exit 0", {}, []),
        ("echo half; exit 9", {"nvidia-smi.txt": "half\n"}, ["nvidia-smi ended with exit status 9"]),
        ("kill -SEGV $$", {}, ["nvidia-smi ended with SIGSEGV"]),
        (None, {}, ["there is no program 'nvidia-smi'"]),
    ],
)
def test_a_program_that_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str | None, kept: dict[str, str], said: list[str]
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(world.programs))
    else:
        world.program("nvidia-smi", script)
    lines = world.worker("nvidia-smi").collect(world.failure())
    assert world.kept() == {f"{FOLDER}/{name}": text for name, text in kept.items()}
    assert [line for line in lines if line.startswith("no ")] == [
        f"no diagnostics of nvidia-smi: {text}" for text in said
    ]


def test_a_program_that_hangs_is_killed_with_what_it_started(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "SMI_LIMIT", 0.5)
    world.program("nvidia-smi", "sleep 1000 & echo $!; wait")
    lines = world.worker("nvidia-smi").collect(world.failure())
    assert lines[-1] == "no diagnostics of nvidia-smi: nvidia-smi did not end within 0.5 s"
    child = int(world.kept()[f"{FOLDER}/nvidia-smi.txt"])
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(child).wait(60)
    assert not psutil.pid_exists(child)


@pytest.mark.parametrize("stopping", [False, True], ids=["no gpu", "the run is being stopped"])
def test_no_program_is_started(world: World, *, stopping: bool) -> None:
    if stopping:
        send_stop(world.stops, StopRequest.after(0.0, "stopped by SIGTERM"))
    world.program("nvidia-smi", "echo started")
    world.program("nvidia-bug-report.sh", "echo started")
    lines = world.worker("nvidia-smi", "bug-report").collect(world.failure(hardware=stopping))
    assert world.kept() == {}
    wanted = [f"no diagnostics of {item}: the run is being stopped" for item in ("nvidia-smi", "bug-report")]
    assert lines == (wanted if stopping else [])


def test_a_run_has_one_bug_report(world: World) -> None:
    world.program("nvidia-bug-report.sh", 'echo report > "$2"')
    for number, worker in enumerate((world.worker("bug-report"), world.worker("bug-report"))):
        worker.collect(world.failure(number=number))
    assert list(world.kept()) == ["gw0-e1/diagnostics/0/nvidia-bug-report.log.gz"]


def test_a_bug_report_that_was_not_written_leaves_what_the_program_said(world: World) -> None:
    world.program("nvidia-bug-report.sh", "echo must be root; exit 1")
    lines = world.worker("bug-report").collect(world.failure())
    assert world.kept() == {f"{FOLDER}/nvidia-bug-report.txt": "must be root\n"}
    assert lines[-1] == "no diagnostics of bug-report: nvidia-bug-report.sh ended with exit status 1"


def test_a_worker_collects_so_often_and_no_more(world: World) -> None:
    """A dead driver makes thousands of cases red. Cases that broke their process have a separate limit."""
    worker = world.worker("kernel-log")
    failed = world.failure(outcome=Outcome.FAILED)
    for number in range(diagnostics.MOST):
        assert worker.collect(replace(failed, number=number))[0].startswith("diagnostics are in ")
    assert worker.collect(failed) == [
        f"no diagnostics: this worker has collected those of {diagnostics.MOST} cases, the limit"
    ]
    assert worker.collect(world.failure(number=99))[0].startswith("diagnostics are in ")


def test_a_core_file_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    world.core_pattern.write_text(f"{world.temp}/core.%p")
    (world.temp / "core.4242").touch()
    assert world.worker("core").collect(world.failure()) == [f"core file: {world.temp / 'core.4242'}"]
    (world.temp / "core.4242").unlink()
    lines = world.worker("core").collect(world.failure())
    assert lines == [f"no diagnostics of core file: there is none at {world.temp}/core.4242"]
    for status in (0, 1, -signal.SIGKILL, None):
        assert world.worker("core").collect(world.failure(exit_status=status)) == []


def test_what_cannot_be_read_or_written_is_said(world: World) -> None:
    world.kmsg.unlink()
    assert world.worker("kernel-log").collect(world.failure()) == [
        "no diagnostics of kernel-log: No such file or directory"
    ]
    world.kmsg.write_text("3,1,9000000000000,-;NVRM: x\n")
    world.files.write_text("no folder")
    assert world.worker("kernel-log").collect(world.failure()) == ["no diagnostics of kernel-log: Not a directory"]

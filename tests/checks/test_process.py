"""Process state before and after a case."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.checks.process import ProcessState, capture, compare, new_children
from harness.isolation import linux
from harness.outcome import Outcome

_STATE = ProcessState(folder="/a", limits={"RLIMIT_AS": (1, 2)}, descriptors={0: (1, 1), 3: (1, 2)})


@pytest.mark.parametrize(
    ("after", "texts"),
    [
        (_STATE, []),
        (replace(_STATE, folder="/b"), ["left the working folder at '/b' (was '/a')"]),
        (replace(_STATE, folder=None), ["left the working folder at 'a removed folder' (was '/a')"]),
        (replace(_STATE, limits={"RLIMIT_AS": (0, 2)}), ["left RLIMIT_AS at (0, 2) (was (1, 2))"]),
        (replace(_STATE, alarm=True), ["left an alarm (SIGALRM) to come"]),
        (replace(_STATE, descriptors={0: None, 3: (1, 2)}), ["closed descriptor 0, which belongs to the process"]),
        (replace(_STATE, descriptors={0: (1, 1), 3: (9, 9)}), ["replaced descriptor 3, which belongs to the process"]),
    ],
)
def test_compare(after: ProcessState, texts: list[str]) -> None:
    problems = compare(_STATE, after)
    assert [problem.text for problem in problems] == texts
    assert all(problem.outcome is Outcome.CONTAMINATED for problem in problems)


def test_a_real_change_of_each_kind_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    before = capture([descriptor])
    assert compare(before, capture([descriptor])) == []
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else min(4096, hard) if hard >= 0 else 4096, hard))
    try:
        os.close(descriptor)
        assert len(compare(before, capture([descriptor]))) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_only_new_living_strangers_are_findings() -> None:
    processes = {
        10: ("S", "sleep 1000"),
        11: ("Z", "true"),
        12: ("S", "python -c from multiprocessing.resource_tracker import main"),
        13: None,
        14: ("R", "x" * 1000),
    }
    problems = new_children([10], processes, processes.__getitem__)
    assert [problem.text[:40] for problem in problems] == ["left a child process running: 14 " + "'" + "x" * 6]
    assert problems[0].outcome is Outcome.LEAKED
    assert len(problems[0].text) < 300


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


def test_a_real_child_is_found_and_described(child: subprocess.Popen[bytes]) -> None:
    assert linux.has_children()
    assert child.pid in linux.children()
    described = linux.describe_process(child.pid)
    assert described is not None
    assert "input()" in described[1]


def test_a_process_that_is_gone_has_no_description() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert linux.describe_process(process.pid) is None

"""Order dependence: the cases that shared a process, from a journal. The acceptance tests cover the trials."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.journal.reader import JournalContents
from harness.tools.order import BisectError, ProcessHistory, inherited_environment, process_history_of
from tests.reporting import build

A, B, C = "s/test_a.py::a", "s/test_a.py::b[x y]", "s/test_a.py::c"
ARGV = ["pytest", "suites", "-p", "harness.plugin", "-pno:cacheprovider", "-c", "my.ini", "-n2", "--profile=x"]
ROOT_OPTIONS = ["--rootdir", "../elsewhere", "-oxfail_strict=true", "-W", "error", "--import-mode=importlib", "-x"]


def contents(*lines: build.Line) -> JournalContents:
    return build.contents(build.run(argv=ARGV), *lines)


def test_the_company_is_what_the_process_had_run_before() -> None:
    found = process_history_of(
        contents(
            build.start(A),
            build.start("s::elsewhere", executor="gw1-1"),
            build.finish(A),
            build.start(B),
            build.finish(B),
            build.start(C),
            build.finish(C, Outcome.FAILED),
            build.start("s::later"),
        ),
        C,
    )
    options = ("-p", "harness.plugin", "-c", "my.ini")
    assert found == ProcessHistory(C, (A, B), Outcome.FAILED, 7, "/here", options, {})
    line = "pytest s/test_a.py::a 's/test_a.py::b[x y]' s/test_a.py::c --isolation=batch -n0 --seed=7"
    assert found.command(found.earlier) == f"{line} -p harness.plugin -c my.ini"


def test_the_devices_are_those_it_had() -> None:
    gpus = ["GPU-a", "GPU-b"]
    found = process_history_of(contents(build.start(C), build.finish(C, Outcome.FAILED, devices=gpus)), C)
    assert found.masks == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert found.command([]).startswith("CUDA_VISIBLE_DEVICES=GPU-a,GPU-b pytest ")


def test_a_nested_run_gets_its_options_from_its_command_line_only() -> None:
    environ = {"HARNESS_INJECT": "slow", "PYTEST_ADDOPTS": "-x", "HARNESS_CACHE_DIR": "/cache", "PATH": "/bin"}
    assert inherited_environment(environ) == {"HARNESS_CACHE_DIR": "/cache", "PATH": "/bin"}


def test_software_devices_and_their_faults_are_those_it_had() -> None:
    run = build.run(settings={"device": "soft", "inject": "slow; event_early:0.5,seed=3"})
    finish = build.finish(C, Outcome.FAILED, devices=["SOFT-1"])
    journal = build.contents(run, build.start(A), build.finish(A), build.start(C), finish)
    found = process_history_of(journal, C)
    command = found.command([A])
    assert command.startswith("SOFT_VISIBLE_DEVICES=SOFT-1 pytest ")
    assert command.endswith("--device=soft '--inject=slow; event_early:0.5,seed=3'")


def test_what_changes_the_collection_is_kept() -> None:
    finish = build.finish(C, Outcome.FAILED)
    run = build.run(argv=["pytest", *ROOT_OPTIONS, "--", "-c", "a_path"])
    journal = build.contents(run, build.start(A), build.finish(A), build.start(C), finish)
    found = process_history_of(journal, C)
    rootdir = f"--rootdir={found.rootdir}"
    assert found.options == (rootdir, "-o", "xfail_strict=true", "-W", "error", "--import-mode=importlib")


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"start": "cold", "under": "compiled_autograd"}, ["--start=cold", "--under=compiled_autograd"]),
        ({"start": "auto", "under": None}, []),
        ({}, []),
    ],
)
def test_the_cases_run_in_the_way_they_did(settings: dict[str, Any], kept: list[str]) -> None:
    finish = build.finish(C, Outcome.FAILED)
    journal = build.contents(build.run(settings=settings), build.start(A), build.finish(A), build.start(C), finish)
    found = process_history_of(journal, C)
    assert [word for word in found.command([A]).split() if word.startswith(("--start", "--under"))] == kept


def test_a_failure_in_a_shared_process_counts_even_if_the_case_passed_alone() -> None:
    lines = [build.start(A), build.finish(A), *build.broke_and(C, Outcome.CRASHED, Outcome.PASSED)]
    assert process_history_of(contents(*lines), C).earlier == (A,)
    assert process_history_of(contents(*lines), C).outcome is Outcome.CRASHED


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "did not run in 'run': give its whole id"),
        ([build.start(C), build.finish(C)], "did not go wrong in 'run'"),
        ([build.start(C), build.finish(C, Outcome.LOST)], "did not go wrong"),
        (
            [build.start(C, alone=True), build.finish(C, Outcome.FAILED, alone=True, reproduce="pytest c")],
            "in its own process, so it needs no other case; reproduce: pytest c",
        ),
    ],
)
def test_nothing_to_bisect(lines: list[build.Line], error: str) -> None:
    with pytest.raises(BisectError) as caught:
        process_history_of(contents(*lines), C)
    assert error in str(caught.value)

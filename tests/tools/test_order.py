"""Order dependence: the cases that shared a process, from a journal. The acceptance tests cover the trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.journal.reader import JournalContents
from harness.tools.order import BisectError, ProcessHistory, inherited_environment, process_history_of
from tests.reporting import build

A, B, C = "s/test_a.py::a", "s/test_a.py::b[x y]", "s/test_a.py::c"
ARGV = ["pytest", "suites", "-p", "harness.plugin", "-pno:cacheprovider", "-c", "my.ini", "-n2", "--profile=x"]
ROOT_OPTIONS = ["--rootdir", "../elsewhere", "-oxfail_strict=true", "-W", "error", "--import-mode=importlib", "-x"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root folder of suites, beside and around files that do not belong to them."""
    root = tmp_path / "root"
    for name in ("root/s/test_a.py", "root/s/test_b.py", "other/test_evil.py", "root/results/r1/files/test_evil.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (root / "results" / "r1" / "journal.ndjson").touch()
    (root / "out").symlink_to(tmp_path / "other")
    (root / "link").symlink_to(root / "results" / "r1" / "files")
    return root


def contents(*lines: build.Line) -> JournalContents:
    return build.contents(build.run(argv=ARGV), *lines)


def test_the_company_is_what_the_process_had_run_before(root: Path) -> None:
    found = process_history_of(
        contents(
            build.start(A),
            build.start("s/test_b.py::elsewhere", executor="gw1-1"),
            build.finish(A),
            build.start(B),
            build.finish(B),
            build.start(C),
            build.finish(C, Outcome.FAILED),
            build.start("s/test_b.py::later"),
        ),
        C,
        root,
        ["-p", "mine"],
    )
    left = ("-p", "harness.plugin", "-c", "my.ini")
    assert found == ProcessHistory(C, (A, B), Outcome.FAILED, 7, str(root), ("-p", "mine"), {}, left)
    line = "pytest s/test_a.py::a 's/test_a.py::b[x y]' s/test_a.py::c --isolation=batch -n0 --seed=7"
    assert found.command(found.earlier) == f"{line} -p mine"


def test_the_devices_are_those_it_had(root: Path) -> None:
    gpus = ["GPU-a", "GPU-b"]
    found = process_history_of(contents(build.start(C), build.finish(C, Outcome.FAILED, devices=gpus)), C, root)
    assert found.masks == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert found.command([]).startswith("CUDA_VISIBLE_DEVICES=GPU-a,GPU-b pytest ")


def test_a_nested_run_gets_its_options_from_its_command_line_only() -> None:
    environ = {"HARNESS_INJECT": "slow", "PYTEST_ADDOPTS": "-x", "HARNESS_CACHE_DIR": "/cache", "PATH": "/bin"}
    assert inherited_environment(environ) == {"HARNESS_CACHE_DIR": "/cache", "PATH": "/bin"}


def test_software_devices_and_their_faults_are_those_it_had(root: Path) -> None:
    run = build.run(settings={"device": "soft", "inject": "slow; event_early:0.5,seed=3"})
    finish = build.finish(C, Outcome.FAILED, devices=["SOFT-1"])
    journal = build.contents(run, build.start(A), build.finish(A), build.start(C), finish)
    found = process_history_of(journal, C, root)
    command = found.command([A])
    assert command.startswith("SOFT_VISIBLE_DEVICES=SOFT-1 pytest ")
    assert command.endswith("--device=soft '--inject=slow; event_early:0.5,seed=3'")


def test_what_can_load_code_is_named_and_not_taken(root: Path) -> None:
    finish = build.finish(C, Outcome.FAILED)
    run = build.run(argv=["pytest", *ROOT_OPTIONS, "--", "-c", "a_path"])
    journal = build.contents(run, build.start(A), build.finish(A), build.start(C), finish)
    found = process_history_of(journal, C, root)
    assert found.options == ()
    assert found.omitted == ("-o", "xfail_strict=true", "-W", "error", "--import-mode=importlib")


def test_a_setting_is_taken_only_if_it_is_one_of_the_harness(root: Path) -> None:
    settings = {"device": "evil", "start": "evil", "under": "evil"}
    journal = build.contents(build.run(settings=settings), build.start(C), build.finish(C, Outcome.FAILED))
    assert process_history_of(journal, C, root).options == ()


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("-pevil::x", "expected the path of a test file"),
        ("@s/test_a.py::x", "expected the path of a test file"),
        ("{root}/s/test_a.py::x", "expected the path of a test file"),
        ("s/../../other/test_evil.py::x", "expected the path of a test file"),
        ("s/test_a.py", "expected the path of a test file"),
        ("s/test_a.py::x\n-pevil", "its id has control characters"),
        ("s/test_a.py::x\x85-pevil", "its id has control characters"),
        ("s/test_none.py::x", "the root folder has no file 's/test_none.py'"),
        ("out/test_evil.py::x", "the root folder has no file 'out/test_evil.py'"),
        ("results/r1/files/test_evil.py::x", "its file is in the run directory"),
        ("link/test_evil.py::x", "its file is in the run directory"),
    ],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_only_cases_in_files_of_todays_suites_run(case: str, fault: str, earlier: bool, root: Path) -> None:
    """A run that somebody else sends brings no test file of its own: not beside it, in it, or behind a link."""
    evil = case.format(root=root)
    wanted = C if earlier else evil
    journal = build.contents(
        build.run(rootdir=str(root.parent / "other"), argv=["pytest", "--rootdir=/evil"]),
        build.start(evil),
        build.finish(evil, Outcome.PASSED if earlier else Outcome.FAILED),
        *([build.start(C), build.finish(C, Outcome.FAILED)] if earlier else []),
    )
    with pytest.raises(BisectError) as caught:
        process_history_of(journal, wanted, root)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"start": "cold", "under": "compiled_autograd"}, ["--start=cold", "--under=compiled_autograd"]),
        ({"start": "auto", "under": None}, []),
        ({}, []),
    ],
)
def test_the_cases_run_in_the_way_they_did(settings: dict[str, Any], kept: list[str], root: Path) -> None:
    finish = build.finish(C, Outcome.FAILED)
    journal = build.contents(build.run(settings=settings), build.start(A), build.finish(A), build.start(C), finish)
    found = process_history_of(journal, C, root)
    assert [word for word in found.command([A]).split() if word.startswith(("--start", "--under"))] == kept


def test_a_failure_in_a_shared_process_counts_even_if_the_case_passed_alone(root: Path) -> None:
    lines = [build.start(A), build.finish(A), *build.broke_and(C, Outcome.CRASHED, Outcome.PASSED)]
    assert process_history_of(contents(*lines), C, root).earlier == (A,)
    assert process_history_of(contents(*lines), C, root).outcome is Outcome.CRASHED


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
def test_nothing_to_bisect(lines: list[build.Line], error: str, root: Path) -> None:
    with pytest.raises(BisectError) as caught:
        process_history_of(contents(*lines), C, root)
    assert error in str(caught.value)

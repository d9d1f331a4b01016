"""The data of a run directory that a comparison reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.fleet import comparison
from harness.fleet.comparison import RunRecord
from harness.fleet.run import environment_facts, read_run
from harness.journal.environment import EnvironmentFileError
from harness.journal.journal import FILE_NAME, JournalError
from tests.journal import journals
from tests.reporting import build

A, B = "suites/a/test_a.py::a", "suites/a/test_a.py::b"

ENVIRONMENT = {
    "schema": 1,
    "driver": "570.86",
    "cuda_driver": None,
    "devices": [
        {"name": "H100", "ecc": True, "graphics_clock": 1980, "power_limit": 700},
        {"name": "H100", "ecc": True, "graphics_clock": 1980, "power_limit": 700},
        {"name": "A100", "ecc": False, "power_limit": 400},
    ],
    "versions": {"torch": "2.13.0", "triton": None},
    "os": {"name": "Debian", "kernel": "6.1"},
    "git": {"commit": "abc"},
    "environment": {"CUDA_LAUNCH_BLOCKING": "1"},
    "isolation": "batch",
    "host": "not a fact: every run of a matrix has another one",
}


def read_run_record(folder: Path) -> RunRecord:
    return comparison.run_record(read_run(folder))


def write(folder: Path, *lines: build.Line, environment: object = ENVIRONMENT) -> Path:
    return journals.write_bytes(folder, b"".join(journals.encoded(lines)), environment)


def test_cases_and_facts(tmp_path: Path) -> None:
    run = read_run_record(
        write(
            tmp_path / "run",
            build.run(
                profile="nightly",
                identity={"suite files": f"sha256:{'0123' * 16}", "waivers": "none", "torch": "2.13.0"},
                settings={
                    "inject": "event_early",
                    "leak_check": "fast",
                    "under": None,
                    "grace": 10.0,
                    "shuffle": False,
                },
            ),
            build.collected(A, B),
            build.start(A),
            build.finish(A, duration=1.0),
            build.start(A, attempt=2),
            build.finish(A, attempt=2, duration=2.0),
            build.start(B),
            build.finish(B, Outcome.FAILED, message="no", reproduce="pytest b", duration=3.0),
            build.end(),
        )
    )
    assert run.name == str(tmp_path / "run")
    assert run.notes == ()
    assert run.cases[A] == comparison.CaseRecord(Outcome.PASSED, "", (1.0, 2.0))
    assert run.cases[B] == comparison.CaseRecord(Outcome.FAILED, "no", (3.0,), "pytest b")
    assert run.facts == {
        "profile": "nightly",
        "suite files": "sha256:012301230123",
        "waivers": "none",
        "--fail-on-flaky": "not set",
        "--hardware": "not set",
        "--inject": "event_early",
        "--leak-check": "fast",
        "--shuffle": "not set",
        "driver": "570.86",
        "isolation": "batch",
        "torch": "2.13.0",
        "os": "Debian",
        "kernel": "6.1",
        "commit": "abc",
        "devices": "2 x H100, 1 x A100",
        "graphics clock": "1980, None",
        "power limit": "700, 400",
        "ecc": "True, False",
        "$CUDA_LAUNCH_BLOCKING": "1",
    }


def test_doubts_about_a_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", build.run(), build.collected(A), environment=None)
    with (folder / FILE_NAME).open("a") as file:
        file.write("{torn")
    run = read_run_record(folder)
    assert run.cases[A].outcome is Outcome.NOT_RUN
    assert run.notes == (
        "it did not finish",
        "lines of its journal that cannot be read: 1 (line 3: JSON is malformed: object keys must be strings (byte 1))",
        "it has no readable environment.json, so its machine and software may be unknown",
    )


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        read_run_record(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '"x"'])
def test_an_environment_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "run", build.run(), build.end(), environment=None)
    (folder / "environment.json").write_text(text)
    with pytest.raises(EnvironmentFileError, match=r"environment\.json' is not the environment file of a run"):
        read_run_record(folder)


@pytest.mark.parametrize(
    "odd",
    [{"devices": 3}, {"devices": [1, None]}, {"versions": "x"}, {"os": []}, {"git": None}, {"environment": [1]}, {}],
)
def test_fields_of_other_types_are_left_out(odd: dict[str, object]) -> None:
    assert all(isinstance(value, str) for value in environment_facts(odd).values())


def test_figures_of_speed_are_recorded_properties_with_a_unit(tmp_path: Path) -> None:
    properties = [
        ("performance.d2d_bandwidth", "3.01 TB/s"),
        ("performance.d2d_bandwidth.quartiles", "3 TB/s to 3.02 TB/s in 7 repetitions"),
        ("performance.note", "fast"),
        ("size", "3 TB/s"),
    ]
    run = read_run_record(
        write(
            tmp_path / "run",
            build.run(),
            build.collected(A),
            build.start(A),
            build.finish(A, properties=properties),
            build.start(A, attempt=2),
            build.finish(A, attempt=2, properties=[("performance.d2d_bandwidth", "2.9 TB/s")]),
            build.end(),
        )
    )
    assert run.cases[A].figures == {"d2d_bandwidth": ("3.01 TB/s", "2.9 TB/s")}

"""The table of PyTorch's own tests: classes, rates, causes and explanations; and the handling of downloads."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from benchmarks.upstream import sources, table
from benchmarks.upstream.table import Case, Explanation, Kind, Row, Why
from harness.core.outcome import Outcome

_KNOWN = (
    Explanation("test_a.py::T::test_old*", "has no attribute", Why.TORCH_CHANGED, "the name is gone"),
    Explanation("test_a.py::*", "NCCL", Why.SILICON, "it computes on the device"),
    Explanation("test_a.py::T::test_race", "", Why.RACED, "it does not wait"),
)


def _case(test: str, outcome: Outcome, message: str, torch: str = "2.13.0+cu130") -> Case:
    return Case(test, outcome, message, Version(torch))


@pytest.mark.parametrize(
    ("test", "outcome", "message", "expected"),
    [
        ("test_a.py::T::test_new", Outcome.PASSED, "", Kind.PASSED),
        ("test_a.py::T::test_new", Outcome.WAIVED, "expected failure", Kind.PASSED),
        ("test_a.py::T::test_new", Outcome.FLAKY, "did not finish", Kind.PASSED),
        ("test_a.py::T::test_new", Outcome.SKIPPED, "Skipped: NCCL", Kind.SKIPPED),
        ("test_a.py::T::test_new", Outcome.GATED, "devices", Kind.SKIPPED),
        ("test_a.py::T::test_old_name", Outcome.FAILED, "'x' has no attribute 'y'", Kind.TORCH_CHANGED),
        ("test_a.py::T::test_old_name", Outcome.FAILED, "1 != 2", Kind.UNEXPLAINED),
        ("test_a.py::T::test_new", Outcome.CRASHED, "NCCL Error 1", Kind.SILICON),
        ("test_b.py::T::test_new", Outcome.FAILED, "NCCL Error 1", Kind.UNEXPLAINED),
        ("test_a.py::T::test_race", Outcome.RACED, "in no order", Kind.RACED),
        ("test_a.py::T::test_race", Outcome.FAILED, "1 != 2", Kind.UNEXPLAINED),
        ("test_a.py::T::test_new", Outcome.RACED, "NCCL, in no order", Kind.UNEXPLAINED),
        ("test_a.py::T::test_new", Outcome.TIMEOUT, "did not finish", Kind.UNEXPLAINED),
        ("test_a.py::T::test_new", Outcome.NOT_RUN, "the run ended", Kind.UNEXPLAINED),
        ("test_a.py::T::test_new", Outcome.LOST, "never finished", Kind.UNEXPLAINED),
    ],
)
def test_the_class_of_a_test(test: str, outcome: Outcome, message: str, expected: Kind) -> None:
    assert table.kind(_case(test, outcome, message), _KNOWN) is expected


def _row(passed: int, skipped: int = 0, changed: int = 0, silicon: int = 0) -> Row:
    counts = [passed, skipped, changed, silicon, 0, 0, 0, 0]
    return Row("test_a.py", dict(zip(Kind, counts, strict=True)))


@pytest.mark.parametrize(
    ("row", "rate"),
    [
        (_row(10), "100.0"),
        (_row(9, silicon=1), "90.0"),
        (_row(9, skipped=5, changed=5, silicon=1), "90.0"),
        (_row(1999, silicon=1), "99.9"),
        (_row(0, silicon=1), "0.0"),
        (_row(0, skipped=3), "-"),
    ],
)
def test_the_rate_leaves_out_what_this_torch_does_not_support(row: Row, rate: str) -> None:
    assert row.rate == rate


def test_rows_are_files_and_the_table_has_their_titles() -> None:
    cases = [
        _case("test_a.py::T::test_1", Outcome.PASSED, ""),
        _case("test_b.py::T::test_1", Outcome.SKIPPED, "slow"),
        _case("test_a.py::T::test_old", Outcome.FAILED, "has no attribute"),
    ]
    text = table.markdown(table.rows(cases, _KNOWN), {"test_a.py": "test_a.py, part 1/2", "test_b.py": "test_b.py"})

    assert [line.split(" | ")[0] for line in text.splitlines()[2:]] == ["| test_a.py, part 1/2", "| test_b.py"]
    assert text.splitlines()[2] == "| test_a.py, part 1/2 | 2 | 1 |  | 1 |  |  |  |  |  | 100.0 |"


def test_causes_are_alike_but_for_numbers_and_the_commonest_is_first() -> None:
    cases = [
        _case("test_a.py::1", Outcome.FAILED, "only once"),
        _case("test_a.py::2", Outcome.FAILED, "at 0x7f12 of 3"),
        _case("test_a.py::3", Outcome.FAILED, "at 0x8e of 1.5"),
        _case("test_a.py::4", Outcome.PASSED, "at 0x8e of 1.5"),
    ]

    assert [(cause, len(found)) for cause, found in table.causes(cases, ())] == [("at N of N", 2), ("only once", 1)]


def test_an_explanation_that_explains_nothing_is_reported_if_its_tests_ran() -> None:
    passed = _case("test_a.py::T::test_old_name", Outcome.PASSED, "")
    failed = _case("test_a.py::T::test_new", Outcome.FAILED, "NCCL Error 1")

    assert table.unused(_KNOWN, [passed, failed]) == _KNOWN[:1]
    assert table.unused(_KNOWN, [_case("test_b.py::T::test_new", Outcome.PASSED, "")]) == ()


def test_an_explanation_of_a_race_is_not_reported_in_a_run_without_the_check() -> None:
    passed = _case("test_a.py::T::test_race", Outcome.PASSED, "")
    raced = _case("test_b.py::T::test_1", Outcome.RACED, "in no order")

    assert table.unused(_KNOWN[2:], [passed]) == ()
    assert table.unused(_KNOWN[2:], [passed, raced]) == _KNOWN[2:]


def test_a_file_that_could_not_be_collected_is_reported() -> None:
    cases = [_case("test_a.py::T::test_1", Outcome.PASSED, "")]

    assert table.without_tests(["test_a.py", "test_b.py"], cases) == ("test_b.py",)


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("2.13.0+cu130", Kind.TORCH_CHANGED),
        ("2.15.0", Kind.TORCH_CHANGED),
        ("2.14.0.dev20260801+cu130", Kind.TORCH_CHANGED),
        ("2.11.0+cu130", Kind.UNEXPLAINED),
    ],
)
def test_an_explanation_is_about_some_releases_of_torch(torch: str, expected: Kind) -> None:
    row = {"tests": "test_a.py::*", "message": "", "why": "torch changed", "reason": "gone", "torch": ">=2.13"}
    known = table.explanations([row])
    failed = _case("test_a.py::test_old", Outcome.FAILED, "1 != 2", torch)

    assert table.kind(failed, known) is expected
    assert table.unused(known, [_case("test_a.py::test_old", Outcome.PASSED, "", torch)]) == (
        known if expected is Kind.TORCH_CHANGED else ()
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "expected a list of explanations, found dict"),
        ([{"tests": "a"}], "expected texts for message, reason, tests, why, and perhaps torch; found {'tests': 'a'}"),
        (
            [{"tests": "a", "message": "", "why": "silicon", "reason": "b", "torch": "new"}],
            "explanation 1: torch 'new', expected releases such as '>=2.13' or '<2.14'",
        ),
        (
            [{"tests": "a", "message": "", "why": "fate", "reason": "b"}],
            "explanation 1: why 'fate', expected one of torch changed, silicon, simulator, machine, raced",
        ),
        (
            [{"tests": "a", "message": "(", "why": "silicon", "reason": "b"}],
            r"explanation 1: message '\(' is no pattern",
        ),
    ],
)
def test_an_explanation_that_cannot_be_used_is_named(rows: object, message: str) -> None:
    with pytest.raises(table.ExplanationError, match=message):
        table.explanations(rows)


def test_the_explanations_of_the_project_can_be_read() -> None:
    file = Path(table.__file__).parent / "explanations.yaml"

    assert all(each.reason for each in table.explanations(yaml.safe_load(file.read_text())))


def _package(cache: Path) -> sources.Package:
    """Return a package whose archive is in the cache, with one test and one other file."""
    made = cache / "made"
    for name in ("test/test_cuda.py", "torch/__init__.py"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    with tarfile.open(cache / "torch.tar.xz", "w:xz") as tar:
        tar.add(made, "pytorch-v1")
    digest = hashlib.sha256((cache / "torch.tar.xz").read_bytes()).hexdigest()
    return sources.Package("trixie", "1-1", "torch.tar.xz", digest, "pytorch-v1")


def test_the_tests_alone_are_unpacked_once(tmp_path: Path) -> None:
    package = _package(tmp_path)

    place = sources.fetched(package, tmp_path)

    assert sorted(path.name for path in place.rglob("*")) == ["test", "test_cuda.py"]
    assert sources.given(place) == place
    (tmp_path / "torch.tar.xz").unlink()
    assert sources.fetched(package, tmp_path) == place


def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "torch.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.addfile(tarfile.TarInfo("pytorch-v1/test/../../../outside"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()

    with pytest.raises(sources.SourceError, match="which is outside of its folder"):
        sources.fetched(sources.Package("trixie", "1-1", archive.name, digest, "pytorch-v1"), tmp_path / ".")
    assert not (tmp_path / "1-1").exists()


def test_another_archive_than_the_known_one_is_refused_and_removed(tmp_path: Path) -> None:
    package = _package(tmp_path)
    with (tmp_path / "torch.tar.xz").open("ab") as file:
        file.write(b"more")

    with pytest.raises(sources.SourceError, match=rf"has the SHA-256 \w+, expected {package.sha256}; it was removed"):
        sources.fetched(package, tmp_path)
    assert not (tmp_path / "torch.tar.xz").exists()


def test_a_folder_without_the_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sources.SourceError, match=r"is no checkout of PyTorch: it has no file test/test_cuda\.py"):
        sources.given(tmp_path)

"""What was renamed between two catalogues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.catalog.catalog import fingerprints
from harness.reporting.renaming import match


@dataclass(frozen=True)
class Case:
    id: str
    description: str = ""
    fingerprint: str = ""


def case(name: str, description: str = "", fingerprint: str = "", file: str = "suites/a/test_a.py") -> Case:
    return Case(f"{file}::{name}", description, fingerprint)


OLD = case("test_old", "It adds.", "f1")


@pytest.mark.parametrize(
    "new",
    [
        case("test_new", "It adds.", "f1"),
        case("test_new", "It adds, in words.", "f1"),
        case("test_new", "It adds.", "f2"),
        case("test_new", "It adds.", "f1", file="suites/b/test_b.py"),
        case("test_new", "It adds.", "f2", file="suites/b/test_b.py"),
    ],
    ids=["same", "other_words", "other_code", "moved", "moved_with_other_code"],
)
def test_a_test_is_known_again(new: Case) -> None:
    other = case("test_other", "It subtracts.", "f3")
    found = match([OLD, other], [other, new])
    assert found.tests == {OLD.id: new.id}
    assert (found.gone, found.added) == ((), ())


@pytest.mark.parametrize(
    "new",
    [
        [case("test_new", "It divides.", "f2")],
        [case("test_new", "", "")],
        [case("test_new", "It divides.", "f1", file="suites/b/test_b.py")],
        [case("test_new", "It adds.", "f1"), case("test_too", "It adds.", "f1")],
    ],
    ids=["another", "nothing_to_compare", "code_alone_in_another_file", "two_alike"],
)
def test_a_test_that_is_not_known_again_is_gone(new: list[Case]) -> None:
    found = match([OLD], new)
    assert found.tests == {}
    assert found.gone == (OLD.id,)
    assert found.added == tuple(each.id for each in new)


def test_of_tests_that_share_their_words_the_code_tells() -> None:
    old = [case("test_a", "Same.", "f1"), case("test_b", "Same.", "f2")]
    new = [case("test_d", "Same.", "f2"), case("test_c", "Same.", "f1")]
    assert {was[-1]: now[-1] for was, now in match(old, new).tests.items()} == {"a": "c", "b": "d"}


def test_a_name_that_still_exists_is_no_renaming() -> None:
    swapped = [case("test_a", "Two.", "f2"), case("test_b", "One.", "f1")]
    assert match([case("test_a", "One.", "f1"), case("test_b", "Two.", "f2")], swapped).tests == {}


def test_parameters_are_the_cases_of_one_test() -> None:
    old = [case(f"test_old[{each}]", "It adds.") for each in (1, 2, 3)]
    new = [case(f"test_new[{each}]", "It adds.") for each in (1, 2, 4)]
    found = match(old, new)
    assert found.tests == {OLD.id: "suites/a/test_a.py::test_new"}
    assert found.gone == (old[2].id,)
    assert found.added == (new[2].id,)


def test_a_fingerprint_is_of_the_code_and_not_of_name_or_words(tmp_path: Path) -> None:
    def of(text: str) -> str:
        path = tmp_path / "test_a.py"
        path.write_text(text)
        (found,) = fingerprints(path).values()
        return found

    first = of('def test_a(x):\n    """One."""\n    assert x == 1\n')
    assert of('@mark\ndef test_b(x):\n    """Two."""\n    # why\n\n    assert (x == 1)\n') == first
    assert of("def test_b(x):\n    assert x == 1\n") == first
    assert of("def test_a(x):\n    assert x == 2\n") != first
    assert of("def test_a(y):\n    assert x == 1\n") != first
    path = tmp_path / "test_a.py"
    path.write_text("class TestX:\n    def test_a(self): ...\n\nasync def test_b(): ...\n")
    assert list(fingerprints(path)) == ["TestX::test_a", "test_b"]
    path.write_text("def (")
    assert fingerprints(path) == {}

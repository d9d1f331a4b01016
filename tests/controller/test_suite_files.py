"""The hash of the suites' files: it changes with each file that can affect a case, and with no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.controller import rules

SKIPPED = (".*", "build", "venv")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("suites/a/test_a.py", "suites/a/tree.json", "suites/conftest.py", "other/test_o.py", "other/data.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def whole(tree: Path, *others: str) -> str:
    return rules.suite_digest(tree, [tree / "suites"], [tree / name for name in others], SKIPPED)


def append(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("#")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a test": lambda tree: append(tree / "suites" / "a" / "test_a.py"),
    "a golden file": lambda tree: append(tree / "suites" / "a" / "tree.json"),
    "a new helper": lambda tree: append(tree / "suites" / "b" / "helper.py"),
    "a file that is gone": lambda tree: (tree / "suites" / "conftest.py").unlink(),
    "another name": lambda tree: (tree / "suites" / "a" / "tree.json").rename(tree / "suites" / "a" / "trees.json"),
    "a test of another argument": lambda tree: append(tree / "other" / "test_o.py"),
}
HARMLESS: dict[str, Callable[[Path], object]] = {
    "a cache": lambda tree: append(tree / "suites" / "a" / "__pycache__" / "test_a.pyc"),
    "a hidden file": lambda tree: append(tree / "suites" / ".swp"),
    "a hidden folder": lambda tree: append(tree / "suites" / ".git" / "index"),
    "a build": lambda tree: append(tree / "suites" / "build" / "x.py"),
    "a virtual environment": lambda tree: append(tree / "suites" / "env" / "pyvenv.cfg"),
    "a run directory": lambda tree: append(tree / "suites" / "run" / "journal.ndjson"),
    "data beside another argument": lambda tree: append(tree / "other" / "data.txt"),
    "a link to nowhere": lambda tree: (tree / "suites" / "a" / "gone.py").symlink_to("nowhere"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_it(tree: Path, what: str) -> None:
    before = whole(tree, "other")
    CHANGES[what](tree)
    assert whole(tree, "other") != before


@pytest.mark.parametrize("what", HARMLESS)
def test_what_does_not_change_it(tree: Path, what: str) -> None:
    before = whole(tree, "other")
    HARMLESS[what](tree)
    assert whole(tree, "other") == before


def test_it_is_the_same_on_another_host(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("host") / "checkout"
    shutil.copytree(tree, copy)
    assert whole(copy, "other") == whole(tree, "other")


@pytest.mark.parametrize(
    ("arguments", "reached", "others"),
    [
        (["suites"], ["suites"], []),
        (["."], ["suites"], []),
        (["suites/a/test_a.py"], ["suites"], []),
        (["other/test_o.py"], [], ["other/test_o.py"]),
        (["suites/a", "other"], ["suites"], ["other"]),
        (["suites2"], [], ["suites2"]),
    ],
)
def test_the_folders_that_arguments_reach(
    tree: Path, arguments: list[str], reached: list[str], others: list[str]
) -> None:
    found = rules.suite_roots([tree / argument for argument in arguments], [tree / "suites"])
    assert found == ([tree / name for name in reached], [tree / name for name in others])


def test_beside_a_file_its_conftest_counts(tree: Path) -> None:
    before = whole(tree, "other/test_o.py")
    append(tree / "other" / "conftest.py")
    assert whole(tree, "other/test_o.py") != before

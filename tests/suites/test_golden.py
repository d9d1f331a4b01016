"""Golden files: the file that is compared, the effect of accepting, and who may accept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from suites import reaching
from suites.profiler import accept as accepting
from suites.profiler import golden
from suites.profiler.golden import GOLDENS, Minor

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize(
    ("version", "minor"),
    [("2.13.0", (2, 13)), ("2.13.0+cpu", (2, 13)), ("2.14.0a0+git123", (2, 14)), ("2.9", (2, 9))],
)
def test_the_release_is_the_first_two_numbers(version: str, minor: Minor) -> None:
    assert golden.parse_minor(version) == minor


@pytest.mark.parametrize("version", ["", "2", "two.13", "2.x"])
def test_a_version_without_a_release_is_an_error(version: str) -> None:
    with pytest.raises(ValueError, match="no release in the version"):
        golden.parse_minor(version)


@pytest.mark.parametrize(
    ("minors", "running", "applies"),
    [
        ([(2, 11), (2, 13)], (2, 13), (2, 13)),
        ([(2, 11), (2, 13)], (2, 12), (2, 11)),
        ([(2, 11), (2, 13)], (2, 14), (2, 13)),
        ([(2, 9), (2, 10)], (2, 11), (2, 10)),
        ([(2, 13)], (3, 0), (2, 13)),
        ([(2, 13)], (2, 12), None),
        ([], (2, 13), None),
    ],
)
def test_the_file_is_the_newest_that_is_not_above(minors: list[Minor], running: Minor, applies: Minor | None) -> None:
    assert golden.applicable(minors, running) == applies


@pytest.mark.parametrize(
    ("stored", "running", "text", "after"),
    [
        pytest.param({}, (2, 12), "a", {(2, 12): "a"}, id="first"),
        pytest.param({(2, 11): "a"}, (2, 12), "a", {(2, 11): "a"}, id="as_before"),
        pytest.param({(2, 11): "a"}, (2, 12), "b", {(2, 11): "a", (2, 12): "b"}, id="differs"),
        pytest.param({(2, 12): "a"}, (2, 12), "b", {(2, 12): "b"}, id="replaced"),
        pytest.param({(2, 11): "a", (2, 12): "b"}, (2, 12), "a", {(2, 11): "a"}, id="no_longer_differs"),
        pytest.param({(2, 13): "a"}, (2, 12), "a", {(2, 12): "a"}, id="serves_the_newer_too"),
        pytest.param({(2, 13): "a"}, (2, 12), "b", {(2, 12): "b", (2, 13): "a"}, id="newer_differs"),
        pytest.param(
            {(2, 10): "a", (2, 11): "b", (2, 12): "a"}, (2, 11), "a", {(2, 10): "a"}, id="one_text_for_all_again"
        ),
    ],
)
def test_accepting_keeps_one_file_for_each_change(
    stored: dict[Minor, str], running: Minor, text: str, after: dict[Minor, str]
) -> None:
    accepted = golden.accepted(stored, running, text)
    assert accepted == after
    assert accepted[golden.applicable(accepted, running) or running] == text


def test_files_are_found_by_tree_and_release(tmp_path: Path) -> None:
    for name in ("memory.2.11.txt", "memory.2.9.txt", "memory_and_stack.2.12.txt", "memory.txt", "memory.2.13.md"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert golden.stored("memory", tmp_path) == {(2, 11): "memory.2.11.txt", (2, 9): "memory.2.9.txt"}
    assert golden.stored("other", tmp_path) == {}


def test_a_difference_shows_both_lines_and_those_above() -> None:
    difference = golden.difference("a\n  b\n  c\n", "a\n  b\n  d\n", "old", "new")
    assert difference.splitlines() == ["--- old", "+++ new", "@@ -1,3 +1,3 @@", " a", "   b", "-  c", "+  d"]
    assert golden.difference("a\n", "a\n") == ""


def test_every_file_belongs_to_a_tree_and_none_repeats_the_one_before() -> None:
    files = {golden.file_name(g.name, minor) for g in GOLDENS for minor in golden.stored(g.name)}
    assert files == {file.name for file in golden.FOLDER.iterdir()}
    for tree in GOLDENS:
        texts = [text for _, text in sorted(golden.stored(tree.name).items())]
        assert all(one != next_one for one, next_one in pairwise(texts)), tree.name


def test_names_of_trees_are_unique() -> None:
    names = [tree.name for tree in GOLDENS]
    assert len(names) == len(set(names))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a project with only this suite and no golden file; the folder of golden files is inside."""
    suite = tmp_path / "suites" / "profiler"
    shutil.copytree(golden.FOLDER.parent, suite, ignore=shutil.ignore_patterns("golden", "__pycache__"))
    (tmp_path / "suites" / "__init__.py").touch()
    shutil.copy(Path(reaching.__file__), tmp_path / "suites")
    return suite / "golden"


def accept(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", "suites.profiler.accept", *arguments],
        cwd=copy.parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for golden files. There are none, and the variable `CI` is not set."""
    monkeypatch.setattr(accepting, "FOLDER", tmp_path / "golden")
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "golden"


def test_ci_accepts_nothing(
    no_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="2"):
        accepting.main(["torch_function"])
    assert "never accepted by CI" in capsys.readouterr().err
    assert not no_files.exists()


def test_a_tree_that_is_none_is_refused_with_those_there_are(
    no_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        accepting.main(["torch_function", "torch_fnction"])
    said = capsys.readouterr().err
    assert "no tree named 'torch_fnction'" in said
    assert "torch_function" in said
    assert not no_files.exists()


@pytest.mark.nightly
def test_accepting_writes_one_file_shows_it_and_is_done_the_second_time(copy: Path) -> None:
    file = copy / golden.file_name("torch_dispatch", golden.running_minor())

    first = accept(copy, "torch_dispatch")

    assert first.returncode == 0, first.stderr
    assert list(copy.iterdir()) == [file]
    text = file.read_text(encoding="utf-8")
    assert text.startswith("workloads.py: work\n")
    assert [line[1:] for line in first.stdout.splitlines()[3:]] == text.splitlines()
    accepted_here = golden.stored("torch_dispatch")
    minor = golden.applicable(accepted_here, golden.running_minor())
    if minor is not None:
        assert text == accepted_here[minor]

    again = accept(copy, "torch_dispatch")

    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines() == [f"torch_dispatch: unchanged, {file.name}"]
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, so the tree can be taken")
def test_a_tree_this_machine_cannot_have_is_not_accepted(no_files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert accepting.main(["cuda_side_streams"]) == 1
    assert "cuda_side_streams: not taken: it needs a CUDA device" in capfd.readouterr().err
    assert not no_files.exists()

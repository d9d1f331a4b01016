"""The contents of an archive, and what is excluded."""

from __future__ import annotations

import os
import socket
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from harness.core.errors import WriteError
from harness.journal.journal import JournalError
from harness.tools.evidence import manifest as manifests
from harness.tools.evidence.archive import ArchiveError
from harness.tools.evidence.manifest import Manifest
from harness.tools.evidence.package import Package, PackageError, files_of
from harness.tools.evidence.verify import Demands, Verification, extract_archive, verification_lines, verify_archive
from tests.tools.evidence import forge
from tests.tools.evidence.forge import Forger, run_files
from tests.tools.evidence.tamperings import drop


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for name, data in run_files().items():
        path = folder / name.removeprefix("run/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / ".lock").touch()
    (folder / "report.html").write_text("<h1>Green</h1>")
    (folder / "compiler-caches").mkdir()
    (folder / "compiler-caches" / "kernel.so").write_bytes(b"kernel")
    return folder


def verified(path: Path) -> Verification:
    with path.open("rb") as file:
        return verify_archive(file, path, Demands())


def test_what_is_in_an_archive(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "evidence.zip"
    manifest = Package.of(run_dir).write(out)
    with zipfile.ZipFile(out) as archive:
        assert archive.namelist() == [
            "manifest.json",
            "must-pass/core.txt",
            "run/environment.json",
            "run/files/gw0-1/out.txt",
            "run/journal.ndjson",
            "run/junit.xml",
            "waivers.json",
        ]
        assert archive.testzip() is None
        for name, facts in manifest.files.items():
            assert sha256(archive.read(name)).hexdigest() == facts.sha256
        assert Manifest.model_validate_json(archive.read("manifest.json")) == manifest
    assert verified(out).problems == ()
    assert manifest.waivers.used[0].source == "known.yaml:3"


def test_the_same_run_gives_the_same_bytes(run_dir: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "elsewhere" / "second.zip"
    Package.of(run_dir).write(first)
    second.parent.mkdir()
    for path in run_dir.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    moved = run_dir.rename(tmp_path / "moved")
    Package.of(moved).write(second)
    assert first.read_bytes() == second.read_bytes()


def test_links_that_cases_left_are_named_and_not_followed(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "files" / "current").symlink_to("/etc/passwd")
    (run_dir / "files" / "folder").symlink_to(tmp_path, target_is_directory=True)
    manifest = Package.of(run_dir).write(tmp_path / "evidence.zip")
    assert manifest.left_out == {"run/files/current": "/etc/passwd", "run/files/folder": str(tmp_path)}
    assert verified(tmp_path / "evidence.zip").problems == ()


@pytest.mark.parametrize(
    ("target", "said"),
    [("/etc/hostname", "is a link that leads out of the run directory"), ("zygote.log", "leads to another file")],
)
def test_other_links_are_refused(run_dir: Path, target: str, said: str) -> None:
    (run_dir / "link.txt").symlink_to(target)
    with pytest.raises(PackageError, match=rf"link\.txt' is a link.*{said.removeprefix('is a link that ')}"):
        files_of(run_dir)


@pytest.fixture
def pipe(run_dir: Path) -> Path:
    os.mkfifo(run_dir / "pipe")
    return run_dir / "pipe"


@pytest.fixture
def bound(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(run_dir)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        yield run_dir / "socket"


@pytest.mark.parametrize("special", ["pipe", "bound"])
def test_special_files_are_refused(special: str, run_dir: Path, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(special)
    with pytest.raises(PackageError, match=f"{path.name}' is not a regular file: remove it from the run directory"):
        Package.of(run_dir)


@pytest.mark.parametrize("name", ["back\\slash", "line\nbreak", os.fsdecode(b"\xff")])
def test_names_that_no_archive_may_have_are_refused(name: str, run_dir: Path) -> None:
    (run_dir / "files" / name).touch()
    with pytest.raises(PackageError, match=r"cannot be packed: its name has .*; rename it"):
        Package.of(run_dir)


def test_an_archive_is_not_in_its_own_run(run_dir: Path) -> None:
    with pytest.raises(PackageError, match="is in the run directory, so it would contain itself: name another place"):
        Package.of(run_dir).write(run_dir / "evidence.zip")


def test_a_folder_that_is_none_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal at"):
        Package.of(tmp_path)


def test_an_archive_that_cannot_be_written(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot write"):
        Package.of(run_dir).write(tmp_path / "nowhere" / "evidence.zip")


def test_a_file_that_changes_meanwhile_is_refused_and_nothing_is_left(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Package.of(run_dir)
    make = manifests.make_manifest

    def make_and_change(*given: object) -> Manifest:
        (run_dir / "files/gw0-1/out.txt").write_bytes(b"now\n")
        return make(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(manifests, "make_manifest", make_and_change)
    with pytest.raises(PackageError, match=r"out\.txt' changed while it was packed"):
        package.write(tmp_path / "evidence.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_unfinished_run_is_packed_as_such(tmp_path: Path) -> None:
    events = forge.lines()
    drop("end")(events)
    forger = Forger.of(events)
    assert b'"complete": false' in forger.members["manifest.json"]
    (tmp_path / "evidence.zip").write_bytes(forge.zipped(forger.members))
    problems = verified(tmp_path / "evidence.zip").problems
    assert problems == ("the run did not finish: its journal has no line of kind 'end'; resume it with --resume",)


def test_a_verified_archive_is_extracted_into_a_new_folder(run_dir: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "evidence.zip", tmp_path / "a" / "new"
    Package.of(run_dir).write(out)
    with out.open("rb") as file:
        extract_archive(file, folder)
        for name in ("journal.ndjson", "files/gw0-1/out.txt"):
            assert (folder / name).read_bytes() == (run_dir / name).read_bytes()
        assert not (folder / "manifest.json").exists()
        with pytest.raises(ArchiveError, match="exists already: name a new folder"):
            extract_archive(file, folder)


def test_the_words_of_a_verification(run_dir: Path, tmp_path: Path) -> None:
    Package.of(run_dir).write(tmp_path / "evidence.zip")
    found = verified(tmp_path / "evidence.zip")
    assert found.record is not None
    assert found.manifest is not None
    text = "\n".join(verification_lines(found.record, found.manifest))
    assert "verified: the run is red, 1 failed (exit status 1)" in text
    assert "devices: 2 x NVIDIA H100 (cuda); driver 570.1, torch 2.13.0" in text
    assert "must-pass list core.txt (1 case, sha256:" in text
    assert "waived: suites/a/test_a.py::test_d (known.yaml:3)" in text

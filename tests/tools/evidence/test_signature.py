"""Detached signatures, with real keys of OpenSSH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.tools.evidence import archive as archives
from harness.tools.evidence.archive import SignatureError, sign_archive, signature_path

needs_openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


def key(folder: Path, name: str) -> Path:
    path = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(command, check=True, timeout=60, stdin=subprocess.DEVNULL)
    return path


def allow(folder: Path, **keys: Path) -> Path:
    path = folder / "allowed"
    path.write_text("".join(f"{who}@example.org {key.with_suffix('.pub').read_text()}" for who, key in keys.items()))
    return path


def problem(archive: Path, signers: Path, identity: str = "") -> tuple[str, str]:
    with archive.open("rb") as file:
        file.read()  # simulates an archive that was already verified
        return archives.signature_problem(file, signature_path(archive), signers, identity)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "evidence.zip"
    path.write_bytes(b"the archive")
    return path


@needs_openssh
def test_a_signature_names_its_signer(archive: Path, tmp_path: Path) -> None:
    ada = key(tmp_path, "ada")
    assert sign_archive(archive, ada) == signature_path(archive) == tmp_path / "evidence.zip.sig"
    signers = allow(tmp_path, ada=ada)
    assert problem(archive, signers) == ("ada@example.org", "")
    assert problem(archive, signers, "ada@example.org") == ("ada@example.org", "")
    sign_archive(archive, ada)  # replaces an older signature without asking


@needs_openssh
def test_signatures_that_are_not_accepted(archive: Path, tmp_path: Path) -> None:
    ada, bob = key(tmp_path, "ada"), key(tmp_path, "bob")
    sign_archive(archive, ada)
    both = allow(tmp_path, ada=ada, bob=bob)
    assert "is not that of 'bob@example.org' for this archive" in problem(archive, both, "bob@example.org")[1]
    archive.write_bytes(b"another archive")
    assert "is not that of 'ada@example.org' for this archive" in problem(archive, both)[1]
    archive.write_bytes(b"the archive")
    only_bob = allow(tmp_path, bob=bob)
    assert "was made with a key that is not in" in problem(archive, only_bob)[1]
    signature_path(archive).write_text("hello")
    assert "was made with a key that is not in" in problem(archive, both)[1]


@needs_openssh
def test_a_signature_for_another_purpose_is_not_accepted(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = key(tmp_path, "ada")
    monkeypatch.setattr(archives, "NAMESPACE", "file")
    sign_archive(archive, ada)
    monkeypatch.undo()
    assert "for this archive" in problem(archive, allow(tmp_path, ada=ada))[1]


@needs_openssh
def test_a_key_that_is_none(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hello")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(SignatureError, match=r"cannot sign .* with .*key"):
        sign_archive(archive, tmp_path / "key")
    assert not signature_path(archive).exists()


def test_missing_files_are_named(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="there is no file of allowed signers at"):
        problem(archive, tmp_path / "allowed")
    (tmp_path / "allowed").touch()
    assert problem(archive, tmp_path / "allowed") == ("", f"there is no signature at {str(signature_path(archive))!r}")


def test_without_openssh_it_says_so(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SignatureError, match="ssh-keygen is not installed: install OpenSSH, or leave out"):
        sign_archive(archive, tmp_path / "key")

"""``harness package`` and ``harness verify`` as users run them: in their own processes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.core.outcome import EXIT_OK, EXIT_RED, EXIT_USAGE
from tests.tools.evidence.forge import JOURNAL, Forger, run_files, zipped
from tests.tools.evidence.test_signature import allow, key
from tests.warm import client

pytestmark = pytest.mark.acceptance


def harness(*arguments: object) -> subprocess.CompletedProcess[str]:
    return client.run(["-m", "harness", *arguments])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name, data in run_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "run"


def test_package_and_verify(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "evidence.zip"
    done = harness("package", run_dir, "-o", out)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout.startswith(f"packed 7 files into {out} (")
    assert done.stdout.endswith(": red, 4 cases, device cuda\n")
    done = harness("verify", out, "--extract", tmp_path / "new")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout.startswith("verified: the run is red, 1 failed (exit status 1)\n")
    assert "not verified: who made it" in done.stdout
    assert (tmp_path / "new" / "journal.ndjson").read_bytes() == (run_dir / "journal.ndjson").read_bytes()
    done = harness("verify", out, "--require-green")
    assert (done.returncode, done.stdout) == (EXIT_RED, "")
    assert done.stderr.splitlines() == [
        f"refused: {out}",
        "  - the run is not green, as --require-green demands: 1 failed (exit status 1)",
    ]


def test_package_refuses_what_verify_would(run_dir: Path, tmp_path: Path) -> None:
    path, out = run_dir / "journal.ndjson", tmp_path / "evidence.zip"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:-1]))
    done = harness("package", run_dir, "-o", out)
    assert done.returncode == EXIT_RED
    assert done.stderr.splitlines() == [
        f"not packed: harness verify would refuse {run_dir}:",
        "  - the run did not finish: its journal has no line of kind 'end'; resume it with --resume",
        "use --unfinished to pack it as an unfinished run",
    ]
    assert not out.exists()
    done = harness("package", run_dir, "-o", out, "--unfinished")
    assert done.returncode == EXIT_OK
    assert done.stdout.endswith("the run is not complete: harness verify refuses the archive\n")
    assert harness("verify", out).returncode == EXIT_RED
    path.write_bytes(b"".join(whole).replace(b'"passed"', b'"failed"'))
    done = harness("package", run_dir, "-o", out, "--unfinished")
    assert done.returncode == EXIT_RED
    assert "junit.xml says that suites.a.test_a::test_a is passed; by the journal it is failed" in done.stderr
    assert "--unfinished" not in done.stderr


def test_what_cannot_be_read_has_exit_status_4(run_dir: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (["verify", tmp_path / "nothing"], "cannot read"),
        (["verify", tmp_path], "is not a regular file: give an archive of harness package"),
        (["verify", run_dir / "journal.ndjson"], "does not end like an evidence archive"),
        (["package", tmp_path, "-o", tmp_path / "x"], "there is no journal at"),
        (["package", run_dir, "-o", tmp_path / "x", "--sign", tmp_path / "no"], "there is no such key"),
    ):
        done = harness(*arguments)
        assert done.returncode == EXIT_USAGE, done.stderr
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_signatures(run_dir: Path, tmp_path: Path) -> None:
    ada, bob, out = key(tmp_path, "ada"), key(tmp_path, "bob"), tmp_path / "evidence.zip"
    done = harness("package", run_dir, "-o", out, "--sign", ada)
    assert done.stdout.endswith(f"signed: {out}.sig\n"), done.stderr
    signers = allow(tmp_path, ada=ada, bob=bob)
    done = harness("verify", out, "--signers", signers)
    assert done.returncode == EXIT_OK
    assert done.stdout.endswith("signed by ada@example.org\n")
    done = harness("verify", out, "--signers", signers, "--identity", "bob@example.org")
    assert done.returncode == EXIT_RED
    assert "the signature is not that of 'bob@example.org' for this archive" in done.stderr
    missing = harness("verify", out, "--signers", signers, "--signature", tmp_path / "no", "--require-gpu")
    assert (missing.returncode, missing.stderr.count("\n  - ")) == (EXIT_RED, 1)
    assert f"there is no signature at '{tmp_path}/no'" in missing.stderr
    assert f"{out}.sig was not examined" in harness("verify", out).stdout


def test_a_tampered_archive_is_refused_with_every_reason(tmp_path: Path) -> None:
    forger = Forger.of()
    forger.file(JOURNAL, forger.members[JOURNAL].replace(b'"failed"', b'"passed"'))
    forger.file("run/x", b"")
    (tmp_path / "evidence.zip").write_bytes(zipped(forger.members))
    done = harness("verify", tmp_path / "evidence.zip")
    assert (done.returncode, done.stdout) == (EXIT_RED, "")
    for said in (
        "run/journal.ndjson was edited",
        "run/x was added",
        "passed, but has a traceback",
        "exit status 1, but 0 follows from its journal",
        "manifest.json is wrong about the results",
    ):
        assert said in done.stderr

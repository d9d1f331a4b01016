"""Detached signatures by OpenSSH: ``ssh-keygen -Y sign`` and ``verify``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import IO

from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError
from harness.core.text import single_line

#: The purpose of a signature. A signature for another purpose is not accepted.
NAMESPACE = "gpu-conformance"
_TOOL = "ssh-keygen"
#: Time limit in seconds. Signing may wait for a passphrase, or for a touch of a security key.
_SIGNING = 120.0
_VERIFYING = 30.0


class SignatureError(HarnessError):
    """An archive cannot be signed, or a signature cannot be examined."""


def signature_path(archive: Path) -> Path:
    """Return the path of the signature of an archive."""
    return archive.with_name(f"{archive.name}.sig")


def sign_archive(archive: Path, key: Path) -> Path:
    """Write the signature beside the archive. Raise SignatureError, WriteError."""
    try:
        with archive.open("rb") as data:
            done = _run(data, _SIGNING, "sign", "-f", str(key), "-n", NAMESPACE)
    except OSError as error:
        raise SignatureError(f"cannot read {str(archive)!r}") from error
    if done.returncode or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise SignatureError(f"cannot sign {str(archive)!r} with {str(key)!r}: {_words(done)}")
    return write_atomically(signature_path(archive), done.stdout)


def signature_problem(archive: IO[bytes], signature: Path, signers: Path, identity: str = "") -> tuple[str, str]:
    """Return who signed the archive, and why the signature is not accepted; empty if it is.

    The open file is read, because its name may refer to another file than the verified one by now.

    `signers`: an allowed-signers file, see ``man ssh-keygen``. Without `identity`, everyone in it is accepted. Raise
    SignatureError if the tool or this file is missing.
    """
    if not signers.is_file():
        raise SignatureError(f"there is no file of allowed signers at {str(signers)!r}")
    if not signature.is_file():
        return "", f"there is no signature at {str(signature)!r}"
    who = [identity] if identity else _principals(archive, signers, signature)
    if not who:
        return "", f"the signature was made with a key that is not in {str(signers)!r}"
    for principal in who:
        options = ("-f", str(signers), "-I", principal, "-n", NAMESPACE, "-s", str(signature))
        done = _run(archive, _VERIFYING, "verify", *options)
        if done.returncode == 0:
            return principal, ""
    return "", f"the signature is not that of {' or '.join(map(repr, who))} for this archive: {_words(done)}"


def _principals(archive: IO[bytes], signers: Path, signature: Path) -> list[str]:
    done = _run(archive, _VERIFYING, "find-principals", "-s", str(signature), "-f", str(signers))
    return done.stdout.decode("utf-8", "replace").split("\n")[0].split(",") if done.returncode == 0 else []


def _run(archive: IO[bytes], limit: float, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the tool with the archive as its standard input."""
    archive.seek(0)
    try:
        command = [_TOOL, "-Y", *arguments]
        return subprocess.run(command, stdin=archive, capture_output=True, timeout=limit, check=False)
    except FileNotFoundError:
        raise SignatureError(f"{_TOOL} is not installed: install OpenSSH, or leave out the signature") from None
    except subprocess.TimeoutExpired:
        raise SignatureError(f"{_TOOL} did not end within {limit:.0f} s: use a key in an agent") from None
    except OSError as error:
        raise SignatureError(f"cannot start {_TOOL}") from error


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    return single_line((done.stderr or done.stdout).decode("utf-8", "replace"), 300) or f"exit status {done.returncode}"

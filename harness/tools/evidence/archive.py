"""The archive, a zip file with exactly one form for given files, read as untrusted input; and its signature.

Members are not compressed: the bytes do not depend on the version of a compression library, and nothing can unpack to
more than its size. A reader writes the archive again from its members and compares. Therefore nothing can be hidden
outside members, such as in bytes between them, comments, times or attributes.
"""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import tempfile
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError
from harness.core.text import format_count, single_line

MOST_MEMBERS = 100_000
MOST_BYTES = 2 << 30
_CHUNK = 1 << 20
_LONGEST_NAME = 1024
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time of the format
_UNIX = 3
_ATTRIBUTES = (stat.S_IFREG | 0o644) << 16
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_SIZE = 20
#: Exceptions of the standard library for archives that are damaged or use unsupported features.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    EOFError,
    struct.error,
    zlib.error,
)


class ArchiveError(HarnessError):
    """A file is not an evidence archive, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Content:
    """A member of an archive. `data` is None if it was read only for its hash."""

    size: int
    sha256: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """The contents of an archive: the members by name, or `problems`, in which case the members must not be trusted."""

    members: dict[str, Content]
    problems: tuple[str, ...] = ()


def write_archive(file: IO[bytes], members: Iterable[tuple[str, int, Iterable[bytes]]]) -> None:
    """Write an archive of these members (name, size, chunks), which must be in the order of their names."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, size, chunks in members:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr, info.file_size = _UNIX, _ATTRIBUTES, size
            with archive.open(info, "w") as member:
                for chunk in chunks:
                    member.write(chunk)


def file_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file in chunks."""
    while chunk := file.read(_CHUNK):
        yield chunk


def name_fault(name: str) -> str:
    """Return why a name is not valid for a member; empty if it is."""
    parts = name.split("/")
    if not name or len(name) > _LONGEST_NAME:
        return f"its name has {len(name)} characters, expected 1 to {_LONGEST_NAME}"
    if any(unicodedata.category(character)[0] == "C" for character in name):
        return "its name has control characters, or characters that are not shown"
    if name.startswith("/") or name[1:2] == ":":
        return "its name is an absolute path"
    if "\\" in name:
        return "its name has a backslash"
    if ".." in parts:
        return "its name leads out of the folder (..)"
    if name.endswith("/"):
        return "it is a folder"
    if "" in parts or "." in parts:
        return "its name has empty parts"
    return ""


def read_archive(
    file: IO[bytes], path: Path, wanted: Callable[[str], bool], most_bytes: int = MOST_BYTES
) -> ArchiveContents:
    """Read an archive to its end, without writing any member to disk. `wanted`: returns whether a name's data is
    needed.

    Raise ArchiveError if it cannot be read as an archive.
    """
    size = os.fstat(file.fileno()).st_size
    if size > most_bytes:
        return ArchiveContents(
            {}, (f"the archive has {size} bytes, more than {most_bytes}: use --max-size if that is right",)
        )
    too_many = _too_many(file, size, path)
    if too_many:
        return ArchiveContents({}, (too_many,))
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            problems = tuple(_structure(infos, size))
            return ArchiveContents({}, problems) if problems else _members(file, archive, infos, wanted)
    except (*_ZIP_ERRORS, OSError) as error:
        raise ArchiveError(f"{str(path)!r} cannot be read as an evidence archive") from error


def _too_many(file: IO[bytes], size: int, path: Path) -> str:
    """Check the end of the archive before the standard library makes an object for each member."""
    file.seek(max(0, size - _END.size - _LOCATOR_SIZE - _END64.size))
    tail = file.read()
    file.seek(0)
    if len(tail) < _END.size or not tail[-_END.size :].startswith(b"PK\5\6"):
        raise ArchiveError(
            f"{str(path)!r} does not end like an evidence archive: it is another file, was cut off, or something was "
            "added at its end"
        )
    _, _, _, _, count, directory, _, _ = _END.unpack(tail[-_END.size :])
    if len(tail) > _END.size + _LOCATOR_SIZE and tail.startswith(b"PK\6\6"):
        _, _, _, _, _, _, _, count, directory, _ = _END64.unpack(tail[: _END64.size])
    if count > MOST_MEMBERS or directory > (count + 1) * (2 * _LONGEST_NAME):
        return (
            f"the archive lists {format_count(count, 'file')} in {directory} bytes, more than {MOST_MEMBERS} files need"
        )
    return ""


def _structure(infos: list[zipfile.ZipInfo], size: int) -> Iterator[str]:
    names = [info.orig_filename for info in infos]
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{name!r} is in the archive {times} times"
    yield from _collisions(dict.fromkeys(names))
    for info in infos:
        name, kind = info.orig_filename, stat.S_IFMT(info.external_attr >> 16)
        if fault := name_fault(name):
            yield f"{name!r} is not allowed in an archive: {fault}"
        elif kind == stat.S_IFLNK:
            yield f"{name!r} is a symbolic link"
        elif kind != stat.S_IFREG:
            yield f"{name!r} is not a regular file"
        if info.flag_bits & 0x41:
            yield f"{name!r} is encrypted"
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            yield (
                f"{name!r} is compressed, from {info.file_size} bytes to {info.compress_size}: files of an evidence "
                "archive never are, so that nothing unpacks to more than its size"
            )
    whole = sum(info.compress_size for info in infos)
    if whole > size:
        yield f"the files of the archive have {whole} bytes together, but the archive has {size}: they overlap"


def _collisions(names: Iterable[str]) -> Iterator[str]:
    """Yield names that are equal on some file systems."""
    folded: dict[str, str] = {}
    for name in names:
        key = unicodedata.normalize("NFC", name).casefold()
        if key in folded:
            yield f"{folded[key]!r} and {name!r} differ only in upper and lower case or in how letters are composed"
        folded.setdefault(key, name)
    for key, name in folded.items():
        for end in (index for index, letter in enumerate(key) if letter == "/"):
            if key[:end] in folded:
                yield f"{folded[key[:end]]!r} is a file, and {name!r} needs it to be a folder"


def _members(
    file: IO[bytes], archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo], wanted: Callable[[str], bool]
) -> ArchiveContents:
    """Read each member once, to get its hash and its data, and to write the archive again."""
    contents: dict[str, Content] = {}
    damaged: list[str] = []

    def again(info: zipfile.ZipInfo) -> Iterator[bytes]:
        digest, kept, size = sha256(), list[bytes](), 0
        try:
            with archive.open(info) as member:
                for chunk in file_chunks(member):
                    digest.update(chunk)
                    size += len(chunk)
                    if wanted(info.filename):
                        kept.append(chunk)
                    yield chunk
        except _ZIP_ERRORS as error:
            damaged.append(f"{info.filename!r} is damaged: {error}")
            return
        data = b"".join(kept) if wanted(info.filename) else None
        contents[info.filename] = Content(size, digest.hexdigest(), data)

    ordered = sorted(infos, key=lambda info: info.filename)
    with tempfile.TemporaryFile() as copy:
        write_archive(copy, ((info.filename, info.file_size, again(info)) for info in ordered))
        if damaged:
            return ArchiveContents({}, tuple(damaged))
        where = _first_difference(file, copy)
    if where is None:
        return ArchiveContents(contents)
    return ArchiveContents(
        {},
        (
            f"byte {where} of the archive belongs to none of its files and is not what harness package writes there: "
            "names, times, attributes or the space between files were edited, or another tool made the archive",
        ),
    )


def _first_difference(first: IO[bytes], second: IO[bytes]) -> int | None:
    first.seek(0)
    second.seek(0)
    position = 0
    while True:
        left, right = first.read(_CHUNK), second.read(_CHUNK)
        if left != right:
            same = next((index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
            return position + (min(len(left), len(right)) if same is None else same)
        if not left:
            return None
        position += len(left)


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

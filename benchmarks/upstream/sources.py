"""Gets PyTorch's own tests from Debian's source package, and keeps them outside the repository.

apt does the download, with its own lists and settings: the machine's apt is not changed, and apt checks the signatures.
The archive is then compared with the hash below, so a table identifies its tests.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class SourceError(Exception):
    """The tests are not available; the text has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Package:
    """One version of the source package. `archive` has the tests in `folder`/test; `sha256` is the archive's hash."""

    suite: str
    version: str
    archive: str
    sha256: str
    folder: str


PACKAGE = Package(
    suite="trixie",
    version="2.6.0+dfsg-7",
    archive="pytorch_2.6.0+dfsg.orig.tar.xz",
    sha256="099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff",
    folder="pytorch-v2.6.0",
)


def fetched(package: Package, cache: Path, mirror: str = "") -> Path:
    """Return the folder with `test`, in the folder `cache`. Download and unpack what is missing.

    `mirror` is a Debian mirror, by default the one that the machine's apt uses. Raise SourceError.
    """
    place = cache / package.version
    if (place / "test").is_dir():
        return place
    archive = cache / package.archive
    if not archive.exists():
        _download(package, cache, mirror or _mirror())
    verify(archive, package.sha256)
    partial = cache / f"{package.version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    _unpack(archive, f"{package.folder}/test", partial)
    partial.rename(place)
    return place


def given(folder: Path) -> Path:
    """Return `folder` as a checkout of PyTorch. Raise SourceError if it is not one."""
    if not (folder / "test" / "test_cuda.py").is_file():
        raise SourceError(f"{folder} is no checkout of PyTorch: it has no file test/test_cuda.py")
    return folder.resolve()


def verify(archive: Path, wanted: str) -> None:
    """Raise SourceError, and remove `archive`, unless its SHA-256 is `wanted`."""
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        archive.unlink()
        raise SourceError(f"{archive} has the SHA-256 {found}, expected {wanted}; it was removed")


def _mirror() -> str:
    """Return the mirror of the machine's apt. It has all releases of Debian, whichever runs here."""
    wanted = ["Created-By: Packages", "Origin: Debian"]
    found = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted], Path.cwd())
    mirrors = [line for line in found.split() if "security" not in line]
    if not mirrors:
        raise SourceError("apt knows no mirror of Debian: name one (--mirror), or use --source FOLDER")
    return mirrors[0]


def _download(package: Package, cache: Path, mirror: str) -> None:
    own = cache / "apt"
    for folder in (own / "lists" / "partial", own / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    listed = own / "sources.list"
    listed.write_text(f"deb-src [signed-by={KEYRING}] {mirror} {package.suite} main\n")
    settings = {
        "Dir::Etc::SourceList": listed,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": own / "lists",
        "Dir::Cache": own / "cache",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    _run(["apt-get", *options, "update"], cache)
    _run(["apt-get", *options, "source", "--download-only", f"pytorch={package.version}"], cache)
    # apt writes a "+" of a version as the mirror does.
    escaped = cache / urllib.parse.quote(package.archive)
    if escaped.exists() and escaped.name != package.archive:
        escaped.rename(cache / package.archive)
    shutil.rmtree(own)
    if not (cache / package.archive).exists():
        raise SourceError(f"apt-get source has not brought {package.archive} to {cache}")


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SourceError(f"there is no {command[0]} here; get PyTorch's sources, and use --source FOLDER") from None
    # apt-get warns and exits with 0 if it could not reach the mirror.
    if done.returncode != 0 or "\nE: " in f"\n{done.stderr}" or "Failed to fetch" in done.stderr:
        raise SourceError(f"{' '.join(command)!r} failed:\n{done.stderr.strip()}\nor use --source FOLDER")
    return done.stdout


def _unpack(archive: Path, folder: str, place: Path) -> None:
    """Unpack the files below `folder` of the archive to `place`/test."""
    place.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if not member.name.startswith(f"{folder}/") or not member.isfile():
                continue
            if ".." in name.parts:
                raise SourceError(f"{archive} has a file {member.name!r}, which is outside of its folder")
            source = tar.extractfile(member)  # `extract` has its filter for hostile archives only since Python 3.11.4
            assert source is not None
            target = place / name.relative_to(PurePosixPath(folder).parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
    if not (place / "test").is_dir():
        raise SourceError(f"{archive} has no folder {folder}")

"""Finished libraries of simulated devices in one file, so that other machines need not build them.

The file is a tar archive: ``manifest.json`` names each library's folder, key and hash, and only the files that it names
are taken. Libraries are code: import files only from people whose code you would run.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from harness.core.atomic import open_atomically
from harness.core.errors import HarnessError
from harness.core.models import StrictModel
from harness.sim.native import build
from harness.sim.native.build import BuildRecipe

MANIFEST = "manifest.json"
#: Maximum bytes of the manifest, and of all libraries.
_MOST_MANIFEST = 1_000_000
_MOST = 2_000_000_000

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


class LibraryArchiveError(HarnessError):
    """An archive of libraries cannot be read, or its libraries cannot be kept."""


class LibraryEntry(StrictModel):
    """The libraries of one build. `files`: the SHA-256 of each by its name."""

    noun: Annotated[str, Field(max_length=200)]
    folder: Name
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
    files: Annotated[dict[Name, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]], Field(min_length=1)]


class LibraryManifest(StrictModel):
    """The manifest of an archive."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    entries: Annotated[tuple[LibraryEntry, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class ImportedLibrary:
    """A build of an archive. `there`: the cache had it already. `needed`: this machine would build the same."""

    noun: str
    key: str
    there: bool
    needed: bool


def write_library_archive(
    path: Path, recipes: Iterable[BuildRecipe], environ: Mapping[str, str] = os.environ
) -> list[LibraryEntry]:
    """Write the libraries of these recipes, and build those that the cache lacks.

    Raise WriteError, BuildError.
    """
    made = [(recipe, build.build_libraries(recipe, environ=environ)) for recipe in recipes]
    entries = [
        LibraryEntry(
            noun=recipe.noun,
            folder=recipe.folder,
            key=folder.name,
            files={name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in recipe.files},
        )
        for recipe, folder in made
    ]
    manifest = LibraryManifest.model_validate({"schema": 1, "entries": tuple(entries)}).model_dump_json(by_alias=True)
    with open_atomically(path) as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
        _put(tar, MANIFEST, manifest.encode())
        for entry, (_, folder) in zip(entries, made, strict=True):
            for name in entry.files:
                _put(tar, _member(entry, name), (folder / name).read_bytes())
    return entries


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))


def read_library_archive(
    path: Path, wanted: Sequence[BuildRecipe] = (), environ: Mapping[str, str] = os.environ
) -> list[ImportedLibrary]:
    """Put the libraries of an archive into the cache. `wanted`: the libraries that this machine would build.

    Raise LibraryArchiveError. Nothing is cached unless every library agrees with the manifest.
    """
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            manifest = _manifest(tar, path)
            contents = _contents(tar, manifest, path)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LibraryArchiveError(f"{str(path)!r} is no archive of libraries: {why}") from None
    keys = {(recipe.folder, build.cache_key(recipe)) for recipe in wanted}
    imported = []
    for entry in manifest.entries:
        cache = build.open_cache(environ, entry.noun, entry.folder)
        there = all((cache / entry.key / name).is_file() for name in entry.files)
        if not there:
            try:
                build.keep_libraries(cache / entry.key, {name: contents[_member(entry, name)] for name in entry.files})
            except OSError as error:
                raise LibraryArchiveError(f"cannot write to the cache {str(cache)!r}: {error.strerror}") from None
        imported.append(ImportedLibrary(entry.noun, entry.key, there, (entry.folder, entry.key) in keys))
    return imported


def _member(entry: LibraryEntry, name: str) -> str:
    return f"{entry.folder}/{entry.key}/{name}"


def _manifest(tar: tarfile.TarFile, path: Path) -> LibraryManifest:
    first = tar.next()
    if first is None or first.name != MANIFEST or not first.isfile() or first.size > _MOST_MANIFEST:
        raise LibraryArchiveError(f"{str(path)!r} is no archive of libraries: it does not begin with {MANIFEST}")
    text = tar.extractfile(first)
    assert text is not None  # it is a file
    try:
        return LibraryManifest.model_validate_json(text.read())
    except (ValidationError, json.JSONDecodeError) as error:
        raise LibraryArchiveError(
            f"{str(path)!r}: {MANIFEST} is not valid: {' '.join(str(error).split())[:300]}"
        ) from None


def _contents(tar: tarfile.TarFile, manifest: LibraryManifest, path: Path) -> dict[str, bytes]:
    """Return the libraries that the manifest names, by the names of their members.

    Raise LibraryArchiveError unless all of them are present, with their hashes, and nothing else is.
    """
    wanted = {_member(entry, name): digest for entry in manifest.entries for name, digest in entry.files.items()}
    members: dict[str, bytes] = {}
    left = _MOST
    while (member := tar.next()) is not None:
        if member.name not in wanted or not member.isfile() or member.name in members:
            raise LibraryArchiveError(
                f"{str(path)!r} has a member that its manifest does not list: {member.name[:200]!r}"
            )
        left -= member.size
        if left < 0:
            raise LibraryArchiveError(f"{str(path)!r} has more than {_MOST:,} bytes of libraries")
        file = tar.extractfile(member)
        assert file is not None  # it is a file
        members[member.name] = file.read()
    for name, digest in wanted.items():
        if name not in members:
            raise LibraryArchiveError(f"{str(path)!r} lacks {name!r}, which its manifest lists")
        if hashlib.sha256(members[name]).hexdigest() != digest:
            raise LibraryArchiveError(f"{str(path)!r}: {name!r} differs from its manifest")
    return members

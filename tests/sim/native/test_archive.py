"""Archives of built libraries: transfer from one cache to another, and damaged or hostile archives."""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import WriteError
from harness.sim.native import build
from harness.sim.native.archive import ImportedLibrary, LibraryArchiveError, read_library_archive, write_library_archive
from harness.sim.native.build import BuildRecipe
from harness.sim.native.toolchain import Toolchain

FILES = {"libtoy.so": b"\x7fELF toy", "libother.so.1": b"\x7fELF other"}


def recipe(folder: Path, compiler: str = "g++ 12") -> BuildRecipe:
    """Return the recipe of a machine with this compiler."""
    root = folder / "root"
    (root / "toy").mkdir(parents=True, exist_ok=True)
    (root / "CMakeLists.txt").write_text("project(toy)\n")
    (root / "toy" / "one.cpp").write_text("int one;\n")
    tools = Toolchain(compiler=("g++",), compiler_text=f"g++: {compiler}", identity=(compiler,))
    return BuildRecipe("the toy", "toy", root, ("toy",), ("toy",), tuple(FILES), tools)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return an archive of libraries from a cache."""
    made = recipe(tmp_path)
    environ = {"HARNESS_CACHE_DIR": str(tmp_path / "first")}
    folder = tmp_path / "first" / made.folder / build.cache_key(made)
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    write_library_archive(tmp_path / "toy.tar.gz", [made], environ)
    return tmp_path / "toy.tar.gz"


def read(tmp_path: Path, path: Path, compiler: str = "g++ 12") -> list[ImportedLibrary]:
    return read_library_archive(path, [recipe(tmp_path, compiler)], {"HARNESS_CACHE_DIR": str(tmp_path / "second")})


def cached(tmp_path: Path) -> dict[str, bytes]:
    cache = tmp_path / "second" / "toy"
    return {path.name: path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def test_another_machine_needs_no_build(tmp_path: Path, archive: Path) -> None:
    (found,) = read(tmp_path, archive)
    assert (found.noun, found.there, found.needed) == ("the toy", False, True)
    made, environ = recipe(tmp_path), {"HARNESS_CACHE_DIR": str(tmp_path / "second")}
    folder = build.build_libraries(made, environ=environ)  # the compiler does not exist, so a build would fail
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_what_is_in_the_cache_stays(tmp_path: Path, archive: Path) -> None:
    read(tmp_path, archive)
    (found,) = read(tmp_path, archive)
    assert found.there


def test_libraries_of_another_compiler_are_not_what_is_needed(tmp_path: Path, archive: Path) -> None:
    (found,) = read(tmp_path, archive, compiler="g++ 13")
    assert not found.needed


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member)) is not None}


def pack(path: Path, contents: Mapping[str, bytes | str]) -> Path:
    """Write an archive; a text is the target of a link."""
    with tarfile.open(path, "w:gz") as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                tar.addfile(member)
            else:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def changed(contents: dict[str, bytes], change: Callable[[Any], object]) -> dict[str, bytes]:
    """Return the members with a changed manifest."""
    manifest = json.loads(contents["manifest.json"])
    change(manifest)
    return {**contents, "manifest.json": json.dumps(manifest).encode()}


def rename_folder(manifest: Any) -> None:
    manifest["entries"][0]["folder"] = "../toy"


def rename_file(manifest: Any) -> None:
    files = manifest["entries"][0]["files"]
    files["../../evil.so"] = files.pop("libtoy.so")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda m: {**m, "../evil.so": b"x"}, "a member that its manifest does not list: '../evil.so'"),
        (lambda m: {**m, "toy/link": "/etc/passwd"}, "a member that its manifest does not list: 'toy/link'"),
        (lambda m: {name: "/etc/passwd" if name.endswith("y.so") else data for name, data in m.items()}, "not list"),
        (lambda m: {name: data for name, data in m.items() if not name.endswith("y.so")}, "which its manifest lists"),
        (
            lambda m: {name: data + b"x" if name.endswith("y.so") else data for name, data in m.items()},
            "differs from its manifest",
        ),
        (lambda m: {"evil": b"", **m}, "does not begin with manifest.json"),
        (lambda m: {"manifest.json": b"{", **{k: v for k, v in m.items() if "/" in k}}, "manifest.json is not valid"),
        (lambda m: changed(m, rename_folder), "manifest.json is not valid"),
        (lambda m: changed(m, rename_file), "manifest.json is not valid"),
        (lambda m: changed(m, lambda manifest: manifest.update(schema=2)), "manifest.json is not valid"),
        (lambda m: changed(m, lambda manifest: manifest.update(entries=[])), "manifest.json is not valid"),
    ],
)
def test_a_damaged_archive_puts_nothing_into_the_cache(
    tmp_path: Path, archive: Path, damage: Callable[[dict[str, bytes]], dict[str, bytes | str]], said: str
) -> None:
    path = pack(tmp_path / "damaged.tar.gz", damage(members(archive)))
    with pytest.raises(LibraryArchiveError, match=said):
        read(tmp_path, path)
    assert cached(tmp_path) == {}
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("data", [b"", b"no archive", None])
def test_a_file_that_is_no_archive(tmp_path: Path, archive: Path, data: bytes | None) -> None:
    path = tmp_path / "other"
    path.write_bytes(archive.read_bytes()[:-40] if data is None else data)
    with pytest.raises(LibraryArchiveError, match="is no archive of libraries: "):
        read(tmp_path, path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LibraryArchiveError, match="No such file"):
        read(tmp_path, tmp_path / "nothing")


@pytest.mark.usefixtures("archive")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"cannot write .*No such file"):
        write_library_archive(
            tmp_path / "nowhere" / "a.tar.gz", [recipe(tmp_path)], {"HARNESS_CACHE_DIR": str(tmp_path / "first")}
        )


def test_a_damaged_stream_is_an_error_of_the_archive(tmp_path: Path, archive: Path) -> None:
    """The damage is within a member: `tarfile` reports damage between members as an error of its own."""
    plain = io.BytesIO()
    with tarfile.open(archive) as packed, tarfile.open(fileobj=plain, mode="w") as larger:
        for member in packed.getmembers():
            data = packed.extractfile(member)
            assert data is not None
            content = data.read() + (b"" if member.name == "manifest.json" else bytes(1 << 20))
            member.size = len(content)
            larger.addfile(member, io.BytesIO(content))
    tar = plain.getvalue()
    packer = zlib.compressobj(wbits=31)
    whole = packer.compress(tar[: len(tar) // 3]) + packer.flush(zlib.Z_FULL_FLUSH)
    archive.write_bytes(whole + b"\x07" * 100)  # no block of a stream has this type
    with pytest.raises(LibraryArchiveError, match="is no archive of libraries: "):
        read(tmp_path, archive)
    assert cached(tmp_path) == {}

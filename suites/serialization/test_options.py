"""Options of `torch.save` and `torch.load`: checksums, byte order, mapping, empty storages, allowed classes."""

from __future__ import annotations

import io
import mmap
import pickle
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import serialization
from torch.serialization import LoadEndianness
from torch.utils.serialization import config

from ._torch_private import checkpoint_offset, package_registry
from .files import saved


def loaded(data: bytes, **options: Any) -> Any:
    return torch.load(io.BytesIO(data), **options)


class Colour:
    """A class that no file may instantiate unless it is allowed."""

    def __init__(self) -> None:
        self.name = "red"


class Shape:
    """Another class that must be allowed."""


@pytest.fixture
def no_globals() -> Any:
    """Empty the list of allowed classes, and restore it at the end."""
    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    yield
    serialization.clear_safe_globals()
    serialization.add_safe_globals(before)


@pytest.mark.usefixtures("no_globals")
def test_add_safe_globals_allows_classes_until_they_are_cleared() -> None:
    """`add_safe_globals` adds to the list, `get_safe_globals` returns it, and `clear_safe_globals` empties it."""
    data = saved(Colour())
    with pytest.raises(pickle.UnpicklingError, match="Colour"):
        loaded(data)
    serialization.add_safe_globals([Shape])
    serialization.add_safe_globals([Colour])
    assert set(serialization.get_safe_globals()) == {Colour, Shape}
    assert loaded(data).name == "red"
    serialization.clear_safe_globals()
    assert serialization.get_safe_globals() == []
    with pytest.raises(pickle.UnpicklingError, match="Colour"):
        loaded(data)


@pytest.mark.usefixtures("no_globals")
def test_safe_globals_keeps_what_was_allowed_before() -> None:
    """`safe_globals` allows its classes in its block; then, also after an exception, only the earlier ones are."""
    serialization.add_safe_globals([Shape])
    data = saved(Colour())
    with serialization.safe_globals([Colour]):
        assert set(serialization.get_safe_globals()) == {Colour, Shape}
        assert loaded(data).name == "red"
    assert serialization.get_safe_globals() == [Shape]
    with pytest.raises(LookupError), serialization.safe_globals([Colour]):
        raise LookupError
    assert serialization.get_safe_globals() == [Shape]


@pytest.mark.usefixtures("no_globals")
def test_get_unsafe_globals_in_checkpoint_names_what_is_not_allowed(tmp_path: Path) -> None:
    """`get_unsafe_globals_in_checkpoint` names the classes of a file that `weights_only` refuses, and loads nothing."""
    path = str(tmp_path / "file")
    torch.save({"a": Colour(), "b": Shape(), "c": torch.ones(2)}, path)
    names = {f"{each.__module__}.{each.__qualname__}" for each in (Colour, Shape)}
    assert set(serialization.get_unsafe_globals_in_checkpoint(path)) == names
    with serialization.safe_globals([Colour]):
        assert serialization.get_unsafe_globals_in_checkpoint(path) == [f"{Shape.__module__}.{Shape.__qualname__}"]
    torch.save(torch.ones(2), path)
    assert serialization.get_unsafe_globals_in_checkpoint(path) == []


@pytest.mark.parametrize("wanted", [True, False])
def test_set_crc32_options_decides_whether_checksums_are_written(wanted: bool) -> None:
    """A file without checksums loads like a file with them, and its archive has no valid ones."""
    before = serialization.get_crc32_options()
    assert before is True
    tensor = torch.arange(1000.0)
    try:
        serialization.set_crc32_options(wanted)
        assert serialization.get_crc32_options() is wanted
        data = saved(tensor)
    finally:
        serialization.set_crc32_options(before)
    assert torch.equal(loaded(data), tensor)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert (archive.testzip() is None) is wanted


def test_default_load_endianness_is_for_files_without_a_byte_order() -> None:
    """A file that does not record its byte order is read in the default one, and other files in the recorded one.

    An unknown byte order is refused.
    """
    assert serialization.get_default_load_endianness() in (None, LoadEndianness.NATIVE)
    tensor = torch.arange(4, dtype=torch.int32)
    data = saved(tensor)

    def marked(mark: str | None) -> bytes:
        target = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w") as new:
            for name in old.namelist():
                if not name.endswith("byteorder"):
                    new.writestr(name, old.read(name))
                elif mark is not None:
                    new.writestr(name, mark)
        return target.getvalue()

    swapped = [0, 1 << 24, 2 << 24, 3 << 24]
    before = serialization.get_default_load_endianness()
    try:
        for default, wanted in ((LoadEndianness.LITTLE, [0, 1, 2, 3]), (LoadEndianness.BIG, swapped)):
            serialization.set_default_load_endianness(default)
            assert serialization.get_default_load_endianness() is default
            assert loaded(marked(None)).tolist() == wanted
            assert loaded(data).tolist() == [0, 1, 2, 3]
            assert loaded(marked("little")).tolist() == [0, 1, 2, 3]
            assert loaded(marked("big")).tolist() == swapped
            with pytest.raises(ValueError, match="Unknown endianness type: middle"):
                loaded(marked("middle"))
    finally:
        serialization.set_default_load_endianness(before)
    with pytest.raises(TypeError):
        serialization.set_default_load_endianness("little")


def test_skip_data_leaves_out_the_bytes_of_storages(tmp_path: Path) -> None:
    """Within `skip_data`, a file has room for the bytes of each storage, but not the bytes; shapes are saved."""
    value = {"a": torch.arange(1.0, 7.0).view(2, 3).t(), "b": torch.ones(5, dtype=torch.int16)}
    path, whole = tmp_path / "empty" / "file", tmp_path / "whole" / "file"  # the archive contains its name
    path.parent.mkdir()
    whole.parent.mkdir()
    with serialization.skip_data():
        torch.save(value, path)
    torch.save(value, whole)
    assert path.stat().st_size == whole.stat().st_size
    found = torch.load(path)
    assert found["a"].stride() == value["a"].stride()
    assert {name: each.shape for name, each in found.items()} == {name: each.shape for name, each in value.items()}
    assert not found["a"].any()
    assert not found["b"].any()
    full = torch.load(whole)
    assert torch.equal(full["a"], value["a"])
    old = io.BytesIO(saved(value, _use_new_zipfile_serialization=False))
    with serialization.skip_data():
        assert torch.load(whole)["b"].shape == (5,)
        assert torch.load(old)["b"].shape == (5,)
    assert len(old.read()) >= 6 * 4 + 5 * 2  # the bytes of the storages


def test_load_mmap_shares_changes_with_the_file_only_if_it_is_asked(tmp_path: Path) -> None:
    """With `mmap=True`, changes to a tensor are private by default, and reach the file with `MAP_SHARED`."""
    path = str(tmp_path / "file")
    torch.save(torch.zeros(1024), path)
    torch.load(path, mmap=True).fill_(1)
    assert not torch.load(path).any()
    with serialization.set_default_mmap_options(mmap.MAP_SHARED):
        torch.load(path, mmap=True).fill_(2)
    assert (torch.load(path) == 2).all()
    torch.load(path, mmap=True).fill_(3)
    assert (torch.load(path) == 2).all()
    with pytest.raises(ValueError, match="MAP_PRIVATE"):
        serialization.set_default_mmap_options(mmap.MAP_ANONYMOUS)


def test_load_mmap_needs_the_path_of_an_archive(tmp_path: Path) -> None:
    """`mmap=True` is refused for a buffer and for the old format."""
    with pytest.raises(ValueError, match="path"):
        loaded(saved(torch.ones(2)), mmap=True)
    path = str(tmp_path / "file")
    torch.save(torch.ones(2), path, _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError, match=rf"mmap.*{re.escape(path)}"):
        torch.load(path, mmap=True)


def test_config_load_mmap_and_calculate_storage_offsets(tmp_path: Path) -> None:
    """`config.load.mmap` is the default of `mmap`; with `calculate_storage_offsets`, the same values are loaded.

    The computed offsets of storages are correct without reading the archive, also for empty storages. Tensors on the
    meta device know the offset of their bytes in the file.
    """
    empty, numbers = torch.empty(0), torch.arange(40.0)
    value = [empty, numbers, empty[:0], torch.ones(3), torch.empty(0, 2), numbers[7:], torch.tensor(5), empty]
    for size in range(0, 64, 5):  # the offsets of storages are rounded up
        value += [torch.arange(size, dtype=torch.uint8), torch.empty(0)]
    # The name of the file is part of each storage's name in the archive.
    paths = [str(tmp_path / ("f" * length)) for length in range(4, 68, 9)]
    for path in paths:
        torch.save(value, path)
        for settings in ({"load.mmap": True}, {"load.mmap": True, "load.calculate_storage_offsets": True}):
            with config.patch(settings):
                assert all(map(torch.equal, torch.load(path), value))
                with pytest.raises(ValueError, match="file path"):
                    loaded(saved(numbers))
                assert torch.equal(loaded(saved(numbers), mmap=False), numbers)
    data = Path(path).read_bytes()
    for place in ("meta", torch.device("meta")):
        for tensor, wanted in zip(torch.load(path, map_location=place), value, strict=True):
            assert tensor.is_meta
            start, size = checkpoint_offset(tensor), wanted.untyped_storage().nbytes()
            assert data[start : start + size] == bytes(wanted.untyped_storage().tolist())


def test_register_package_chooses_by_priority() -> None:
    """The package with the lowest number is called first. If it returns None, the next one gets the storage."""
    seen: list[str] = []
    registry = package_registry()
    before = list(registry)

    def tag(name: str, answer: str | None) -> Any:
        def tagger(_: object) -> str | None:
            seen.append(name)
            return answer

        return tagger

    def restore(storage: Any, location: str) -> Any:
        return storage if location == "place of a test" else None

    try:
        serialization.register_package(3, tag("second", "place of a test"), restore)
        serialization.register_package(1, tag("first", None), lambda *_: None)
        data = saved(torch.arange(3.0))
        assert seen == ["first", "second"]
        assert b"place of a test" in data
        assert loaded(data).tolist() == [0, 1, 2]
    finally:
        registry[:] = before
    with pytest.raises(RuntimeError, match="place of a test"):
        loaded(data)


@pytest.mark.parametrize("what", ["magic", "protocol"])
def test_load_refuses_the_old_format_with_other_numbers(what: str) -> None:
    """A file of the old format begins with two fixed numbers; a file with other numbers is refused.

    A description of the machine follows them.
    """
    data = io.BytesIO(saved(torch.ones(2), _use_new_zipfile_serialization=False))
    magic, protocol = pickle.load(data), pickle.load(data)
    place = data.tell()
    machine = pickle.load(data)
    assert machine["protocol_version"] == protocol
    assert machine["little_endian"] is (sys.byteorder == "little")
    data.seek(place)
    rest = data.read()
    assert loaded(pickle.dumps(magic, 2) + pickle.dumps(protocol, 2) + rest).tolist() == [1, 1]
    changed = (magic + 1, protocol) if what == "magic" else (magic, protocol + 1)
    with pytest.raises(RuntimeError, match=what):
        loaded(b"".join(pickle.dumps(each, 2) for each in changed) + rest)


def test_save_records_that_the_archive_has() -> None:
    """An archive has the pickle, the byte order, and each storage once, at an offset that is a multiple of 64 bytes."""
    shared = torch.arange(40.0)
    data = saved([shared, shared[3:], torch.ones(3)])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        assert {
            "data.pkl",
            ".format_version",
            ".storage_alignment",
            "byteorder",
            "version",
            "data/0",
            "data/1",
        } <= names
        assert "data/2" not in names
        root = archive.namelist()[0].partition("/")[0]
        assert archive.read(f"{root}/byteorder") == sys.byteorder.encode()
        assert archive.read(f"{root}/.format_version") == b"1"
        assert archive.read(f"{root}/.storage_alignment") == b"64"
        for number in (0, 1):
            info = archive.getinfo(f"{root}/data/{number}")
            head = data[info.header_offset : info.header_offset + 30]
            start = (
                info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            )
            assert start % 64 == 0
        assert archive.read(f"{root}/data/1") == torch.ones(3).numpy().tobytes()

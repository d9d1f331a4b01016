"""The format from before torch 1.6, which `torch.load` still reads: files, compressed ones, strings of Python 2."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from .files import loaded, saved

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def old_file(content: bytes, keys: list[str], storages: bytes = b"") -> bytes:
    """Return the bytes of a file of the old format, from the pickle of its content and the bytes of its storages."""
    machine = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    heads = b"".join(pickle.dumps(each, 2) for each in (MAGIC, PROTOCOL, machine))
    return heads + content + pickle.dumps(keys, 2) + storages


class Pickler(pickle.Pickler):
    """Writes the tuples that name storages as persistent ids."""

    def persistent_id(self, value: Any) -> Any:
        return value if isinstance(value, tuple) and value[:1] == ("storage",) else None


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(value)
    return buffer.getvalue()


def test_old_format_has_several_storages_in_a_file(tmp_path: Path) -> None:
    """Each storage of a file has its own bytes, from a path, an open file, and a compressed one (read sequentially).

    Shared storages remain shared.
    """
    x = torch.arange(6, dtype=torch.int16)
    value = [x, torch.ones(3), x[2:4], torch.tensor(7.0, dtype=torch.float64)]
    path, packed = tmp_path / "file", tmp_path / "file.gz"
    torch.save(value, path, _use_new_zipfile_serialization=False)
    with gzip.open(packed, "wb") as file:
        file.write(path.read_bytes())
    ways = [torch.load(path)]
    with path.open("rb") as plain:
        ways.append(torch.load(plain))
    with gzip.open(packed) as compressed:
        ways.append(torch.load(compressed))
    for found in ways:
        assert all(map(torch.equal, found, value))
        found[0].fill_(9)
        assert found[2].tolist() == [9, 9]


def test_old_format_keeps_modules(tmp_path: Path) -> None:
    """A module is saved with its class, and loaded without `weights_only`."""
    module = torch.nn.Linear(2, 3)
    torch.save(module, tmp_path / "file", _use_new_zipfile_serialization=False)
    found = torch.load(tmp_path / "file", weights_only=False)
    assert isinstance(found, torch.nn.Linear)
    assert all(map(torch.equal, found.state_dict().values(), module.state_dict().values()))


@pytest.mark.parametrize("weights_only", [True, False])
def test_load_reads_strings_of_python_2_as_utf8(weights_only: bool) -> None:
    """Strings of Python 2 are read as UTF-8 by default, otherwise with the given `encoding`."""
    text = "é".encode()
    data = old_file(b"\x80\x02U" + bytes([len(text)]) + text + b".", [])
    assert loaded(data, weights_only=weights_only) == "é"
    assert loaded(data, weights_only=False, encoding="latin1") == "Ã©"


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("weights_only", [True, False])
def test_load_reads_views_of_a_storage(weights_only: bool) -> None:
    """A view of a storage, as saved before torch 0.4, is a part of its storage and shares its memory.

    A view that is named twice is one storage.
    """
    whole = ("storage", torch.FloatStorage, "0", "cpu", 5, None)
    view = (*whole[:5], ("0v", 2, 3))
    # Equal tuples are pickled once only if they are the same object.
    content = pickled([whole, view, (*view,), torch.float32])
    numbers = torch.arange(5.0)
    data = old_file(content, ["0"], struct.pack("<q", 5) + numbers.numpy().tobytes())
    storage, part, again, _ = loaded(data, weights_only=weights_only)
    first, second, third = (
        torch.empty(0).set_(each.untyped(), 0, (each.untyped().nbytes() // 4,)) for each in (storage, part, again)
    )
    assert first.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert second.tolist() == third.tolist() == [2.0, 3.0, 4.0]
    second.fill_(7.0)
    assert first.tolist() == [0.0, 1.0, 7.0, 7.0, 7.0]
    assert third.tolist() == [7.0] * 3


def test_load_refuses_archives_of_torchscript() -> None:
    """Loading a TorchScript archive with constants warns, and raises with `weights_only`."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(torch.ones(2)))) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.writestr(f"{old.namelist()[0].partition('/')[0]}/constants.pkl", b"")
    with (
        pytest.warns(UserWarning, match="looks like a TorchScript archive"),
        pytest.raises(RuntimeError, match="TorchScript archives"),
    ):
        loaded(target.getvalue())


def test_save_refuses_what_is_no_file() -> None:
    """An object that is no path and has no `write` is refused with the missing method's name, in both formats."""
    for zipped in (True, False):
        with pytest.raises(
            AttributeError, match="expected 'f' to be string, path, or a file-like object with a 'write'"
        ):
            torch.save(torch.ones(1), 5, _use_new_zipfile_serialization=zipped)  # type: ignore[arg-type]


def test_load_to_a_device_that_torch_lacks_is_refused_by_its_name() -> None:
    """A place on a device type without a module in torch is refused, and the error names the remedy."""
    with pytest.raises(RuntimeError, match=r"HPU device module is not registered.*map_location"):
        loaded(saved(torch.ones(2)), map_location="hpu:0")

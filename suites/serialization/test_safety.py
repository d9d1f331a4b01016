"""Files that are damaged or malicious: an error that says so, and nothing of them is run or believed."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from .files import loaded, saved

#: What a damaged file may raise; the older format's reader is not choosy.
REFUSALS = (RuntimeError, EOFError, OSError, ValueError, LookupError, pickle.UnpicklingError)


class Trap:
    """A value whose pickle calls a function: it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_load_weights_only_does_not_run_a_pickle(tmp_path: Path) -> None:
    """Contract: by default, and with `weights_only=True`, a file that would call a function when it is loaded is an
    error that names the function, and it is not called. Told to trust it, torch calls it (the control)."""
    path = tmp_path / "sprung"
    data = saved({"weights": torch.ones(3), "trap": Trap(path)})

    for load in (lambda: loaded(data), lambda: torch.load(io.BytesIO(data))):
        with pytest.raises(pickle.UnpicklingError, match=r"(?i)weights.only") as refusal:
            load()
        assert "mkdir" in str(refusal.value)
        assert not path.exists()

    torch.load(io.BytesIO(data), weights_only=False)
    assert path.exists()


class Settings:
    """A harmless class of the case's own."""

    def __init__(self) -> None:
        self.rate = 0.5


def test_safe_globals_allows_a_class_by_name() -> None:
    """Contract: an object of a class that was not allowed is refused, and loaded within the block that allows the
    class, and refused after it again."""
    data = saved(Settings())

    with pytest.raises(pickle.UnpicklingError, match="Settings"):
        loaded(data)
    with torch.serialization.safe_globals([Settings]):
        assert loaded(data).rate == 0.5
    with pytest.raises(pickle.UnpicklingError, match="Settings"):
        loaded(data)


def test_load_weights_only_takes_plain_values(device: torch.device) -> None:
    """Contract: tensors, numbers, texts, containers of them, sizes, types and devices are loaded as they were."""
    value = {
        "tensor": torch.arange(3, device=device),
        "list": [1, 2.5, True, None, "text", b"bytes", 1 + 2j],
        "tuple": (torch.float16, device, torch.Size([2, 3])),
        "set": {1, 2},
        7: {"nested": {}},
    }

    back = loaded(saved(value))

    assert torch.equal(back.pop("tensor"), value.pop("tensor"))
    assert back == value
    assert [type(one) for one in back["list"]] == [int, float, bool, type(None), str, bytes, complex]
    assert [type(one) for one in back["tuple"]] == [torch.dtype, torch.device, torch.Size]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.9, -1], ids=lambda kept: f"kept_{kept}")
def test_load_refuses_a_file_that_was_cut(device: torch.device, zipped: bool, kept: float) -> None:
    """Contract: of a file that ends too early nothing is loaded: an error, at any place of the cut; never a tensor with
    what happened to be in memory."""
    data = saved(torch.arange(10_000, device=device), _use_new_zipfile_serialization=zipped)
    end = int(kept * len(data)) if isinstance(kept, float) else kept

    with pytest.raises(REFUSALS):
        loaded(data[:end])


@pytest.mark.parametrize("data", [b"", b"\0" * 1000, b"PK\x03\x04" + b"\xff" * 500, b"hello world " * 50], ids=range(4))
def test_load_refuses_bytes_that_save_did_not_write(data: bytes) -> None:
    """Contract: bytes that `torch.save` did not write are an error."""
    with pytest.raises(REFUSALS):
        loaded(data)


def test_save_writes_a_zip_file_whose_checksums_can_be_checked(device: torch.device) -> None:
    """Contract: the file is a ZIP archive with right check sums: a tool that checks them finds nothing wrong, and finds
    a single bit that was flipped among the values. (`torch.load` itself does not look at them.)"""
    data = saved(torch.full((1000,), 7.0, device=device))
    damaged = bytearray(data)
    damaged[data.index(torch.full((4,), 7.0).numpy().tobytes()) + 2] ^= 1

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
    with zipfile.ZipFile(io.BytesIO(bytes(damaged))) as archive:
        assert archive.testzip() is not None


def test_load_and_save_name_a_path_that_is_not_there(tmp_path: Path) -> None:
    """Contract: loading from a path that is not there is a FileNotFoundError with the path, saving into a folder that
    is not there an error that names it."""
    with pytest.raises(FileNotFoundError) as refusal:
        torch.load(tmp_path / "missing.pt", weights_only=True)
    assert "missing.pt" in str(refusal.value)

    with pytest.raises((RuntimeError, OSError), match="nowhere"):
        torch.save(torch.ones(1), tmp_path / "nowhere" / "x.pt")


def test_save_refuses_what_pickle_cannot_take() -> None:
    """Contract: a value that pickle cannot take, a function made on the spot, is an error of `save`, not of the load
    that would come some day."""
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError), match=r"(?i)pickle|local"):
        saved(lambda: None)

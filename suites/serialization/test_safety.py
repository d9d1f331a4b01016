"""Damaged or malicious files: loading raises, and none of their contents are executed."""

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

#: The exceptions for a damaged file. The reader of the old format raises various ones.
REFUSALS = (RuntimeError, EOFError, OSError, ValueError, LookupError, pickle.UnpicklingError)


class Trap:
    """A value whose pickle calls a function that creates a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_load_weights_only_does_not_run_a_pickle(tmp_path: Path) -> None:
    """By default and with `weights_only=True`, a file that would call a function raises and does not call it.

    The error names the function. With `weights_only=False`, torch calls it (control).
    """
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
    """A harmless class defined by the case."""

    def __init__(self) -> None:
        self.rate = 0.5


def test_safe_globals_allows_a_class_by_name() -> None:
    """An object of a class that is not allowed raises; it is loaded only within the `safe_globals` block."""
    data = saved(Settings())

    with pytest.raises(pickle.UnpicklingError, match="Settings"):
        loaded(data)
    with torch.serialization.safe_globals([Settings]):
        assert loaded(data).rate == 0.5
    with pytest.raises(pickle.UnpicklingError, match="Settings"):
        loaded(data)


def test_load_weights_only_takes_plain_values(device: torch.device) -> None:
    """Tensors, numbers, strings, containers of them, sizes, dtypes and devices are loaded unchanged."""
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
def test_load_refuses_a_truncated_file(device: torch.device, zipped: bool, kept: float) -> None:
    """A truncated file raises at any length, and never gives a tensor with uninitialized memory."""
    data = saved(torch.arange(10_000, device=device), _use_new_zipfile_serialization=zipped)
    end = int(kept * len(data)) if isinstance(kept, float) else kept

    with pytest.raises(REFUSALS):
        loaded(data[:end])


@pytest.mark.parametrize("data", [b"", b"\0" * 1000, b"PK\x03\x04" + b"\xff" * 500, b"hello world " * 50], ids=range(4))
def test_load_refuses_bytes_that_save_did_not_write(data: bytes) -> None:
    """Bytes that `torch.save` did not write raise."""
    with pytest.raises(REFUSALS):
        loaded(data)


def test_save_writes_a_zip_file_whose_checksums_can_be_checked(device: torch.device) -> None:
    """The file is a ZIP archive with correct checksums, which detect a single flipped bit in the values.

    `torch.load` itself does not check them.
    """
    data = saved(torch.full((1000,), 7.0, device=device))
    damaged = bytearray(data)
    damaged[data.index(torch.full((4,), 7.0).numpy().tobytes()) + 2] ^= 1

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
    with zipfile.ZipFile(io.BytesIO(bytes(damaged))) as archive:
        assert archive.testzip() is not None


def test_load_and_save_name_a_missing_path(tmp_path: Path) -> None:
    """Loading from a missing path raises FileNotFoundError with the path, and so does saving to a missing directory."""
    with pytest.raises(FileNotFoundError) as refusal:
        torch.load(tmp_path / "missing.pt", weights_only=True)
    assert "missing.pt" in str(refusal.value)

    with pytest.raises((RuntimeError, OSError), match="nowhere"):
        torch.save(torch.ones(1), tmp_path / "nowhere" / "x.pt")


def test_save_refuses_what_pickle_cannot_take() -> None:
    """A value that pickle does not support, such as a local function, raises in `save`."""
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError), match=r"(?i)pickle|local"):
        saved(lambda: None)

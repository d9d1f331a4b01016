"""The functions of `torch.serialization` for places, versions and other kinds of files."""

from __future__ import annotations

import io
import os
import sys
import types
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import serialization

from .files import saved


def module_of(version: str) -> types.ModuleType:
    made = types.ModuleType("some_module")
    made.__version__ = version  # type: ignore[attr-defined]
    return made


def test_check_module_version_greater_or_equal_compares_numbers() -> None:
    """`check_module_version_greater_or_equal` compares as many fields as the requirement has, each by its type."""
    check = serialization.check_module_version_greater_or_equal
    for version, required, wanted in (
        ("1.10.0", (1, 9), True),
        ("1.10.0", (1, 10), True),
        ("1.10.0", (1, 11), False),
        ("1.10.0.dev1", (1, 10, 0), True),
        ("0.99", (1, 0), False),
        ("1.b", (1, "a"), True),
        ("1.b", (1, "c"), False),
    ):
        assert check(module_of(version), required) is wanted, (version, required)


@pytest.mark.parametrize("version", ["1", "1.x"])
def test_check_module_version_greater_or_equal_of_a_malformed_version(version: str) -> None:
    """A version that lacks a required field raises; with `error_if_malformed=False` it warns and suffices."""
    check = serialization.check_module_version_greater_or_equal
    with pytest.raises(RuntimeError, match=f"'some_module' module version string is malformed '{version}'"):
        check(module_of(version), (1, 0))
    with pytest.warns(UserWarning, match="malformed.*continuing assuming that requirement is met"):
        assert check(module_of(version), (1, 0), error_if_malformed=False) is True


def test_mkdtemp_makes_a_folder_for_its_block() -> None:
    """`mkdtemp` creates an empty folder, and removes it with its contents, also after an exception."""
    seen = []
    for fails in (False, True):
        with pytest.raises(LookupError) if fails else nullcontext(), serialization.mkdtemp() as folder:
            assert os.listdir(folder) == []
            Path(folder, "file").write_text("a")
            seen.append(folder)
            if fails:
                raise LookupError
        assert not Path(folder).exists()
    assert len(set(seen)) == 2


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.xfail(
    raises=AttributeError,
    reason="storages of all types have one class, so it looks for `TypedTensor` "
    "(seen with torch 2.11 and 2.13; not reported yet)",
)
def test_storage_to_tensor_type_is_the_class_of_tensors() -> None:
    """`storage_to_tensor_type` returns the tensor class for the type and device of a storage."""
    assert serialization.storage_to_tensor_type(torch.ones(2).storage()) is torch.FloatTensor
    assert serialization.storage_to_tensor_type(torch.ShortStorage(2)) is torch.ShortTensor


def test_location_tag_is_the_place_of_a_storage(device: torch.device) -> None:
    """`location_tag` returns the place of a storage as files record it; an object unknown to all packages is refused.

    The error names the class of the object.
    """
    storage = torch.ones(2, device=device).untyped_storage()
    assert serialization.location_tag(storage) == str(device)
    assert serialization.location_tag(torch.UntypedStorage(2, device="meta")) == "meta"
    nowhere: Any = types.SimpleNamespace(device=torch.device("vulkan"))
    with pytest.raises(RuntimeError, match=r"don't know how to determine data location of types\.SimpleNamespace"):
        serialization.location_tag(nowhere)


@pytest.mark.requires(device="cuda")
def test_validate_cuda_device_gives_the_index_of_a_place(device: torch.device) -> None:
    """`validate_cuda_device` returns the index in a place, by default the current one; others are refused."""
    assert serialization.validate_cuda_device("cuda:0") == 0
    assert serialization.validate_cuda_device("cuda") == torch.cuda.current_device() == device.index
    count = torch.cuda.device_count()
    with pytest.raises(RuntimeError, match=rf"device {count} but torch.cuda.device_count\(\) is {count}"):
        serialization.validate_cuda_device(f"cuda:{count}")


@pytest.mark.requires(device="cpu")
def test_validate_device_without_the_device_is_refused() -> None:
    """A place on a device type that is not available is refused, and the error recommends `map_location`."""
    with pytest.raises(RuntimeError, match=r"HPU device module is not registered.*map_location"):
        serialization.validate_hpu_device("hpu:0")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match=r"torch\.cuda\.is_available\(\) is False.*map_location"):
            serialization.validate_cuda_device("cuda:0")


def test_skip_data_is_refused_for_the_old_format(tmp_path: Path) -> None:
    """Within `skip_data` the old format is refused, and no file is created."""
    path = tmp_path / "file"
    with (
        serialization.skip_data(),
        pytest.raises(RuntimeError, match="skip_data=True with _use_new_zipfile_serialization=False"),
    ):
        torch.save(torch.ones(2), path, _use_new_zipfile_serialization=False)
    assert not path.exists()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a TorchScript archive: a layer that adds its weight."""

    class Adding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.weight

    path = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit")
        torch.jit.save(torch.jit.trace(Adding(), torch.zeros(2)), path)
    return path


def test_load_of_torchscript_warns_and_loads_the_module(script: Path, device: torch.device) -> None:
    """With `weights_only=False`, a TorchScript archive is loaded as by `torch.jit.load`, with a warning.

    It is read from the position of an open file, and moved to `map_location`.
    """
    from_buffer = io.BytesIO(script.read_bytes())
    for source in (script, from_buffer):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = torch.load(source, weights_only=False, map_location=device)
        assert any("looks like a TorchScript archive" in str(each.message) for each in caught)
        assert found.weight.device == device
        assert found(torch.ones(2, device=device)).tolist() == [2.0, -1.0]


def test_get_unsafe_globals_in_checkpoint_refuses_other_files(script: Path, tmp_path: Path) -> None:
    """`get_unsafe_globals_in_checkpoint` refuses files of the old format and of TorchScript."""
    with pytest.raises(ValueError, match="but got a torchscript checkpoint"):
        serialization.get_unsafe_globals_in_checkpoint(str(script))
    old = tmp_path / "old"
    old.write_bytes(saved(torch.ones(2), _use_new_zipfile_serialization=False))
    with pytest.raises(ValueError, match=r"returned by torch\.save"):
        serialization.get_unsafe_globals_in_checkpoint(str(old))


@pytest.fixture
def safetensors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, object]]:
    """Replace the package safetensors by the part that `torch.load` uses: a reader that records its calls."""
    calls: list[tuple[object, object]] = []

    def load_file(filename: object, device: object = "cpu") -> dict[str, torch.Tensor]:
        calls.append((filename, device))
        return {"a": torch.ones(2)}

    package, reader = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
    package.torch = reader  # type: ignore[attr-defined]
    reader.load_file = load_file  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "safetensors", package)
    monkeypatch.setitem(sys.modules, "safetensors.torch", reader)
    return calls


@pytest.mark.requires(torch=">=2.13")
def test_load_of_safetensors_asks_the_package_for_a_device(
    safetensors: list[tuple[object, object]], tmp_path: Path
) -> None:
    """The package safetensors reads a path that ends with `.safetensors`, onto the device of `map_location` or the CPU.

    A dict or a function is refused, and an open file is read as a file of `torch.save`.
    """
    path = tmp_path / "weights.safetensors"
    for place, wanted in ((None, "cpu"), ("meta", "meta"), (torch.device("cuda", 1), "cuda:1")):
        assert torch.load(path, map_location=place)["a"].tolist() == [1.0, 1.0]
        assert safetensors.pop() == (str(path), wanted)
    for place, kind in (({"cpu": "cpu"}, "dict"), (lambda storage, _: storage, "callable")):
        with pytest.raises(RuntimeError, match=f"safetensors file with {kind} map_location is not supported"):
            torch.load(path, map_location=place)
    torch.save(torch.zeros(3), path)
    with path.open("rb") as file:
        assert torch.load(file).tolist() == [0.0, 0.0, 0.0]
    assert safetensors == []


@pytest.mark.requires(torch=">=2.13")
def test_load_of_safetensors_without_the_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the package, loading such a file is refused, and the error names the package to install."""
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(RuntimeError, match=r"safetensors is not installed\. Please install"):
        torch.load(tmp_path / "weights.safetensors")

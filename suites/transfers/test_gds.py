"""GPUDirect Storage: tensors to files and back without the host, where available."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.cuda import gds

ROW = "test_cuda::TestGDS::test_gds_read_write_tensors"


@pytest.fixture(autouse=True)
def collected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Close the files after the case. cuFile writes its log to the working directory."""
    monkeypatch.chdir(tmp_path)
    yield
    gc.collect()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory whose files can be opened with O_DIRECT, as cuFile requires."""
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"files in {tmp_path} cannot be opened with O_DIRECT: {error}")
    return tmp_path


def never_answers() -> bool:
    """Return whether cuFile would hang when it opens a file.

    The version in CUDA 13.2 (1.17) reads /proc/modules to its end, and loops if the file does not exist, as on a kernel
    without modules. If the file exists, it returns immediately.
    """
    build = tuple(int(part) for part in (torch.version.cuda or "0").split("."))
    return build >= (13, 2) and not Path("/proc/modules").exists()


def opened(path: Path) -> gds.GdsFile:
    """Return a file for reading and writing.

    Skip the case if cuFile does not support it; any other error is a failure.
    """
    if never_answers():
        pytest.skip("cuFile of CUDA 13.2 hangs on a machine without /proc/modules")
    try:
        return gds.GdsFile(str(path), os.O_CREAT | os.O_RDWR)
    except RuntimeError as error:
        if "cuFile" not in str(error):
            raise
        pytest.skip(f"cuFile does not support files in {path.parent}: {error}")


@pytest.mark.requires(cuda=False)
@pytest.mark.covers("test_cuda::TestCuda::test_gds_fails_in_ci")
def test_gdsfile_and_gds_register_buffer_without_cuda_are_refused(folder: Path) -> None:
    """A build without GDS raises for files and for buffers, and the error names what is missing."""
    with pytest.raises(RuntimeError, match="not supported on this platform"):
        gds.GdsFile(str(folder / "file"), os.O_CREAT | os.O_RDWR)
    for call in (gds.gds_register_buffer, gds.gds_deregister_buffer):
        with pytest.raises(RuntimeError, match=r"_gds_\w+_buffer is not supported on this platform"):
            call(torch.ones(4).untyped_storage())


@pytest.mark.requires(device="cuda", not_={"rocm": True})
# Up to torch 2.13, the finalizer of a file that could not be opened accesses a handle that does not exist.
@pytest.mark.filterwarnings("ignore:.*GdsFile.__del__:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.covers("test_cuda::TestCuda::test_gds_fails_in_ci")
def test_gdsfile_of_a_missing_file_is_refused(device: torch.device, tmp_path: Path) -> None:
    """Opening a missing file raises the system's error, and the device still works."""
    with pytest.raises((OSError, RuntimeError), match=r"absent|not supported on this platform"):
        gds.GdsFile(str(tmp_path / "absent" / "file"), os.O_RDWR)

    assert torch.ones(4, device=device).sum().item() == 4


@pytest.mark.requires(device="cuda", not_={"rocm": True}, platform="linux-*")
@pytest.mark.covers(ROW)
@pytest.mark.parametrize("registered", [False, True])
def test_gdsfile_save_storage_and_load_storage(device: torch.device, folder: Path, registered: bool) -> None:
    """Storages written in sequence are read back bitwise at their offsets, with or without registered memory.

    The file contains their bytes in that order.
    """
    file = opened(folder / "file")
    written = [torch.randn(1024, device=device), torch.randint(-9, 9, (2, 1024), device=device, dtype=torch.int64)]
    read = [torch.zeros_like(tensor) for tensor in written]
    tensors = [*written, *read] if registered else []

    for tensor in tensors:
        gds.gds_register_buffer(tensor.untyped_storage())
    for offset, tensor in zip((0, written[0].nbytes), written, strict=True):
        file.save_storage(tensor.untyped_storage(), offset=offset)
    for offset, tensor in zip((0, written[0].nbytes), read, strict=True):
        file.load_storage(tensor.untyped_storage(), offset=offset)
    for tensor in tensors:
        gds.gds_deregister_buffer(tensor.untyped_storage())

    assert all(torch.equal(one, other) for one, other in zip(written, read, strict=True))
    file.deregister_handle()
    expected = b"".join(tensor.cpu().numpy().tobytes() for tensor in written)
    assert (folder / "file").read_bytes()[: len(expected)] == expected


@pytest.mark.requires(device="cuda", not_={"rocm": True}, platform="linux-*")
@pytest.mark.covers(ROW)
def test_gdsfile_after_deregister_handle_is_refused(device: torch.device, folder: Path) -> None:
    """After `deregister_handle`, saving and loading raise, and the handle can be registered again."""
    file = opened(folder / "file")
    tensor = torch.ones(1024, device=device)
    file.deregister_handle()

    for call in (file.save_storage, file.load_storage):
        with pytest.raises(AssertionError, match="not registered"):
            call(tensor.untyped_storage())
    file.register_handle()
    file.save_storage(tensor.untyped_storage())
    tensor.zero_()
    file.load_storage(tensor.untyped_storage())

    assert (tensor == 1).all()

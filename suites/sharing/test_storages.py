"""Storages in the host's shared memory, and in files."""

from __future__ import annotations

import copy
import os
import threading
from pathlib import Path

import pytest
import torch
from torch import multiprocessing

pytestmark = pytest.mark.requires(device="cpu")


def in_a_fork(body: object) -> int:
    """Call `body` in a fork of this process, and return the exit status: 0 if it returned, 1 if it raised."""
    child = os.fork()
    if not child:
        status = 1
        try:
            body()  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_share_memory_moves_a_storage_where_a_fork_writes_it() -> None:
    """`UntypedStorage.share_memory_` returns the storage itself with its values, and writes of a fork are visible.

    Existing views share the memory too. Without the call, a fork writes to its own copy. The storage has no file, and a
    second call changes nothing.
    """
    x, own = torch.arange(6.0), torch.arange(6.0)
    view, storage = x[2:4], x.untyped_storage()
    assert not storage.is_shared()
    assert storage.share_memory_() is storage
    assert storage.is_shared()
    assert x.is_shared()
    assert not own.is_shared()
    assert x.tolist() == own.tolist()
    assert storage.filename is None
    address = storage.share_memory_().data_ptr()
    assert x.data_ptr() == address

    def write() -> None:
        x[3] = 30.0
        own[3] = 30.0

    assert in_a_fork(write) == 0
    assert view.tolist() == [2.0, 30.0]
    assert own[3] == 3.0


@pytest.mark.parametrize("shared", [True, False])
def test_from_file_has_a_filename_and_writes_it_if_shared(tmp_path: Path, shared: bool) -> None:
    """`UntypedStorage.from_file` has the bytes of the file.

    A shared storage writes to it, and names it in `filename`.
    """
    file = tmp_path / "bytes"
    file.write_bytes(bytes(range(16)))
    storage = torch.UntypedStorage.from_file(str(file), shared, 16)
    assert storage.filename == (str(file) if shared else None)
    assert bytes(storage) == bytes(range(16))
    storage[3] = 99
    assert storage[3] == 99
    assert file.read_bytes()[3] == (99 if shared else 3)
    assert torch.UntypedStorage(16).filename is None


def test_adagrad_share_memory_shares_the_sums_with_a_fork() -> None:
    """`Adagrad.share_memory` moves the sums of squared gradients to shared memory: a fork's step is visible here.

    The parameter is shared too, so that both processes train one model.
    """
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.share_memory_()
    optimizer = torch.optim.Adagrad([parameter], lr=0.5, initial_accumulator_value=1.0)
    assert not optimizer.state[parameter]["sum"].is_shared()
    optimizer.share_memory()
    assert optimizer.state[parameter]["sum"].is_shared()

    def step() -> None:
        parameter.grad = torch.full((3,), 2.0)
        optimizer.step()

    assert in_a_fork(step) == 0
    assert optimizer.state[parameter]["sum"].tolist() == [5.0] * 3
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 1 - 0.5 * 2 / 5**0.5))


def test_share_memory_from_one_thread_after_another() -> None:
    """`share_memory_` of a storage that another thread has shared returns at once."""
    storage = torch.zeros(3).untyped_storage()
    assert storage.share_memory_() is storage
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(storage.share_memory_() is storage), daemon=True)
    thread.start()
    thread.join(10)
    assert done == [True]


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_share_memory_by_each_strategy_has_a_file_or_none(strategy: str) -> None:
    """Memory shared by `file_system` is a file in /dev/shm until it is freed; `file_descriptor` has no file there.

    Source: "Sharing strategies" of PyTorch's page on multiprocessing.
    """
    before = multiprocessing.get_sharing_strategy()
    multiprocessing.set_sharing_strategy(strategy)
    try:
        storage = torch.arange(3.0).untyped_storage().share_memory_()
    finally:
        multiprocessing.set_sharing_strategy(before)
    assert storage.is_shared()
    assert len(own_files()) == (strategy == "file_system")
    del storage
    assert own_files() == []


def own_files() -> list[str]:
    """Return the files of shared memory that this process has created with torch."""
    return [each.name for each in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_typed_storage_share_memory_returns_itself() -> None:
    """`TypedStorage.share_memory_` returns the storage itself. A copy of the storage is not shared."""
    x = torch.arange(3.0)
    typed = x.storage()
    assert typed.data_ptr() == x.data_ptr()
    assert typed.share_memory_() is typed
    assert typed.is_shared()
    other = copy.deepcopy(typed)
    assert not other.is_shared()
    assert other.tolist() == [0.0, 1.0, 2.0]


def test_storage_on_the_meta_device_has_no_elements_to_read() -> None:
    """An element of a storage on the meta device cannot be read."""
    with pytest.raises(NotImplementedError, match="Not available for 'meta' device type"):
        torch.UntypedStorage(4, device="meta")[0]

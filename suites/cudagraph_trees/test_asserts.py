"""The checks of CUDA graph trees: memory of their pools, storages, and settings for debugging."""

from __future__ import annotations

import gc
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from . import _torch_private as private
from . import trees
from .trees import CUDAGRAPHS, Counts, on_cuda, repeated, watched, whole_numbers

pytestmark = pytest.mark.timeout(trees.LIMIT)


def two_steps(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    y = x * 2
    return y, (y + x).t(), x.shape[0]


@on_cuda
@pytest.mark.parametrize(
    "setting", ["fast_path_cudagraph_asserts", "force_cudagraph_sync", "cudagraph_trees_history_recording"]
)
def test_settings_for_debugging_change_no_result(setting: str, device: torch.device) -> None:
    """Checks around each replay, a wait after each, and a record of the allocations of graphs change no result.

    The kinds of calls are also the same (torch/_inductor/config.py, `triton`).
    """
    with watched(**{f"triton__{setting}": True}) as watch:
        calls = repeated(lambda n: [whole_numbers(3, 4, device=device, start=n)], 4)
        assert trees.compare(two_steps, calls, CUDAGRAPHS, watch) == Counts(1, 1, 2, 0)
        assert not private.history_is_recorded()
    trees.assert_nothing_left()


@on_cuda
@pytest.mark.parametrize("setting", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
def test_cudagraph_trees_history_recording_knows_the_origin_of_memory(
    earlier: bool, setting: bool, device: torch.device
) -> None:
    """With `cudagraph_trees_history_recording`, the memory of a graph has the stack that allocated it.

    The record ends with the recording, unless it was started before (torch/_inductor/config.py).
    """
    with watched(triton__cudagraph_trees_history_recording=setting):
        fast = trees.compiled(two_steps, CUDAGRAPHS)
        fast(whole_numbers(3, 4, device=device))
        private.record_history(earlier)
        try:
            kept = fast(whole_numbers(3, 4, device=device))
            assert private.history_is_recorded() is earlier
        finally:
            private.record_history(False)
        frames = [block.get("frames") for block in private.live_blocks_of_graphs()]
        assert frames
        assert all(map(bool, frames)) == any(map(bool, frames)) == (earlier or setting)
        del kept
    trees.assert_nothing_left()


class OwnError(Exception):
    """Raised while the history is recorded."""


@on_cuda
@pytest.mark.parametrize("earlier", [False, True])
def test_enable_history_recording_leaves_an_earlier_record_as_it_was(earlier: bool, device: torch.device) -> None:
    """The record also ends with an exception, and an earlier record continues with its own settings."""
    kept = torch.empty(0, device=device)

    def fails() -> None:
        nonlocal kept
        with private.recorded_history():
            assert private.history_is_recorded()
            kept = torch.ones(1 << 18, device=device)
            raise OwnError

    private.record_history(earlier)
    try:
        with pytest.raises(OwnError):
            fails()
        assert private.history_is_recorded() is earlier
    finally:
        private.record_history(False)
    files = {frame["filename"] for frame in private.frames_of(kept)}
    assert __file__ in files
    if earlier:  # only Python's frames
        assert all(file.endswith((".py", ">")) for file in files)


@on_cuda
@pytest.mark.parametrize("setting", [False, True])
def test_force_cudagraph_sync_waits_for_each_replay(
    setting: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `force_cudagraph_sync`, a call waits for its replay; without it, it does not (torch/_inductor/config.py)."""
    waits: list[object] = []
    synchronize = torch.cuda.synchronize

    def counted(*of: Any) -> None:
        waits.append(of)
        synchronize(*of)

    x = whole_numbers(3, 4, device=device)
    with watched(triton__force_cudagraph_sync=setting):
        fast = trees.compiled(two_steps, CUDAGRAPHS)
        for _ in range(3):  # warm-up, recording, replay
            fast(x)
        monkeypatch.setattr(torch.cuda, "synchronize", counted)
        for _ in range(3):
            fast(x)
        monkeypatch.undo()
    assert len(waits) == (3 if setting else 0)
    trees.assert_nothing_left()


@on_cuda
def test_fast_path_cudagraph_asserts_hold_over_several_graphs(device: torch.device) -> None:
    """The checks pass if a graph reads outputs of another one that live, die and are replaced between replays."""
    with watched(triton__fast_path_cudagraph_asserts=True) as watch:
        first, second = (trees.compiled(work, CUDAGRAPHS) for work in (lambda x: (x + 1, x - 1), lambda x: x * 3))
        for number in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(4, device=device, start=number)
            kept, dropped = first(x)
            del dropped
            assert second(kept).tolist() == ((x + 1) * 3).tolist()
            assert kept.tolist() == (x + 1).tolist()
            del kept
        assert watch.counts().replays > 0
    trees.assert_nothing_left()


@on_cuda
def test_check_memory_pool_knows_what_lives_in_the_pool(device: torch.device) -> None:
    """If the pool has exactly the storages that are known to live, the check reports nothing.

    It reports an unknown storage, with its history and a hint how to find it, and a known storage that is missing.
    """
    pool = torch.cuda.MemPool()
    private.record_history(True)
    try:
        with torch.cuda.use_mem_pool(pool, device):
            known, stray = (torch.ones(1 << 18, device=device) for _ in range(2))
    finally:
        private.record_history(False)
    outside = torch.ones(8, device=device)
    identity = pool.id
    references = {name: private.storage_reference(of) for name, of in (("known", known), ("stray", stray))}
    private.check_memory_pool(device, identity, list(references.values()))
    addresses = sorted([known.data_ptr(), stray.data_ptr()])
    assert sorted(private.block_addresses(identity)) == addresses
    with pytest.raises(RuntimeError, match=r"Detected 1 tensor\(s\) in the cudagraph pool not tracked") as reported:
        private.check_memory_pool(device, identity, [references["known"]])
    assert f"Data Pointer: {stray.data_ptr()}, history: \n  File" in str(reported.value)
    assert re.search(r'File ".*test_asserts\.py", line \d+, in test_check_memory_pool_knows', str(reported.value))
    assert str(known.data_ptr()) not in str(reported.value)
    assert "cudagraph_trees_history_recording = True" in str(reported.value)
    assert "cudagraph_trees_objgraph = True" in str(reported.value)
    with (
        private.config({"triton.cudagraph_trees_history_recording": True}),
        pytest.raises(RuntimeError, match="not tracked") as reported,
    ):
        private.check_memory_pool(device, identity, [references["known"]])
    assert "history_recording" not in str(reported.value)
    with pytest.raises(RuntimeError, match=r"are not allocated in pool .* but should be") as reported:
        private.check_memory_pool(device, identity, [*references.values(), private.storage_reference(outside)])
    assert str(outside.data_ptr()) in str(reported.value)
    del stray, reported
    private.check_memory_pool(device, identity, list(references.values()))
    assert private.block_addresses(identity) == [known.data_ptr()]
    assert {*addresses} <= {*private.block_addresses(identity, live_only=False)}
    references.clear()
    del known
    private.check_memory_pool(device, identity, [])
    del pool
    torch.cuda.empty_cache()


@on_cuda
def test_check_memory_pool_collects_dead_tensors_first(device: torch.device) -> None:
    """A tensor that only a cycle of dead objects refers to is collected, and not reported."""
    pool = torch.cuda.MemPool()
    gc.disable()
    try:
        with torch.cuda.use_mem_pool(pool, device):
            cycle: list[object] = [torch.ones(1 << 18, device=device)]
        cycle.append(cycle)
        del cycle
        assert private.block_addresses(pool.id)
        private.check_memory_pool(device, pool.id, [])
        assert not private.block_addresses(pool.id)
    finally:
        gc.enable()
    del pool
    torch.cuda.empty_cache()


@on_cuda
def test_cudagraph_trees_objgraph_draws_what_holds_a_stray_tensor(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `cudagraph_trees_objgraph`, the package objgraph draws the objects that refer to an unknown tensor.

    The error names the file; a storage without a tensor is omitted (torch/_inductor/config.py).
    """
    drawn: list[tuple[int, str]] = []
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device):
        known, bare, stray = (torch.ones(1 << 18, device=device) for _ in range(3))

    def show_backrefs(tensor: torch.Tensor, *, filename: str, max_depth: int) -> None:
        assert max_depth > 0
        drawn.append((tensor.data_ptr(), filename))

    tensors = {"torch.Tensor": [torch.ones(2), known, stray]}
    monkeypatch.setitem(sys.modules, "objgraph", SimpleNamespace(by_type=tensors.get, show_backrefs=show_backrefs))
    with (
        private.config({"triton.cudagraph_trees_objgraph": True}),
        pytest.raises(RuntimeError, match=r"Detected 2 tensor\(s\)") as reported,
    ):
        private.check_memory_pool(device, pool.id, [private.storage_reference(known)])
    ((address, file),) = drawn
    assert address == stray.data_ptr()
    assert f"Objgraph backrefs written: {file}\n" in str(reported.value)
    assert "cudagraph_trees_objgraph = True" not in str(reported.value)
    del tensors["torch.Tensor"][1:]
    with (
        private.config({"triton.cudagraph_trees_objgraph": True}),
        pytest.raises(RuntimeError, match=r"Detected 2 tensor\(s\)") as reported,
    ):
        private.check_memory_pool(device, pool.id, [private.storage_reference(known)])
    assert "backrefs written" not in str(reported.value)
    del known, stray, bare, reported, tensors
    monkeypatch.undo()
    del pool
    torch.cuda.empty_cache()


def test_storage_reference_says_whether_the_storage_lives() -> None:
    """The reference of a storage equals that of its tensor: it has the address, and reports whether it is alive."""
    tensor = torch.ones(4)
    storage: Any = tensor.untyped_storage()
    reference, other = private.storage_reference(tensor), private.storage_reference_of(storage)
    address = tensor.data_ptr()
    assert reference() == other() is not None
    assert repr(reference) == repr(other) == f"StorageWeakRefWrapper to {address}; alive"
    del tensor, storage
    assert reference() is None
    assert other.data_ptr() == address
    assert repr(reference) == repr(other) == f"StorageWeakRefWrapper to {address}; dead"


def test_log_of_the_inputs_of_a_graph_has_the_first_ten() -> None:
    """The log describes tensors by shape, stride, type and address, other values as they are, and counts the rest.

    Only the first ten inputs are described.
    """
    tensor = torch.ones(2, 3).t()
    assert private.described_inputs([]) == "[]"
    assert private.described_inputs([tensor, None, 7]) == (
        f"[0]: Tensor(size=[3, 2], stride=(1, 3), dtype=torch.float32, data_ptr=0x{tensor.data_ptr():X}), "
        "[1]: None, [2]: int(7)"
    )
    for count, ending in ((10, "[9]: int(9)"), (12, "... (2 more items)")):
        assert private.described_inputs(list(range(count))).endswith(ending)

"""Snapshots taken from C++, for programs without Python: a pickle that Python and other readers can load."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from suites import cpp_builds

from . import _torch_private as private
from . import pages, plain, scripts
from .reading import LIVE, block_at, blocks, faults

pytestmark = [
    pytest.mark.requires(cuda=True, cpp_extensions=True, platform="linux-x86_64"),
    pytest.mark.timeout(900),
]

SOURCE = Path(__file__).with_name("from_cpp.cpp")

#: A function that gets the address of bytes, and their number.
_GIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)

ROWS, COLUMNS = 311, 411


class Native:
    """The functions of `from_cpp.cpp`. They run while Python's lock is held, since torch records Python frames."""

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(str(cpp_builds.build(SOURCE, "torch_cuda")))
        self._library.conformance_record.argtypes = [ctypes.c_bool, ctypes.c_bool]
        self._library.conformance_take_snapshot.argtypes = [_GIVE]
        for function in (self._library.conformance_record, self._library.conformance_take_snapshot):
            function.restype = None

    def record(self, on: bool, with_stacks: bool) -> None:
        """Start or stop recording of the last ten events, with or without stacks."""
        self._library.conformance_record(on, with_stacks)

    def take(self) -> bytes:
        """Return a snapshot, pickled."""
        taken: list[bytes] = []
        self._library.conformance_take_snapshot(
            _GIVE(lambda start, count: taken.append(ctypes.string_at(start, count)))
        )
        return taken[0]


@pytest.fixture(scope="module")
def native() -> Native:
    """Return the compiled functions."""
    return Native()


def test_cpp_snapshot_is_a_plain_pickle(native: Native) -> None:
    """A C++ snapshot is a pickle of plain values with the same parts as a Python snapshot.

    The case needs a build for CUDA; without a GPU there are no segments.
    """
    snapshot = plain.load(native.take())

    assert {"segments", "device_traces"} <= set(snapshot)
    assert pages.plot(private.trace_plot(snapshot)).files == {"snapshot.pickle": snapshot}
    if not torch.cuda.is_initialized():
        assert snapshot["segments"] == []


@pytest.mark.requires(device="cuda")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_cpp_memory_snapshot_pickle")
@pytest.mark.parametrize("with_stacks", [False, True])
def test_cpp_snapshot_recording_has_the_stacks(native: Native, device: torch.device, with_stacks: bool) -> None:
    """A recording from C++ has a live block's bytes, and its allocation as the last event.

    If stacks are enabled, they contain the operator, then the calling Python function, and TorchScript. The number of
    entries is limited as requested.
    """
    compiled = torch.jit.script(scripts.filled_by_a_script)
    native.record(True, with_stacks)
    try:
        others = [torch.empty(512 * (number + 1), device=device) for number in range(12)]
        tensor = compiled(ROWS, COLUMNS, device)
        snapshot: dict[str, Any] = plain.load(native.take())
    finally:
        native.record(False, False)
        private.record(None)

    block = block_at(snapshot["segments"], tensor.untyped_storage().data_ptr())
    assert block is not None
    assert (block.state, block.requested) == (LIVE, ROWS * COLUMNS * 4)
    names = [frame["name"] for frame in block.frames]
    if with_stacks:
        assert any("filled_by_a_script" in name for name in names)
        caller = names.index("test_cpp_snapshot_recording_has_the_stacks")
        assert any("::rand" in name for name in names[:caller])
        assert not any("::rand" in name for name in names[caller:])
    else:
        assert names == []
    trace = snapshot["device_traces"][device.index]
    assert (trace[-1]["action"], trace[-1]["size"], trace[-1]["addr"]) == ("alloc", block.requested, block.address)
    assert len(trace) == 10
    assert others
    assert faults(snapshot["segments"]) == []


@pytest.mark.requires(device="cuda")
def test_cpp_snapshot_equals_python_snapshot(native: Native, device: torch.device) -> None:
    """Consecutive C++ and Python snapshots have the same segments and blocks, including a side stream and a pool."""
    tensors = [torch.empty(size, device=device) for size in (10, 100_000, 5_000_000)]
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        tensors.append(torch.empty(1000, device=device))
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device):
        tensors.append(torch.empty(1000, device=device))

    ours, theirs = private.snapshot()["segments"], plain.load(native.take())["segments"]

    def reported(segments: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted((each.address, each.size, each.requested, each.state) for each in blocks(segments))

    def described(segments: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [
            (
                *(each["address"], each["total_size"], each["stream"], each["device"], each["segment_type"]),
                tuple(each["segment_pool_id"]),
            )
            for each in segments
        ]

    assert reported(ours) == reported(theirs)
    assert described(ours) == described(theirs)
    # Graphs of earlier cases may have left segments of their pools, so the comparison uses subsets.
    assert {each["stream"] for each in ours} >= {torch.cuda.default_stream(device).cuda_stream, side.cuda_stream}
    assert {each["segment_pool_id"] for each in ours} >= {(0, 0), pool.id}
    tensors.clear()
    del pool

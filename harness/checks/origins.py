"""The origins of what a case left behind: what holds a tensor, which line allocated memory, where a thread is.

Use it only in a process that will run no more cases. The search for holders unfreezes the objects from before the fork
(`gc.unfreeze`). History slows a case down: one that compiles takes 20 times as long while Python's allocations are
traced.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import tempfile
import threading
import traceback
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from harness.backends import cuda
from harness.checks.meters import process as meters_process
from harness.checks.meters import torch_memory as meters_torch
from harness.checks.meters.holders import describe_holders
from harness.checks.meters.table import format_quantity
from harness.core.text import format_count, single_line

#: The most lines for one meter, and the most frames of one stack.
MAX_LINES = 5
MAX_FRAMES = 4
#: Frames of these packages, and of Python's standard library, do not show who requested memory.
_LIBRARIES = ("torch", "numpy", "_pytest", "pluggy", "harness")
#: Meters that tracemalloc explains.
_TRACED = frozenset({"heap_bytes", "python_blocks"})
#: Meters that count the same objects: the first is explained under the name of the second.
_SAME = {"tensor_bytes": "tensors", "temp_bytes": "temp_files", "shm_bytes": "shm_files"}

CallStack = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    name: str


def record_allocation_history(meters: Iterable[str]) -> None:
    """Record from now on the stacks of the allocations that these meters count: in Python and NumPy, and on CUDA.

    CUDA has no history before it is initialised: call this again where a case may have initialised it since.
    """
    asked = list(meters)
    if not tracemalloc.is_tracing() and not _TRACED.isdisjoint(asked):
        tracemalloc.start(4 * MAX_FRAMES)
    torch = sys.modules.get("torch")
    if torch is not None and any(name.startswith("cuda_") for name in asked) and cuda.torch_uses_cuda(torch):
        # State only: the stacks of live blocks. An event log would need more memory the longer it runs.
        torch.cuda.memory._record_memory_history(enabled="state", context="state", stacks="python")


class GrowthOrigins:
    """Records what exists when it is made, and later explains the origin of everything newer."""

    def __init__(self, *, temp: Path | None = None, shm: Path = Path("/dev/shm")) -> None:
        """`temp`: the temporary folder of this process alone, by default that of `tempfile`."""
        self._files = meters_process.FileMeters(temp or Path(tempfile.gettempdir()), shm)
        self._tensors = {id(tensor): weakref.ref(tensor) for tensor in _tensors()}
        self._children = meters_process.running_children()
        self._threads = {task for task, _ in _tasks()}
        self._temporary = {entry.path for entry in self._files.temporary_files()}
        self._shared = set(self._files.shared_memory())
        self._descriptors = dict(_descriptors())
        self._mappings = set(_mappings())
        self._blocks = _cuda_snapshot()
        self._traces = tracemalloc.take_snapshot() if tracemalloc.is_tracing() else None

    def of(self, meters: Iterable[str]) -> dict[str, list[str]]:
        """Return some lines of text for each meter that can be explained.

        Equal lines are shown once, with their number.

        Objects that two of the meters count are explained under one of them.
        """
        asked = list(meters)
        lines_by_meter = {}
        for name in asked:
            if _SAME.get(name) not in asked and (lines := self._of(name.partition("[")[0])):
                lines_by_meter[name] = _summed(lines)
        return lines_by_meter

    def _of(self, meter: str) -> list[str]:
        match meter:
            case "tensors" | "tensor_bytes":
                return self._new_tensors()
            case "cuda_allocated" | "cuda_active_blocks" | "cuda_reserved" | "cuda_segments" | "cuda_pools":
                return new_cuda_blocks(self._blocks, _cuda_snapshot(), _library_paths())
            case "children":
                new = [child for child in meters_process.running_children() if child not in self._children]
                return [f"{pid}: {command[:200]}" for pid, command in new]
            case "threads":
                return self._new_threads()
            case "temp_files" | "temp_bytes":
                return sorted({entry.path for entry in self._files.temporary_files()} - self._temporary)
            case "shm_files" | "shm_bytes":
                return sorted(set(self._files.shared_memory()) - self._shared)
            case "descriptors":
                return [f"{number}: {to}" for number, to in _descriptors() if self._descriptors.get(number) != to]
            case "mapped_bytes":
                return describe_mappings(self._mappings, _mappings())
            case name if name in _TRACED:
                return self._new_allocations()
        return []

    def _new_tensors(self) -> list[str]:
        """Return each new tensor with its holders.

        A search takes some 10 ms per step, so only tensors that are shown get one.
        """
        earlier = self._tensors
        new = [tensor for tensor in _tensors() if (ref := earlier.get(id(tensor))) is None or ref() is not tensor]
        gc.unfreeze()
        lines = []
        for position in range(len(new)):  # the search would find an iterator, or a slice of the list, as a holder
            if position < MAX_LINES:
                lines.append(f"{_describe(new[position])}, held by: {describe_holders(new[position], (new,))}")
            else:
                lines.append("another tensor or storage")
        return lines

    def _new_threads(self) -> list[str]:
        named = {thread.native_id: thread for thread in threading.enumerate()}
        frames = sys._current_frames()
        lines = []
        for task, name in _tasks():
            if task in self._threads:
                continue
            thread = named.get(task)
            if thread is None:
                lines.append(f"native thread {name!r}, not started by Python")
            else:
                kind = "daemon thread" if thread.daemon else "thread"
                stack = _stack_of(frames.get(thread.ident or 0))
                where = f"at {' < '.join(stack)}" if stack else "not in Python code"
                lines.append(f"{kind} {thread.name!r} {where}")
        return lines

    def _new_allocations(self) -> list[str]:
        if self._traces is None:
            return []
        changes = tracemalloc.take_snapshot().compare_to(self._traces, "traceback")
        grown = [change for change in changes if change.size_diff > 0]
        libraries = _library_paths()
        stacks = [(change.size_diff, change.count_diff, _traced(change.traceback, libraries)) for change in grown]
        return describe_allocations(stacks)


def describe_allocations(stacks: Iterable[tuple[int, int, CallStack]]) -> list[str]:
    """Return a line for each stack with all that it allocated, the largest first.

    `stacks`: bytes, blocks, and frames, innermost first. An empty stack has only frames of libraries or the harness,
    and is left out.
    """
    sums: dict[CallStack, tuple[int, int]] = {}
    for size, count, stack in stacks:
        if stack:
            bytes_, blocks = sums.get(stack, (0, 0))
            sums[stack] = (bytes_ + size, blocks + count)
    ranked = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        f"{format_quantity(size, 'bytes')} in {format_count(count, 'block')} allocated at {' < '.join(stack)}"
        for stack, (size, count) in ranked
    ]


def new_cuda_blocks(before: Mapping[str, Any], after: Mapping[str, Any], libraries: tuple[str, ...] = ()) -> list[str]:
    """Return a line for each stack that allocated CUDA memory in use `after` and not `before`, the most bytes first.

    Both come from `torch.cuda.memory._snapshot`, `after` with history on. A block without a stack is described by the
    pool and stream of its segment. Files under `libraries` are left out, as in `caller_frames`.
    """
    blocks_before = {(device, block["address"], block["size"]) for device, block, _ in _in_use(before)}
    stacks = []
    for device, block, segment in _in_use(after):
        if (device, block["address"], block["size"]) in blocks_before:
            continue
        frames = [(frame["filename"], frame["line"], frame["name"]) for frame in block.get("frames") or ()]
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        unknown = f"an unknown place (device {device}, stream {segment.get('stream', 0)}, pool {pool})"
        stacks.append((block.get("requested_size", block["size"]), 1, caller_frames(frames, libraries) or (unknown,)))
    return describe_allocations(stacks)


def _in_use(snapshot: Mapping[str, Any]) -> Iterable[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    for segment in snapshot.get("segments", ()):
        address = segment["address"]
        for block in segment["blocks"]:
            # Blocks in older snapshots have no address: they follow one after the other.
            placed = block if "address" in block else {**block, "address": address}
            address = placed["address"] + block["size"]
            if block["state"] != "inactive":
                yield segment["device"], placed, segment


def caller_frames(frames: Sequence[tuple[str, int, str]], libraries: tuple[str, ...] = ()) -> CallStack:
    """Return the frames that show who requested memory, from frames of file, line and function, innermost first.

    Leave out files whose path begins with one of `libraries`, unless there are no others.
    """
    own = [frame for frame in frames if not frame[0].startswith(libraries)] if libraries else frames
    return tuple(f"{file}:{line} {name}".strip() for file, line, name in (own or frames)[:MAX_FRAMES])


def describe_mappings(before: Iterable[_Mapping], after: Iterable[_Mapping]) -> list[str]:
    """Return a line for each file whose mapped memory grew, the most first. Memory without a file is anonymous."""
    sizes: dict[str, int] = {}
    for sign, mappings in ((-1, before), (1, after)):
        for mapping in mappings:
            sizes[mapping.name] = sizes.get(mapping.name, 0) + sign * (mapping.end - mapping.start)
    grown = sorted(((size, name) for name, size in sizes.items() if size > 0), key=lambda item: (-item[0], item[1]))
    return [f"{format_quantity(size, 'bytes')} of {name or 'anonymous memory'}" for size, name in grown]


def _tensors() -> list[Any]:
    torch = sys.modules.get("torch")
    return [] if torch is None else meters_torch.tensors_and_storages(gc.get_objects(), torch)


def _describe(tensor: Any) -> str:
    """Return type, shape, device and size of a tensor. Run no code of a subclass."""
    torch = sys.modules["torch"]
    if isinstance(tensor, torch.UntypedStorage):
        return f"storage on {tensor.device}, {format_quantity(tensor.nbytes(), 'bytes')}"
    with torch._C.DisableTorchFunctionSubclass():
        shape = "x".join(str(size) for size in tensor.shape)
        kind = f"tensor of shape {shape}" if shape else "scalar tensor"
        size = format_quantity(int(tensor.numel()) * tensor.element_size(), "bytes")
        graph = f", with autograd graph ({type(tensor.grad_fn).__name__})" if tensor.grad_fn is not None else ""
        return f"{str(tensor.dtype).removeprefix('torch.')} {kind} on {tensor.device}, {size}{graph}"


def _cuda_snapshot() -> Mapping[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not cuda.torch_uses_cuda(torch):
        return {}
    return {"segments": torch.cuda.memory_snapshot()}


def _tasks() -> list[tuple[int, str]]:
    """Return the threads of this process: the id and the name of each in the kernel."""
    tasks = []
    for task in os.listdir("/proc/self/task"):
        try:
            tasks.append((int(task), Path(f"/proc/self/task/{task}/comm").read_text(errors="replace").strip()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since
    return tasks


def _descriptors() -> list[tuple[int, str]]:
    descriptors = []
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors.append((int(number), single_line(os.readlink(f"/proc/self/fd/{number}"))))
        except FileNotFoundError:
            continue  # the descriptor that listed the folder
    return sorted(descriptors)


def _mappings() -> list[_Mapping]:
    mappings = []
    with open("/proc/self/maps", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            start, _, end = fields[0].partition("-")
            mappings.append(_Mapping(int(start, 16), int(end, 16), single_line(fields[5]) if len(fields) > 5 else ""))
    return mappings


def _library_paths() -> tuple[str, ...]:
    """Return path prefixes of files that do not show who requested memory: libraries, the harness, frozen modules."""
    homes = [getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES]
    library = sysconfig.get_path("stdlib") + os.sep
    return ("<frozen ", library, *(os.path.dirname(home) + os.sep for home in homes if home))


def _summed(lines: Sequence[str]) -> list[str]:
    """Return each line once, with its number, up to `MAX_LINES` lines."""
    counts = Counter(lines)
    shown = [line if count == 1 else f"{count} times: {line}" for line, count in counts.items()]
    more = len(shown) - MAX_LINES
    return [*shown[:MAX_LINES], *([f"… and {more} more"] if more > 0 else [])]


def _stack_of(frame: FrameType | None) -> CallStack:
    summary = traceback.extract_stack(frame)[::-1] if frame is not None else ()
    return caller_frames([(entry.filename, entry.lineno or 0, entry.name) for entry in summary], _library_paths())


def _traced(trace: tracemalloc.Traceback, libraries: tuple[str, ...]) -> CallStack:
    """Return the frames that show who requested memory; empty if all are frames of libraries or of the harness."""
    frames = [(frame.filename, frame.lineno, "") for frame in reversed(trace)]
    return caller_frames(frames, libraries) if any(not frame[0].startswith(libraries) for frame in frames) else ()

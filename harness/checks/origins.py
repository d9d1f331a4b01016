"""The origins of what a case left behind: what holds a tensor, which line allocated memory, where a thread is.

Use it only in a process that will run no more cases. The search for holders unfreezes the objects from before the fork
(`gc.unfreeze`), because otherwise the chain of referrers ends at the first holder from before it. History slows a case
down: one that compiles takes 20 times as long while Python's allocations are traced.

`GrowthRounds` measures the growth with each case when cases run in several rounds, in a process with no other use.
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
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeGuard, TypeVar, cast

from harness.backends import cuda
from harness.checks import process_meters, torch_memory
from harness.checks.growth import KeptMemory
from harness.checks.keeping import Keeps
from harness.checks.meters import MeterReader, MeterReading, format_quantity, meter_growths
from harness.core.text import format_count, single_line

T = TypeVar("T")

#: Steps up from the object, and holders examined in each step. A name is usually three or four steps away.
_MAX_STEPS = 8
_MAX_HOLDERS = 200

_CONTAINERS = (list, tuple, set, frozenset, deque)
_ENDS = (types.FrameType, types.ModuleType, type)


def describe_holders(target: object, ignore: Sequence[object] = ()) -> str:
    """Return what holds `target`, nearest first: ``item of list of 3, global 'CACHE' of module suites.x``.

    `ignore`: containers of the caller that also hold it. The garbage collector does not see the variables of a running
    function. If no other holder is found, the text names C, C++ or a running function.
    """
    modules = {id(vars(m)): name for name, m in list(sys.modules.items()) if _is(m, types.ModuleType)}
    path = _path(target, modules, {id(container) for container in ignore})
    if len(path) == 1:
        return "C, C++ or a running function (no object that the garbage collector tracks)"
    return ", ".join(_words(path, modules))


def _path(target: object, modules: dict[int, str], skip: set[int]) -> list[object]:
    """Return the objects from `target` to the nearest one with a name, or to the farthest one if none has a name."""
    chain_objects: list[object] = [target]
    seen = {id(target): 0}  # by object id, the position in `chain_objects` of the object that it holds
    skip |= {id(chain_objects), id(seen), id(modules), id(skip)}
    level = [0]
    reached = 0
    for _ in range(_MAX_STEPS):
        batch = [chain_objects[position] for position in level]
        skip.add(id(batch))
        referrers = gc.get_referrers(*batch)
        skip.add(id(referrers))
        positions = {id(chain_objects[position]): position for position in level}
        level = []
        for holder in referrers:
            if id(holder) in skip or id(holder) in seen or len(level) >= _MAX_HOLDERS:
                continue
            child = next((positions[id(item)] for item in gc.get_referents(holder) if id(item) in positions), None)
            if child is None:
                continue  # it no longer holds the object
            seen[id(holder)] = child
            chain_objects.append(holder)
            level.append(len(chain_objects) - 1)
            if id(holder) in modules or _is(holder, _ENDS) or holder is gc.garbage:
                return _trace(chain_objects, seen, len(chain_objects) - 1)
        del referrers, batch
        if not level:
            break
        reached = level[0]
    return _trace(chain_objects, seen, reached)


def _trace(objects: list[object], seen: dict[int, int], position: int) -> list[object]:
    path = [objects[position]]
    while position:
        position = seen[id(objects[position])]
        path.append(objects[position])
    path.reverse()
    return path


def _is(value: object, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Return isinstance, without access to ``__class__``, which may be code of the case."""
    return issubclass(type(value), kinds)


def _words(path: Sequence[object], modules: dict[int, str]) -> list[str]:
    """Return a phrase for each step along `path`: an object, then the holder of each object before it."""
    words = []
    position = 1
    while position < len(path):
        child, holder = path[position - 1], path[position]
        above = path[position + 1] if position + 1 < len(path) else None
        if _is(holder, dict) and id(holder) in modules:
            words.append(f"global {_key(holder, child)} of module {modules[id(holder)]}")
        elif _is(holder, dict) and _is(above, type):
            words.append(f"class attribute {_key(holder, child)} of {_qualified(above)}")
            position += 1
        elif _is(holder, dict) and _own_values(above) is holder:
            words.append(f"attribute {_key(holder, child)} of a {_qualified(type(above))}")
            position += 1
        elif _is(holder, dict):
            words.append(f"value of {_key(holder, child)} in dict of {len(holder)}")
        elif holder is gc.garbage:
            words.append("item of gc.garbage")
        elif _is(holder, types.CellType):
            words.append("closure cell")
        elif _is(holder, _CONTAINERS):
            words.append(f"item of {type(holder).__name__} of {len(holder)}")
        else:
            words.append(_described_holder(holder, child))
        position += 1
    return words


def _described_holder(holder: object, child: object) -> str:
    if _is(holder, types.FunctionType):
        return f"{_within(holder, child)} function {_qualified(holder)}"
    if _is(holder, types.FrameType):
        names = [name for name, value in holder.f_locals.items() if value is child]
        where = f"{holder.f_code.co_qualname} ({holder.f_code.co_filename}:{holder.f_lineno})"
        return f"local {names[0]!r} of {where}" if names else f"a running {where}"
    if _is(holder, (types.GeneratorType, types.CoroutineType)):
        return f"a suspended {_qualified(holder)}"
    if _is(holder, type):
        return f"class {_qualified(holder)}"
    for name in _attributes(holder):
        try:
            if object.__getattribute__(holder, name) is child:
                return f"attribute {name!r} of a {_qualified(type(holder))}"
        except AttributeError:
            continue
    wrapped = getattr(holder, "__wrapped__", None) if type(holder).__module__ == "functools" else None
    return f"cache of {_qualified(wrapped)}" if wrapped is not None else f"a {_qualified(type(holder))}"


def _attributes(holder: object) -> list[str]:
    """Return the names of an object's attributes, including slots. Run no code of its class."""
    slots = [
        name
        for kind in type(holder).__mro__
        for name, member in vars(kind).items()
        if _is(member, types.MemberDescriptorType)
    ]
    return [*_own_values(holder), *slots]


def _own_values(holder: object) -> dict[str, object]:
    """Return the object's ``__dict__``, or an empty one. Run no code of its class."""
    try:
        return cast("dict[str, object]", object.__getattribute__(holder, "__dict__"))
    except (AttributeError, TypeError):
        return {}


def _within(function: types.FunctionType, child: object) -> str:
    cells = function.__closure__ or ()
    if child is cells:
        return "in the closure of"
    return "default of" if child in (function.__defaults__, function.__kwdefaults__) else "held by"


def _key(mapping: dict[object, object], value: object) -> str:
    for key, member in mapping.items():
        if member is value:
            return f"{key!r:.80}" if type(key) in (str, int) else f"a {_qualified(type(key))}"
    return "a key"


def _qualified(value: object) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__name__)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


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
        self._files = process_meters.FileMeters(temp or Path(tempfile.gettempdir()), shm)
        self._tensors = {id(tensor): weakref.ref(tensor) for tensor in _tensors()}
        self._children = process_meters.running_children()
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
                new = [child for child in process_meters.running_children() if child not in self._children]
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
    return [] if torch is None else torch_memory.tensors_and_storages(gc.get_objects(), torch)


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


#: Bytes of malloc memory that torch.jit keeps forever for each function that it has traced. Measured: 42 to 48 KiB,
#: where a module is several functions. A scripted function takes 10 to 33 KiB.
JIT_BYTES_PER_FUNCTION = 48 << 10


class GrowthRounds:
    """Measures the current process. Subtracts the memory that torch.jit is known to keep from the malloc memory."""

    def __init__(self) -> None:
        self._meters: MeterReader | None = None
        self._before: MeterReading | None = None
        self._compiled = 0
        self._history: Sequence[str] = ()
        self._origins: GrowthOrigins | None = None
        self._kept = KeptMemory()

    def begin(self, *, counts: bool, history: Sequence[str]) -> None:
        """Begin a round. A round that does not `count` is not measured; the rounds that count come last.

        `history`: the meters whose growth in the counted rounds `origins` must explain.
        """
        self._history = history if counts else ()
        if counts and self._meters is None:
            # The search for origins examines all new objects, so they must not be frozen.
            self._meters = MeterReader("full", freeze=not history, without_arenas=True)
            if history:
                record_allocation_history(history)
                self._origins = GrowthOrigins()
            self._before, self._compiled = self._meters.read(), _functions_of_jit()

    def before_case(self) -> None:
        """Prepare for the next case."""
        if self._history:
            record_allocation_history(self._history)

    def after_case(self, *, keeps: Keeps | None) -> dict[str, int]:
        """Return the changes since the previous case, by meter. Empty in a round that does not count.

        With `keeps`, growth that the mark allows is left out.
        """
        if self._meters is None or self._before is None:
            return {}
        before, self._before = self._before, self._meters.read()
        compiled, self._compiled = self._compiled, _functions_of_jit()
        grown = meter_growths(before, self._before)
        if (heap := grown.get("heap_bytes", 0)) > 0:
            grown["heap_bytes"] = max(0, heap - JIT_BYTES_PER_FUNCTION * (self._compiled - compiled))
        return grown if keeps is None else self._kept.beyond(grown, keeps)

    def origins(self) -> Mapping[str, Sequence[str]]:
        """Return the origins of the growth in the counted rounds, by meter. The process cannot be used afterwards."""
        return {} if self._origins is None else self._origins.of(self._history)


def _functions_of_jit() -> int:
    """Return how many functions torch.jit has compiled; 0 if this release of torch does not provide the number."""
    unit = getattr(sys.modules.get("torch.jit._state"), "_python_cu", None)
    functions = getattr(unit, "get_functions", None)
    return 0 if functions is None else len(functions())

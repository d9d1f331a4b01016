"""The meters of what a case may leave behind in its process, read before and after the case. Readings are cheap.

A reading only raises suspicions. Repetitions decide what is a leak (`harness.checks.growth`). Its origin is searched
afterwards (`harness.checks.origins`).

A reading of CUDA memory need not synchronise: the allocator counts on the host, immediately. Only the return of blocks
that another stream used waits for the device. Take a reading after the check for sticky errors, which synchronises.
Nothing here creates a context, loads torch, or starts anything.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from harness.backends.accelerator import DeviceCounters
from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.checks import process_meters, torch_memory
from harness.checks.process_meters import PinnedArenas

#: `fast`: after every case. `full`: on suspicion, or if the user requests it.
Tier = Literal["fast", "full"]

Unit = Literal["bytes", "count"]

#: The most collections in a row: finalizers may create new garbage each time.
_MAX_COLLECTIONS = 5

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """How much a meter may grow: over a batch without a suspicion, and in a repetition without being a leak.

    Each pair is an amount in bytes or objects, and a further amount per case. `batch`: None if the meter raises no
    suspicion by itself. `beyond`: a further amount per case beyond `harness.checks.growth.MANY`, for a batch.
    """

    batch: tuple[int, int] | None
    repetition: tuple[int, int]
    why: str
    beyond: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRule:
    """How a meter counts over many repetitions: it must grow by more than `step` bytes or objects in each repetition.

    Reports list series of the same shape and length by `rank`, the clearest cause first.
    """

    step: int
    rank: int


@dataclass(frozen=True, slots=True)
class Meter:
    """One measured quantity of a process. By default it is read after every case, and a growth of one is a leak.

    - `noun`: what it measures, for messages; ``{s}`` and ``{es}`` stand for the plural (see `inflect_noun`).
    - `tier`: the `full` tier has all meters, the `fast` tier those marked `fast`.
    - `suspect`: growth above this over one case (in bytes or objects) is a reason for a repetition. None: never by
      itself.
    - `confirm`: the growth that each counted repetition must exceed. In the full tier this also raises the suspicion.
    - `why`: the reason for both numbers.
    - `covered_by`: meters in bytes whose growth this meter sees as well, less directly.
    - `from_zero`: if there was no earlier reading, the earlier value was 0.
    - `keeps`: the argument of the mark ``keeps`` that allows growth of this meter (`harness.checks.keeping`); "" if a
      case may never keep it.
    - `block_bytes`: if the meter counts blocks, the bytes per block: the average in Python's allocator, the minimum in
      torch's. A limit of ``keeps`` in bytes is divided by it.
    - `batch`: how much a batch and a repetition may grow (`harness.checks.growth`). None: a batch may not grow at all,
      and a repetition by `confirm`.
    - `trend`: how the meter counts over many repetitions (`harness.checks.trend`). None: not at all.
    """

    name: str
    noun: str
    _: KW_ONLY
    unit: Unit = "count"
    tier: Tier = "fast"
    suspect: int | None = 0
    confirm: int = 0
    why: str = "exact: a growth of one is a leak"
    covered_by: tuple[str, ...] = ()
    from_zero: bool = True
    keeps: str = ""
    block_bytes: int = 1
    batch: BatchRule | None = None
    trend: TrendRule | None = None

    @property
    def is_exact(self) -> bool:
        """Whether a growth of one means that one more object exists. Otherwise growth may have harmless reasons."""
        return self.suspect == 0


_CACHED = "the allocator keeps freed memory for the next case, so a first growth proves nothing"

# Reports list leaks in this order, the clearest cause first. The trend steps above zero are well above what 407 cases
# left behind when they ran 30 times on the CPU: 160 bytes of malloc memory, 24 blocks of Python's allocator. The steps
# for CUDA have not been measured. The reserve of torch's allocator on a device follows from the memory of tensors
# there, so `keeps` has no group for it. Cases may never keep threads, descriptors, files and shared memory.
METERS: tuple[Meter, ...] = (
    # Tensors that Python can reach, on any device.
    Meter("tensors", "torch tensor{s}", keeps="tensors"),
    # Each storage is counted once, however many tensors share it.
    Meter("tensor_bytes", "CPU memory in torch storages", unit="bytes", keeps="host", trend=TrendRule(step=0, rank=1)),
    Meter("uncollectable", "object{s} in gc.garbage"),
    Meter(
        "cuda_allocated", "CUDA memory in use by tensors", unit="bytes", keeps="device", trend=TrendRule(step=0, rank=2)
    ),
    Meter("cuda_active_blocks", "active block{s} of the CUDA allocator", keeps="device", block_bytes=512),
    Meter("cuda_graphs", "CUDA graph{s} still referenced"),
    Meter("cuda_streams", "CUDA stream{s} still referenced", keeps="streams"),
    Meter("cuda_events", "CUDA event{s} still referenced"),
    Meter("cuda_mempools", "torch.cuda.MemPool object{s} still referenced"),
    Meter("cuda_pools", "private memory pool{s} of CUDA graphs or of the user"),
    Meter(
        "cuda_reserved",
        "CUDA memory reserved by torch's allocator",
        unit="bytes",
        suspect=None,
        why=_CACHED,
        covered_by=("cuda_allocated",),
        trend=TrendRule(step=16 * _KIB, rank=9),
    ),
    Meter("cuda_segments", "segment{s} of the CUDA allocator", suspect=None, why=_CACHED),
    Meter(
        "cuda_driver",
        "CUDA memory of this process outside torch's allocator, from NVML",
        unit="bytes",
        suspect=32 * _MIB,
        confirm=2 * _MIB,
        why="kernels are loaded at their first use, some MiB at a time; the driver allocates in steps of 2 MiB",
        from_zero=False,
        batch=BatchRule(
            batch=(64 * _MIB, _MIB),
            repetition=(_MIB, 0),
            why=(
                "kernels are loaded once, at their first use, some MiB at a time; the driver allocates in steps of "
                "2 MiB (from what is known of drivers, not measured)"
            ),
        ),
        trend=TrendRule(step=16 * _KIB, rank=10),
    ),
    Meter(
        "device_allocated",
        "device memory in use by tensors",
        unit="bytes",
        keeps="device",
        trend=TrendRule(step=0, rank=3),
    ),
    Meter("device_active_blocks", "active block{s} of the device's allocator", keeps="device", block_bytes=512),
    Meter(
        "device_reserved",
        "device memory reserved by its allocator",
        unit="bytes",
        suspect=None,
        confirm=128 * _MIB,
        why=(
            "each stream has its own blocks: a case that takes other streams each time has 2 or 20 MiB more cached for "
            "each"
        ),
        covered_by=("device_allocated",),
        trend=TrendRule(step=16 * _KIB, rank=11),
    ),
    Meter("pinned_bytes", "pinned host memory in use", unit="bytes", keeps="pinned", trend=TrendRule(step=0, rank=4)),
    Meter(
        "pinned_reserved",
        "pinned host memory reserved by its allocator",
        unit="bytes",
        suspect=None,
        why=_CACHED,
        covered_by=("pinned_bytes",),
        keeps="pinned",
    ),
    Meter("children", "running child process{es}"),
    Meter("threads", "thread{s} (Python or native)", trend=TrendRule(step=0, rank=5)),
    Meter("shm_files", "file{s} of this process under /dev/shm"),
    Meter("shm_bytes", "shared memory of this process under /dev/shm", unit="bytes"),
    Meter("temp_files", "file{s} or folder{s} in the temporary folder"),
    Meter("temp_bytes", "data in the temporary folder", unit="bytes"),
    Meter("descriptors", "open file descriptor{s}", trend=TrendRule(step=0, rank=6)),
    Meter(
        "heap_bytes",
        "malloc memory of C code, NumPy or torch on the CPU",
        unit="bytes",
        suspect=256 * _KIB,
        confirm=128 * _KIB,
        why=(
            "in KiB: a first call leaves some 100; a repeated case leaves up to 15, since malloc's thread caches fill "
            "up slowly; a case that runs torch.compile again each time leaves 55, and torch.jit.trace keeps 105 each "
            "time"
        ),
        covered_by=("tensor_bytes",),
        from_zero=False,
        keeps="host",
        batch=BatchRule(
            batch=(64 * _KIB, 3 * _KIB // 2),
            repetition=(64 * _KIB, _KIB // 4),
            why=(
                "measured in KiB with torch on the CPU: each of 400 cases leaves 0.6 to 2 in its first run, 24 cases "
                "together at most 82, 9 cases at most 66; each of 1,400 cases, many with optimisers, leaves 2.2; in "
                "further runs each leaves 0.03 to 0.1, and a new torch.compile 55"
            ),
            beyond=3 * _KIB // 2,
        ),
        trend=TrendRule(step=_KIB // 2, rank=7),
    ),
    Meter(
        "mapped_bytes",
        "address space outside malloc (mmap, thread stacks, Python arenas, libraries)",
        unit="bytes",
        suspect=16 * _MIB,
        why="Python takes arenas of 1 MiB as it needs them, but not one in every repetition",
        covered_by=("shm_bytes", "pinned_reserved"),
        from_zero=False,
        keeps="host",
        batch=BatchRule(
            batch=(2 * _MIB, 16 * _KIB),
            repetition=(0, 4 * _KIB),
            why=(
                "Python takes arenas of 1 MiB as it needs them; the same cases need one in some rounds, but not in "
                "each; 790 to 830 cases in any order, a third of them with torch.compile or optimisers, leave 21 to 26 "
                "KiB each"
            ),
            beyond=14 * _KIB,
        ),
        trend=TrendRule(step=16 * _KIB, rank=12),
    ),
    Meter(
        "python_blocks",
        "memory block{s} of Python's own allocator",
        tier="full",
        suspect=20_000,
        confirm=2_000,
        why="an import makes tens of thousands; a repeated case some tens (of pytest), or hundreds (of torch.compile)",
        from_zero=False,
        keeps="host",
        block_bytes=64,
        batch=BatchRule(
            batch=None, repetition=(2_000, 16), why="pytest keeps less than one block for each repeated case"
        ),
        trend=TrendRule(step=100, rank=8),
    ),
)

METERS_BY_NAME = {meter.name: meter for meter in METERS}


def meter_of(name: str) -> Meter:
    """Return the entry of the table for a name in a reading, such as ``cuda_allocated[0]``.

    Raise KeyError for an unknown name.
    """
    return METERS_BY_NAME[name.partition("[")[0]]


def noun_of(name: str) -> str:
    """Return what a name in a reading measures, with its device; for `inflect_noun`."""
    index = name.partition("[")[2].rstrip("]")
    return f"{meter_of(name).noun} on device {index}" if index else meter_of(name).noun


def inflect_noun(noun: str, amount: int) -> str:
    """Return the noun in the singular for an amount of 1, else in the plural: ``torch tensors``."""
    return noun.replace("{s}", "" if amount == 1 else "s").replace("{es}", "" if amount == 1 else "es")


def format_quantity(amount: int, unit: Unit) -> str:
    """Return an amount for people: ``3``, ``640 bytes``, ``8.0 MiB``."""
    if unit == "count":
        return str(amount)
    for size, word in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if abs(amount) >= size:
            return f"{amount / size:.1f} {word}"
    return f"{amount} bytes"


def format_growths(grown: Mapping[str, int]) -> str:
    """Return the growth of each meter, for people: ``96.0 KiB (heap_bytes), 1 (threads)``.

    A meter that is not in the table, which a journal may contain, is shown as a plain number.
    """
    units = {name: METERS_BY_NAME[base].unit for name in grown if (base := name.partition("[")[0]) in METERS_BY_NAME}
    return ", ".join(f"{format_quantity(amount, units.get(name, 'count'))} ({name})" for name, amount in grown.items())


#: Bytes or count by meter name, plain values for JSON. A meter that could not be read is missing.
MeterReading = dict[str, int]


def add_amounts(total: MeterReading, amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add these amounts by meter or, with `sign` -1, subtract them."""
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + sign * amount


def meter_growths(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the changes by meter, up or down. Leave out meters that cannot be compared."""
    changes = {}
    for name, value in after.items():
        was = before.get(name)
        if was is None:
            was = 0 if meter_of(name).from_zero else value
        if value != was:
            changes[name] = value - was
    return changes


def suspicious_growths(changes: Mapping[str, int], tier: Tier = "fast") -> dict[str, int]:
    """Return those of the `changes` that are a reason to run the case again: each is above its meter's threshold.

    In the full tier the threshold is the one for confirming a leak.
    """
    suspicious = {}
    for name, growth in changes.items():
        meter = meter_of(name)
        if meter.suspect is not None and growth > (meter.suspect if tier == "fast" else meter.confirm):
            suspicious[name] = growth
    return suspicious


class MeterReader:
    """Takes readings of this process, which must be disposable. Make the reader after the fork.

    Objects frozen before (`gc.freeze`) are not examined, so a reading takes 0.05 ms instead of 50. `unreadable` has the
    reason for each meter that could not be read.
    """

    #: With more tracked objects than this, freeze them, so that the next reading does not examine them again.
    #: torch._dynamo creates 150,000: each later reading would take tens of milliseconds, and a collection hundreds.
    FREEZE_ABOVE = 10_000
    #: Frozen objects that become garbage in cycles stay until all objects are examined. An examination takes a second
    #: per million objects. It is made once this many have been frozen, and then each time their number has doubled:
    #: 154 cases with torch.compile freeze 2 million objects, of which 5,500 become garbage.
    EXAMINE_ALL_AFTER = 200_000

    def __init__(
        self,
        tier: Tier,
        *,
        temp: Path | None = None,
        shm: Path = Path("/dev/shm"),
        freeze: bool = True,
        without_arenas: bool = False,
    ) -> None:
        """`temp`: the temporary folder of this process alone, by default that of `tempfile`.

        `freeze`: whether objects may be frozen when there are many. Frozen objects are hidden from other code that
        looks for new objects.

        `without_arenas`: do not count Python's arenas with free space as address space, see `PinnedArenas`. This takes
        up to 20 ms at the start, and again when the address space has grown.
        """
        self.unreadable: dict[str, str] = {}
        self._tier = tier
        self._files = process_meters.FileMeters(temp or Path(tempfile.gettempdir()), shm)
        counters = {backend.kind: backend.counters() for backend in BACKENDS.values()}
        self._counters = {kind: reader for kind, reader in counters.items() if reader is not None}
        self._last: MeterReading | None = None
        self._frozen = torch_memory.TorchObjectCounts()
        self._freeze_above = self.FREEZE_ABOVE if freeze else sys.maxsize
        self._frozen_since = 0
        self._examine_after = self.EXAMINE_ALL_AFTER
        self._arenas = PinnedArenas(process_meters.address_space) if without_arenas else None

    def read(self) -> MeterReading:
        """Take a reading. Collect garbage if that may explain growth; in the full tier always."""
        if self._tier == "full":
            collect_garbage()
            self.release_caches()
        reading = self._take()
        if self._tier == "fast" and self._last is not None:
            for _ in range(_MAX_COLLECTIONS):  # finalizers may create garbage; usually one collection explains all
                if not suspicious_growths(meter_growths(self._last, reading)):
                    break
                garbage = collect_garbage_once()
                self.release_caches()
                reading = self._take()
                if not garbage:
                    break
        self._last = reading
        return reading

    def expect(self, amounts: Mapping[str, int], sign: int) -> None:
        """Count with these amounts in the next comparison: more (`sign` 1) or less (-1) is no reason for a search."""
        if self._last is not None:
            self._last = {**self._last}
            add_amounts(self._last, amounts, sign)

    def release_caches(self) -> None:
        """Free memory that torch caches per stream and per graph, unless a graph is alive, which may refer to it.

        Otherwise a case that uses new streams of torch's pool, or captures graphs, would seem to leak.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            return
        for backend in (BACKENDS[kind] for kind in self._counters):
            if backend.is_initialized(torch) and not self._count_objects().graphs:
                with contextlib.suppress(Exception):  # a case may have replaced what is called here
                    backend.release_caches(torch)

    def _take(self) -> MeterReading:
        values: MeterReading = {
            "uncollectable": len(gc.garbage),
            **process_meters.read_process_meters(self.unreadable),
            **self._files.read(),
        }
        if self._tier == "full":
            values["python_blocks"] = sys.getallocatedblocks()
        if self._arenas is not None:
            values["mapped_bytes"] -= self._arenas.size()
        torch = sys.modules.get("torch")
        objects = self._count_objects()
        values["tensors"] = objects.tensors
        values["tensor_bytes"] = objects.tensor_bytes
        if torch is not None:
            for kind, counters in self._counters.items():
                full = self._tier == "full"
                read_device_meters(BACKENDS[kind], counters, torch, objects, values, self.unreadable, full=full)
        return values

    def _count_objects(self) -> torch_memory.TorchObjectCounts:
        torch = sys.modules.get("torch")
        if torch is None:
            return self._frozen
        objects = gc.get_objects()
        many = len(objects) > self._freeze_above
        if many and self._tier == "fast":
            del objects
            collect_garbage()
            objects = gc.get_objects()
        counts = torch_memory.count_torch_objects(objects, torch) + self._frozen
        if many:
            # Frozen objects stay in the counts, even after they have been freed. This does not hide growth.
            del objects
            self._freeze()
            self._frozen = counts
        return counts

    def _freeze(self) -> None:
        """Freeze all tracked objects: the garbage collector no longer examines them.

        In the full tier, which decides about leaks, this collects all garbage before it freezes more objects. The
        collection takes a second each time, so the interval between freezes grows.
        """
        before, self._frozen_since = self._frozen_since, self._frozen_since + len(gc.get_objects())
        if before and self._tier == "full":
            self._freeze_above *= 2
            self.collect_all()
        elif self._frozen_since > self._examine_after:
            self.collect_all()
            self._examine_after = max(self.EXAMINE_ALL_AFTER, gc.get_freeze_count())
        gc.freeze()

    def collect_all(self) -> None:
        """Free garbage also among the objects that this reader has frozen. Freeze all that are left."""
        if self._frozen_since:
            self._frozen_since = 0
            gc.unfreeze()
            collect_garbage()
            gc.freeze()


def read_device_meters(
    backend: Backend,
    counters: DeviceCounters,
    torch: ModuleType,
    objects: torch_memory.TorchObjectCounts,
    values: MutableMapping[str, int],
    unreadable: MutableMapping[str, str],
    *,
    full: bool,
) -> None:
    """Add to `values` what devices of one kind hold for this process, if it uses them. Subtract what the devices keep.

    Meters that cannot be read go to `unreadable`, with the reason.
    """
    initialized = backend.is_initialized(torch)
    if backend.kind in unreadable or not (initialized or backend.in_use()):
        return
    values.update({meter: getattr(objects, counted) for meter, counted in backend.objects.items()})
    try:
        # A query through torch would initialise the device.
        readings = counters.read(torch, unreadable, full=full) if initialized else {}
        threads = backend.own_threads(torch)
    except Exception as error:  # noqa: BLE001
        # A case may have replaced what is read here, or this release of torch may lack it.
        unreadable[backend.kind] = repr(error)
        return
    values["threads"] -= threads
    for name in backend.ignored_meters:
        values.pop(name, None)
    values.update(readings)


def collect_garbage() -> None:
    """Free reference cycles, and the last exception, which is kept for a debugger."""
    for _ in range(_MAX_COLLECTIONS):  # finalizers may create new garbage
        if not collect_garbage_once():
            return


def collect_garbage_once() -> int:
    """Collect once, without the garbage that finalizers create meanwhile. Return the number of garbage objects."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    return gc.collect()

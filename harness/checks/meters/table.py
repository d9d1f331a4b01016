"""What a case may leave behind in its process, measured before and after it: one table, cheap readings, no verdict.

A reading raises suspicions only. What is a leak is decided by repetition (`harness.checks.growth`), and where it came
from is looked for afterwards (`harness.checks.origins`).

A correct reading of CUDA memory needs no synchronisation of its own: the allocator counts on the host, at once. What
waits for the device is only the return of blocks that another stream used, so a reading is best taken after the check
for sticky errors, which has synchronised. Nothing here makes a context, loads torch, or starts what is not there.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from harness.backends.backend import Backend, DeviceCounters
from harness.backends.table import BACKENDS
from harness.checks.meters import process as meters_process
from harness.checks.meters import torch_memory as meters_torch

#: `fast`: after every case. `full`: on suspicion, or where the user asked for it.
Tier = Literal["fast", "full"]

#: Collections in a row, for finalizers that make new garbage each time.
_MOST_ROUNDS = 5

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Meter:
    """One thing that is measured.

    `suspect`: a growth above this, in bytes or things, over one case is worth a repetition; None: never by itself.
    `confirm`: what must be exceeded in every repetition that counts; in the full tier it is also what makes suspect.
    `why` gives the reason for both. `covered_by` names the meters in bytes whose growth this one sees as well, from
    further away. A meter with `per_device` is read once a CUDA device and then named ``name[index]``. `from_zero`:
    where there was no reading before, there was none of it. The `full` tier has all meters, the `fast` one its own.
    """

    name: str
    unit: Literal["bytes", "count"]
    counts: str
    tier: Tier
    suspect: int | None
    confirm: int
    why: str
    covered_by: tuple[str, ...] = ()
    per_device: bool = False
    from_zero: bool = True


_EXACT = "exact: one is one too many"
_CACHED = "the allocator keeps what was freed for the next case, so a first growth says nothing"

# The order is that in which leaks are told: what points most clearly at its cause comes first.
METERS: tuple[Meter, ...] = (
    Meter("tensors", "count", "torch tensors that Python can reach, on any device", "fast", 0, 0, _EXACT),
    Meter("tensor_bytes", "bytes", "storages on the CPU of such tensors, each counted once", "fast", 0, 0, _EXACT),
    Meter("uncollectable", "count", "objects in gc.garbage", "fast", 0, 0, _EXACT),
    Meter("cuda_allocated", "bytes", "of the device, in use by tensors", "fast", 0, 0, _EXACT, per_device=True),
    Meter("cuda_active_blocks", "count", "allocator's blocks in use", "fast", 0, 0, _EXACT, per_device=True),
    Meter("cuda_graphs", "count", "CUDA graphs still referenced", "fast", 0, 0, _EXACT),
    Meter("cuda_streams", "count", "CUDA streams still referenced", "fast", 0, 0, _EXACT),
    Meter("cuda_events", "count", "CUDA events still referenced", "fast", 0, 0, _EXACT),
    Meter("cuda_mempools", "count", "memory pools of the user's still referenced", "fast", 0, 0, _EXACT),
    Meter("cuda_pools", "count", "private pools, of graphs or the user's", "full", 0, 0, _EXACT, per_device=True),
    Meter(
        "cuda_reserved",
        "bytes",
        "of the device, held by the allocator",
        "fast",
        None,
        0,
        _CACHED,
        covered_by=("cuda_allocated",),
        per_device=True,
    ),
    Meter("cuda_segments", "count", "the allocator's segments", "fast", None, 0, _CACHED, per_device=True),
    Meter(
        "cuda_driver",
        "bytes",
        "of the device, held by this process and not by torch's allocator, as NVML tells",
        "fast",
        32 * _MIB,
        2 * _MIB,
        "kernels are loaded when first used, some MiB at a time; the driver gives memory in steps of 2 MiB",
        per_device=True,
        from_zero=False,
    ),
    Meter("soft_allocated", "bytes", "of a software device, in use by tensors", "fast", 0, 0, _EXACT, per_device=True),
    Meter("soft_active_blocks", "count", "its allocator's blocks in use", "fast", 0, 0, _EXACT, per_device=True),
    Meter(
        "soft_reserved",
        "bytes",
        "of a software device, held by its allocator",
        "fast",
        None,
        128 * _MIB,
        "each stream has blocks of its own, so a case that takes other streams each time has 2 or 20 MiB more cached "
        "for each",
        covered_by=("soft_allocated",),
        per_device=True,
    ),
    Meter("pinned_bytes", "bytes", "pinned host memory in use", "fast", 0, 0, _EXACT),
    Meter(
        "pinned_reserved", "bytes", "pinned host memory held", "fast", None, 0, _CACHED, covered_by=("pinned_bytes",)
    ),
    Meter("threads", "count", "threads of the process, Python's and others", "fast", 0, 0, _EXACT),
    Meter("shm_files", "count", "files under /dev/shm that are this process's", "fast", 0, 0, _EXACT),
    Meter("shm_bytes", "bytes", "their sizes", "fast", 0, 0, _EXACT),
    Meter("temp_files", "count", "files and folders in the folder for temporary files", "fast", 0, 0, _EXACT),
    Meter("temp_bytes", "bytes", "the sizes of those files", "fast", 0, 0, _EXACT),
    Meter("descriptors", "count", "open descriptors", "fast", 0, 0, _EXACT),
    Meter(
        "heap_bytes",
        "bytes",
        "handed out by malloc, which torch's, NumPy's and C's memory on the CPU is from",
        "fast",
        256 * _KIB,
        128 * _KIB,
        "a first call leaves some 100 KiB; a case run again up to 15, since malloc's caches by thread fill up slowly, "
        "one that has torch compile anew each time 55, and torch.jit.trace keeps 105 each time",
        covered_by=("tensor_bytes",),
        from_zero=False,
    ),
    Meter(
        "mapped_bytes",
        "bytes",
        "address space outside malloc's: mmap, thread stacks, Python's arenas, libraries",
        "fast",
        16 * _MIB,
        0,
        "Python takes arenas of 1 MiB as it needs them, but not one in every repetition",
        covered_by=("shm_bytes", "pinned_reserved"),
        from_zero=False,
    ),
    Meter(
        "python_blocks",
        "count",
        "blocks of Python's own allocator",
        "full",
        20_000,
        2_000,
        "an import makes tens of thousands; a case run again some tens of pytest's, or hundreds of torch.compile's",
        from_zero=False,
    ),
)

_BY_NAME = {meter.name: meter for meter in METERS}


def meter_of(name: str) -> Meter:
    """The table's entry for a name in a reading, ``cuda_allocated[0]`` say. Raises KeyError for an unknown one."""
    return _BY_NAME[name.partition("[")[0]]


def quantity(amount: int, unit: Literal["bytes", "count"]) -> str:
    """An amount for people: ``3``, ``640 bytes``, ``8.0 MiB``."""
    if unit == "count":
        return str(amount)
    for size, word in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if abs(amount) >= size:
            return f"{amount / size:.1f} {word}"
    return f"{amount} bytes"


@dataclass(frozen=True, slots=True)
class Reading:
    """Meter name → bytes or count, plain values for JSON. A meter that could not be read is not in it."""

    values: Mapping[str, int]


def growths(before: Reading, after: Reading) -> dict[str, int]:
    """What changed, up or down, of what can be compared."""
    changes = {}
    for name, value in after.values.items():
        was = before.values.get(name, 0 if meter_of(name).from_zero else value)
        if change := value - was:
            changes[name] = change
    return changes


def suspicions(before: Reading, after: Reading, tier: Tier = "fast") -> dict[str, int]:
    """The growths that are worth running the case again, each above its meter's own threshold.

    In the full tier all that could be confirmed is worth it.
    """
    found = {}
    for name, growth in growths(before, after).items():
        meter = meter_of(name)
        if meter.suspect is not None and growth > (meter.suspect if tier == "fast" else meter.confirm):
            found[name] = growth
    return found


class Meters:
    """Takes readings of this process, a disposable one. Make it after the fork: what was frozen before (`gc.freeze`) is
    not looked at, which is why a reading costs 0.05 ms and not 50.

    `blind` tells, by meter, why one could not be read.
    """

    #: Objects that the collector tracks above which they are frozen, so that the next reading need not look at them.
    #: torch._dynamo brings 150,000: each later reading would cost tens of milliseconds, and a collection hundreds.
    POPULATION = 10_000

    def __init__(
        self, tier: Tier, *, temp: Path | None = None, shm: Path = Path("/dev/shm"), freeze: bool = True
    ) -> None:
        """`temp`: the folder for temporary files of this process alone, by default that of `tempfile`.

        `freeze`: whether many objects may be frozen, which hides them from others who look for what is new.
        """
        self.blind: dict[str, str] = {}
        self._tier = tier
        self._files = meters_process.Files(temp or Path(tempfile.gettempdir()), shm)
        self._counters = {each.kind: each.counters() for each in BACKENDS.values() if each.counters is not None}
        self._last: Reading | None = None
        self._frozen = meters_torch.Census()
        self._most = self.POPULATION if freeze else sys.maxsize
        self._froze = False

    def read(self) -> Reading:
        """Take a reading. Garbage is collected first where that may explain a growth, and always in the full tier."""
        if self._tier == "full":
            collect_garbage()
        reading = self._take()
        if self._tier == "fast" and self._last is not None and suspicions(self._last, reading):
            collect_garbage()
            reading = self._take()
        self._last = reading
        return reading

    def _take(self) -> Reading:
        values = {"uncollectable": len(gc.garbage), **meters_process.read(self.blind), **self._files.read()}
        if self._tier == "full":
            values["python_blocks"] = sys.getallocatedblocks()
        torch = sys.modules.get("torch")
        census = self._census()
        values["tensors"] = census.tensors
        values["tensor_bytes"] = census.tensor_bytes
        if torch is not None:
            for kind, counters in self._counters.items():
                full = self._tier == "full"
                read_devices(BACKENDS[kind], counters, torch, census, values, self.blind, full=full)
        return Reading(values)

    def _census(self) -> meters_torch.Census:
        torch = sys.modules.get("torch")
        objects = gc.get_objects()
        many = len(objects) > self._most
        if many and self._tier == "fast":
            del objects
            collect_garbage()
            objects = gc.get_objects()
        census = meters_torch.census(objects, torch) + self._frozen
        if many:
            # Counted for good: what was frozen may end and not be missed here, which hides nothing that grows.
            del objects
            self._freeze()
            self._frozen = census
        return census

    def _freeze(self) -> None:
        """Have the collector look no more at what is there.

        What became garbage while it was frozen would stay for ever, and grow if that went on, so it is collected before
        more is frozen. That looks at all that the fork brought too, and is done ever more rarely.
        """
        if self._froze:
            gc.unfreeze()
            collect_garbage()
            self._most *= 2
        gc.freeze()
        self._froze = True


def read_devices(
    backend: Backend,
    counters: DeviceCounters,
    torch: ModuleType,
    census: meters_torch.Census,
    values: MutableMapping[str, int],
    blind: MutableMapping[str, str],
    *,
    full: bool,
) -> None:
    """Add to `values` what devices of one kind hold for this process, if it uses them; take out what is their own.

    What cannot be read goes to `blind`, with the reason.
    """
    if backend.kind in blind or not backend.is_awake(torch):
        return
    values.update({meter: getattr(census, counted) for meter, counted in backend.objects.items()})
    try:
        found = counters.read(torch, blind, full=full)
        threads = backend.own_threads(torch)
    except Exception as error:  # noqa: BLE001
        # A case may have replaced what is read here, and another torch may lack it.
        blind[backend.kind] = repr(error)
        return
    values["threads"] -= threads
    for name in backend.silenced:
        values.pop(name, None)
    values.update(found)


def collect_garbage() -> None:
    """Let go of what only waits to be let go of: reference cycles, and the last exception, kept for a debugger."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    for _ in range(_MOST_ROUNDS):  # what finalizers let go of may be garbage in its turn
        if not gc.collect():
            return

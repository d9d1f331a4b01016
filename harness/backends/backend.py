"""The properties of one kind of device. Each kind is a frozen value in a file of its own; `table` lists them.

Facts hold in every process. Functions are called in executors only. They take the torch module that the process has
imported. None of them initialises a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

#: Names a kind of device: in ``--device``, in ``requires(device=…)``, in inventories.
DeviceKind = str


class DeviceCounters(Protocol):
    """Reads what the devices of one kind hold for this process."""

    def read(self, torch: ModuleType, unreadable: MutableMapping[str, str], *, full: bool) -> dict[str, int]:
        """Return values by meter; `full` adds expensive ones.

        What cannot be read goes to `unreadable`, with the reason.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)  # one value per kind: compared and hashed by identity
class Backend:
    """One kind of device.

    Facts:

    - `kind` names it; `torch_type` is the type of its `torch.device`.
    - `inventory`: the function that lists the devices of this kind, as ``module:function``. It takes the environment,
      returns an `Inventory`, and raises HarnessError if a run with ``--device=kind`` cannot have such a device.
    - `noun`: what a sentence calls the devices. `device_name`: the name of each device of this kind, if they share one.
    - `label`: what reports call the device, so that its results are not mistaken for results on a GPU. Empty for a GPU.
    - `no_gpu`: why it lacks what only a GPU has. Empty for a GPU.
    - `uuid_prefixes`: how the UUIDs of its devices begin.
    - `mask`: the variable that lists the visible devices; `variables`: others that decide which devices exist.
    - `device_nodes`: files that a process holds open once it has initialised the driver.
    - `hardware`: a driver serves it. Its devices are examined and monitored, and workers take turns at them. Processes
      go through the whole teardown at their end, since drivers crash there.
    - `software`: this project builds and loads it. Every process has its own devices.
    - `provider`: of a software device, the module that builds and loads it (`harness.sim.native.provider`).
    - `from_start`: it must be in a process from its start on, or from before an import of torch.
    - `faults`: the list of the faults that can be injected, relative to the folder of the package; empty if there are
      none. `faults_variable` has the injections of a process, separated by semicolons. `interposed`: the interposer
      injects them, a library that must be in a process from its start.
    - `implied`: the conditions that hold on a machine of this kind, beside those that it declares.

    Functions:

    - `in_use`: whether anything in this process uses the devices, torch or not, beyond what device nodes show. A fork
      of such a process could not use them.
    - `is_initialized`: whether torch uses the devices in this process.
    - `device_count`.
    - `synchronize` one device, by index. It raises RuntimeError for a sticky error.
    - `failures`: sticky errors that the devices report without a synchronisation.
    - `seed` all generators.
    - `empty_cache` returns cached memory.
    - `faults_struck`: how often each injected fault has struck.

    Leak checks:

    - `counters` makes a reader of memory and similar resources.
    - `release_caches` frees memory that torch caches per stream or per graph. Called only where no graph is alive.
    - `objects` maps meters that count torch objects to what is counted
      (`harness.checks.meters.torch_memory.TorchObjectCounts`).
    - `own_threads`: the number of threads that the devices keep.
    - `heap_per_case`: bytes of malloc memory that the driver keeps for what cases use for the first time. So much per
      case of a batch raises no suspicion.
    - `ignored_meters`: meters of the process that say nothing once a device is initialised.
    """

    kind: DeviceKind
    torch_type: str
    inventory: str
    noun: str
    label: str
    no_gpu: str
    uuid_prefixes: tuple[str, ...]
    mask: str | None = None
    variables: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    hardware: bool = False
    software: bool = False
    provider: str = ""
    from_start: bool = False
    faults: str = ""
    faults_variable: str = ""
    interposed: bool = False
    device_name: str = ""
    implied: Mapping[str, Any] = field(default_factory=dict)
    in_use: Callable[[], bool] = lambda: False
    is_initialized: Callable[[ModuleType], bool] = lambda _: False
    device_count: Callable[[ModuleType], int] = lambda _: 0
    synchronize: Callable[[ModuleType, int], object] = lambda *_: None
    failures: Callable[[ModuleType], Sequence[str]] = lambda _: ()
    seed: Callable[[ModuleType, int], object] = lambda *_: None
    empty_cache: Callable[[ModuleType], object] = lambda _: None
    faults_struck: Callable[[ModuleType], Mapping[str, int]] = lambda _: {}
    counters: Callable[[], DeviceCounters] | None = None
    release_caches: Callable[[ModuleType], object] = lambda _: None
    objects: Mapping[str, str] = field(default_factory=dict)
    own_threads: Callable[[ModuleType], int] = lambda _: 0
    heap_per_case: int = 0
    ignored_meters: tuple[str, ...] = ()

    def first_device(self, torch: ModuleType) -> Any:
        """Return the `torch.device` of the first visible device of this kind."""
        return torch.device(self.torch_type, 0) if self.accelerator else torch.device(self.torch_type)

    @property
    def injectable(self) -> bool:
        """Whether faults can be injected."""
        return bool(self.faults)

    @property
    def accelerator(self) -> bool:
        """Whether it is anything but the CPU."""
        return self.hardware or self.software

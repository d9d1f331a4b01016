"""The properties of one kind of device: a frozen value, in this tree or in a registration outside of it (`table`).

Facts hold in every process. Functions are called in executors only. They take the torch module that the process has
imported. None of them initialises a device. Each has a default that asks ``torch.accelerator`` or the device's own
module (`harness.backends.accelerator`), so that ``Backend("npu")`` is a whole registration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from harness.backends import accelerator
from harness.backends.accelerator import DeviceCounters

#: Names a kind of device: in ``--device``, in ``requires(device=…)``, in inventories.
DeviceKind = str

#: The default of what torch is asked for.
_OF_TORCH: Any = None
#: The values of texts that a registration has not set.
_UNSAID: Mapping[str, Any] = {"torch_type": "", "noun": "", "uuid_prefixes": ()}


@dataclass(frozen=True, slots=True, eq=False)  # one value per kind: compared and hashed by identity
class Backend:
    """One kind of device.

    Facts:

    - `kind` names it; `torch_type` is the type of its `torch.device`, by default the kind.
    - `modules`: what registers the devices with torch. Imported right after torch, in each process that runs cases and
      before the cases are collected. Empty for devices that torch serves itself, or that torch imports by their entry
      point of the group ``torch.backends``. The import uses no device.
    - `inventory`: the function that lists the devices of this kind, as ``module:function``. It takes the environment,
      returns an `Inventory`, and raises HarnessError if a run with ``--device=kind`` cannot have such a device. Without
      one, a disposable process asks torch (`harness.devices.registered`).
    - `noun`: what a sentence calls the devices. `device_name`: the name of each device of this kind, if they share one.
    - `label`: what reports call the device, so that its results are not mistaken for results on a GPU. Empty for a GPU.
    - `no_gpu`: why it lacks what only a GPU of CUDA has. Empty for a GPU.
    - `uuid_prefixes`: how the UUIDs of its devices begin.
    - `mask`: the variable that lists the visible devices. Without one, each process sees all devices, so that workers
      use the first one, in turn. `variables`: others that decide which devices exist.
    - `device_nodes`: files that a process holds open once it has initialised the driver.
    - `hardware`: processes share the devices: workers take turns at them, and one examines each before the first
      case on it. Processes go through the whole teardown at their end, since drivers crash there. Otherwise every
      process has its own devices, and nobody waits for them.
    - `nvml`: NVML lists and monitors the devices.
    - `provider`: the module that builds and loads the devices (`harness.sim.native.provider`), for devices that need it
      in each run.
    - `from_start`: it must be in a process from its start on, or from before an import of torch.
    - `faults`: the lists of the faults that can be injected, relative to the folder of the package; empty if there are
      none. `faults_variable` has the injections of a process, separated by semicolons. `interposed`: the interposer
      injects them, a library that must be in a process from its start.
    - `implied`: the conditions that hold on a machine of this kind, beside those that it declares.
    - `capabilities`: values that override what the harness would detect, by name (docs/capabilities.md): ``bf16``,
      ``cuda_graphs``.

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
    - `properties` of one device, by index: ``name``, ``uuid`` and ``total_memory``, each as far as it is known.

    Leak checks:

    - `counters` makes a reader of memory and similar resources.
    - `release_caches` frees memory that torch caches per stream or per graph. Called only where no graph is alive.
    - `objects` maps meters that count torch objects to what is counted
      (`harness.checks.meters.torch_memory.TorchObjectCounts`).
    - `own_threads`: the number of threads that the devices keep.
    - `heap_per_case`: bytes of malloc memory that the driver keeps for what cases use for the first time. So much per
      case of a batch raises no suspicion.
    - `ignored_meters`: meters of the process that say nothing once a device is initialised. By default the host's
      memory: what an unknown driver takes of it is not known.
    """

    kind: DeviceKind
    torch_type: str = ""
    modules: tuple[str, ...] = ()
    inventory: str = ""
    noun: str = ""
    label: str = _OF_TORCH
    no_gpu: str = _OF_TORCH
    uuid_prefixes: tuple[str, ...] = ()
    mask: str | None = None
    variables: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    hardware: bool = True
    nvml: bool = False
    provider: str = ""
    from_start: bool = False
    faults: tuple[str, ...] = ()
    faults_variable: str = ""
    interposed: bool = False
    device_name: str = ""
    implied: Mapping[str, Any] = field(default_factory=lambda: {"accelerator": True})
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    in_use: Callable[[], bool] = lambda: False
    is_initialized: Callable[[ModuleType], bool] = _OF_TORCH
    device_count: Callable[[ModuleType], int] = _OF_TORCH
    synchronize: Callable[[ModuleType, int], object] = _OF_TORCH
    failures: Callable[[ModuleType], Sequence[str]] = lambda _: ()
    seed: Callable[[ModuleType, int], object] = _OF_TORCH
    empty_cache: Callable[[ModuleType], object] = _OF_TORCH
    faults_struck: Callable[[ModuleType], Mapping[str, int]] = lambda _: {}
    properties: Callable[[ModuleType, int], Mapping[str, Any]] = _OF_TORCH
    counters: Callable[[], DeviceCounters] | None = _OF_TORCH
    release_caches: Callable[[ModuleType], object] = lambda _: None
    objects: Mapping[str, str] = field(default_factory=dict)
    own_threads: Callable[[ModuleType], int] = lambda _: 0
    heap_per_case: int = 0
    ignored_meters: tuple[str, ...] = ("heap_bytes", "mapped_bytes")

    def __post_init__(self) -> None:
        """Fill in what the registration does not say."""
        torch_type = self.torch_type or self.kind
        offered = accelerator.AcceleratorDefaults(torch_type)
        defaults = {
            "torch_type": torch_type,
            "noun": f"the device {self.kind}",
            "label": self.kind,
            "no_gpu": f"the device is {self.kind}",
            "uuid_prefixes": (f"{self.kind.upper()}-",),
            **{name: getattr(offered, name) for name in accelerator.OFFERED},
        }
        for name, value in defaults.items():
            given = getattr(self, name)
            if given is _OF_TORCH or given == _UNSAID.get(name, _OF_TORCH):
                object.__setattr__(self, name, value)

    def first_device(self, torch: ModuleType) -> Any:
        """Return the `torch.device` of the first visible device of this kind."""
        return torch.device(self.torch_type, 0) if self.accelerator else torch.device(self.torch_type)

    def import_torch(self) -> ModuleType:
        """Import torch and what registers the devices with it. Raise whatever that raises."""
        torch = importlib.import_module("torch")
        for name in self.modules:
            importlib.import_module(name)
        return torch

    @property
    def injectable(self) -> bool:
        """Whether faults can be injected."""
        return bool(self.faults)

    @property
    def accelerator(self) -> bool:
        """Whether it is anything but the CPU."""
        return self.torch_type != "cpu"

    @property
    def software(self) -> bool:
        """Whether every process has its own devices."""
        return self.accelerator and not self.hardware

    @property
    def warmed(self) -> bool:
        """Whether an executor uses each device once before its first case: what a provider does for its own devices,
        and what CUDA does not need.
        """
        return self.accelerator and not self.provider and not self.nvml

"""The properties of one kind of device: a frozen value, in this tree or in a registration outside it (`table`).

Facts hold in every process. Functions are called in executors only. They take the torch module that the process has
imported. None of them initialises a device. Each has a default that calls ``torch.accelerator`` or the device's own
module (`harness.backends.accelerator`), so that ``Backend("npu")`` is a complete registration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from harness.backends import accelerator
from harness.backends.accelerator import DeviceCounters

#: The name of a kind of device: in ``--device``, in ``requires(device=…)``, in inventories.
DeviceKind = str

#: In a process that runs cases: the modules that register its devices with torch, separated by commas. Not set if there
#: are none. Interpreters that the cases start import them.
MODULES_VARIABLE = "HARNESS_DEVICE_MODULES"
#: In a process that runs cases: "1" if its devices compute with the CPU's kernels.
HOST_KERNELS_VARIABLE = "HARNESS_HOST_KERNELS"

#: Marks a function whose default calls torch.
_OF_TORCH: Any = None
#: The values of texts that a registration has not set.
_UNSAID: Mapping[str, Any] = {"torch_type": "", "noun": "", "uuid_prefixes": ()}


@dataclass(frozen=True, slots=True, eq=False)  # one value per kind: compared and hashed by identity
class Backend:
    """One kind of device.

    Facts:

    - `kind` names it; `torch_type` is the type of its `torch.device`, by default the kind.
    - `modules`: the modules that register the devices with torch. They are imported right after torch, in each process
      that runs cases and before the cases are collected. Empty for devices that torch serves itself, or that torch
      imports by their entry point of the group ``torch.backends``. The import uses no device.
    - `inventory`: the function that lists the devices of this kind, as ``module:function``. It takes the environment,
      returns an `Inventory`, and raises HarnessError if a run with ``--device=kind`` cannot have such a device. Without
      one, a disposable process asks torch (`harness.devices.census`).
    - `noun`: the devices' name in a sentence. `device_name`: the name of each device of this kind, if they share one.
    - `label`: the device's name in reports, so that its results are not mistaken for results on a GPU. Empty for a GPU.
    - `no_gpu`: why the devices lack the features of a CUDA GPU. Empty for a GPU.
    - `uuid_prefixes`: the first characters of the devices' UUIDs.
    - `mask`: the variable that lists the visible devices. Without one, each process sees all devices, so that workers
      use the first one, in turn. `variables`: other variables that determine which devices exist.
    - `device_nodes`: files that a process holds open once it has initialised the driver.
    - `hardware`: processes share the devices. Workers take turns at them, and one worker examines each device before
      the first case on it. Processes go through the whole teardown at their end, since drivers crash there. Otherwise
      every process has its own devices, without waiting.
    - `nvml`: NVML lists and monitors the devices.
    - `provider`: the module that builds and loads the devices (`harness.sim.native.provider`), for devices that each
      run must build or load.
    - `from_start`: the provider must load the devices at the start of a process, or before the import of torch.
    - `faults`: the lists of the faults that can be injected, relative to the folder of the package; empty if there are
      none. `faults_variable` has the injections of a process, separated by semicolons. `interposed`: the interposer
      injects them, a library that is loaded at the start of a process.
    - `host_kernels`: the devices compute with the CPU's kernels, as a fallback or a simulation does. Cases then expect
      the known errors of those kernels.
    - `implied`: the conditions that hold on a machine of this kind, in addition to those that it declares.
    - `capabilities`: values that override what the harness would detect, by name (docs/capabilities.md): ``bf16``,
      ``cuda_graphs``.

    Functions:

    - `in_use`: whether anything in this process, torch or not, uses the devices without opening a device node. A fork
      of such a process could not use them.
    - `is_initialized`: whether torch uses the devices in this process.
    - `device_count`.
    - `synchronize` one device, by index. It raises RuntimeError for a sticky error.
    - `failures`: sticky errors that the devices report without a synchronisation.
    - `seed` all generators.
    - `empty_cache` returns cached memory.
    - `faults_struck`: how often each injected fault was triggered.
    - `properties` of one device, by index: ``name``, ``uuid`` and ``total_memory``, each as far as it is known.

    Leak checks:

    - `counters` makes a reader of memory and similar resources.
    - `release_caches` frees memory that torch caches per stream or per graph. Called only where no graph is alive.
    - `objects` maps meters that count torch objects to fields of
      `harness.checks.meters.torch_memory.TorchObjectCounts`.
    - `own_threads`: the number of threads that the devices keep.
    - `heap_per_case`: bytes of malloc memory that the driver keeps for features that cases use for the first time. This
      amount per case of a batch raises no suspicion.
    - `ignored_meters`: meters of the process that are useless once a device is initialised. By default the meters of
      host memory, since the use by an unknown driver is not known.
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
    host_kernels: bool = False
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
        """Fill in the values that the registration leaves out."""
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
        """Import torch and the modules that register the devices with it. Errors of the imports are passed on."""
        torch = importlib.import_module("torch")
        for name in self.modules:
            importlib.import_module(name)
        return torch

    @property
    def stated(self) -> dict[str, str | None]:
        """The variables that state facts about the devices to cases and the interpreters that they start.

        None unsets one.
        """
        return {
            MODULES_VARIABLE: ",".join(self.modules) or None,
            HOST_KERNELS_VARIABLE: "1" if self.host_kernels else None,
        }

    @property
    def injectable(self) -> bool:
        """Whether faults can be injected."""
        return bool(self.faults)

    @property
    def accelerator(self) -> bool:
        """Whether the devices are not the CPU."""
        return self.torch_type != "cpu"

    @property
    def software(self) -> bool:
        """Whether every process has its own devices."""
        return self.accelerator and not self.hardware

    @property
    def warmed(self) -> bool:
        """Whether an executor uses each device once before its first case.

        A provider does so for its own devices, and CUDA does not need it.
        """
        return self.accelerator and not self.provider and not self.nvml

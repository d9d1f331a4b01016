"""One kind of device: facts that hold in every process, and methods that executors call.

A registration is one `Backend`, in this tree or outside it (`table`). Methods take the torch module that the process
has imported, and none of them initialises a device. Each method has a default that calls ``torch.accelerator`` or the
device's own module (``torch.npu``), so that ``Backend("npu")`` is a complete registration; a device that needs more is
a subclass. Torch itself expects ``is_initialized``, ``device_count`` and ``manual_seed_all`` in the device's module
(https://docs.pytorch.org/docs/stable/accelerator/index.html). If torch has no such function, the result is unknown,
which is no error: ``harness backend check`` reports what a run then lacks.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from harness.backends import accelerator
from harness.backends.accelerator import AcceleratorCounters, DeviceCounters

#: The name of a kind of device: in ``--device``, in ``requires(device=…)``, in inventories.
DeviceKind = str

#: In a process that runs cases: the modules that register its devices with torch, separated by commas. Not set if there
#: are none. Interpreters that the cases start import them.
MODULES_VARIABLE = "HARNESS_DEVICE_MODULES"
#: In a process that runs cases: "1" if its devices compute with the CPU's kernels.
HOST_KERNELS_VARIABLE = "HARNESS_HOST_KERNELS"

#: The default of a fact that follows from the kind.
_OF_KIND: Any = None


@dataclass(eq=False)  # one value per kind: compared and hashed by identity
class Backend:
    """One kind of device. Nothing changes it once it is registered.

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
    - `race_check`: the variables of a process in which the devices check the order of work (``--race-check``); empty if
      they cannot. The process appends what they find to the folder of `harness.sim.simcuda.work_checks.FINDINGS`.
    - `host_kernels`: the devices compute with the CPU's kernels, as a fallback or a simulation does. Cases then expect
      the known errors of those kernels.
    - `implied`: the conditions that hold on a machine of this kind, in addition to those that it declares.
    - `capabilities`: values that override what the harness would detect, by name (docs/capabilities.md): ``bf16``,
      ``cuda_graphs``.
    - `objects` maps meters that count torch objects to fields of
      `harness.checks.torch_memory.TorchObjectCounts`.
    - `heap_per_case`: bytes of malloc memory that the driver keeps for features that cases use for the first time. This
      amount per case of a batch raises no suspicion.
    - `ignored_meters`: meters of the process that are useless once a device is initialised. By default the meters of
      host memory, since the use by an unknown driver is not known.
    """

    kind: DeviceKind
    torch_type: str = _OF_KIND
    modules: tuple[str, ...] = ()
    inventory: str = ""
    noun: str = _OF_KIND
    label: str = _OF_KIND
    no_gpu: str = _OF_KIND
    uuid_prefixes: tuple[str, ...] = _OF_KIND
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
    race_check: Mapping[str, str] = field(default_factory=dict)
    device_name: str = ""
    host_kernels: bool = False
    implied: Mapping[str, Any] = field(default_factory=lambda: {"accelerator": True})
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    heap_per_case: int = 0
    ignored_meters: tuple[str, ...] = ("heap_bytes", "mapped_bytes")

    def __post_init__(self) -> None:
        """Fill in the facts that follow from the kind."""
        for name, value in (
            ("torch_type", self.kind),
            ("noun", f"the device {self.kind}"),
            ("label", self.kind),
            ("no_gpu", f"the device is {self.kind}"),
            ("uuid_prefixes", (f"{self.kind.upper()}-",)),
        ):
            if getattr(self, name) is _OF_KIND:
                setattr(self, name, value)
        #: The way to synchronise, once one has worked.
        self._synchronize: Callable[[ModuleType, int], object] | None = None

    # What executors ask

    def in_use(self) -> bool:
        """Return whether anything in this process, torch or not, uses the devices without opening a device node.

        A fork of such a process could not use them.
        """
        return False

    def is_initialized(self, torch: ModuleType) -> bool:
        """Return whether torch uses the devices in this process.

        If the device's module does not say so, the first use by the harness counts (`accelerator.enter`).
        """
        query = self._function(torch, "is_initialized")
        return bool(query()) if query is not None else accelerator.has_entered(self.torch_type)

    def device_count(self, torch: ModuleType) -> int:
        """Return how many devices this process sees."""
        query = self._function(torch, "device_count") or self._of_accelerator(torch, "device_count")
        return 0 if query is None else int(query())

    def synchronize(self, torch: ModuleType, index: int) -> None:
        """Wait for all work of a device. Raises RuntimeError for a sticky error.

        This uses the device's module, else torch.accelerator, else the current stream. Of the last two, the first one
        that works is kept, since the lack of the other is no sticky error.
        """
        if self._synchronize is not None:
            self._synchronize(torch, index)
            return
        if self._function(torch, "synchronize") is not None:
            getattr(torch, self.torch_type).synchronize(index)
            return
        errors: list[RuntimeError] = []
        for way in (_by_accelerator, _by_stream):
            try:
                way(torch, index)
            except (AttributeError, NotImplementedError, TypeError):
                continue
            except RuntimeError as error:
                errors.append(error)
            else:
                self._synchronize = way
                return
        if errors:
            raise errors[0]

    def failures(self, torch: ModuleType) -> Sequence[str]:  # noqa: ARG002
        """Return sticky errors that the devices report without a synchronisation."""
        return ()

    def seed(self, torch: ModuleType, seed: int) -> None:
        """Seed the generators of all devices. Does nothing for a module without ``manual_seed_all``."""
        if (reseed := self._function(torch, "manual_seed_all")) is not None:
            reseed(seed)

    def empty_cache(self, torch: ModuleType) -> None:
        """Return cached memory to the system. A device without a caching allocator has none."""
        query = self._function(torch, "empty_cache") or self._of_accelerator(torch, "empty_cache")
        if query is not None:
            with contextlib.suppress(RuntimeError):
                query()

    def faults_struck(self, torch: ModuleType) -> Mapping[str, int]:  # noqa: ARG002
        """Return how often each injected fault was triggered."""
        return {}

    def properties(self, torch: ModuleType, index: int) -> Mapping[str, Any]:
        """Return ``name``, ``uuid`` and ``total_memory`` in bytes of a device, as far as torch knows them."""
        facts: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # each is optional, and may raise anything for a device without it
            properties = getattr(torch, self.torch_type).get_device_properties(index)
            facts = {
                name: getattr(properties, name)
                for name in ("name", "uuid", "total_memory")
                if hasattr(properties, name)
            }
        with contextlib.suppress(Exception):
            facts.setdefault("name", getattr(torch, self.torch_type).get_device_name(index))
        with contextlib.suppress(Exception):
            facts.setdefault("total_memory", torch.accelerator.get_memory_info(index)[1])
        return facts

    # What leak checks ask

    def counters(self) -> DeviceCounters | None:
        """Return a new reader of memory and similar resources; None for devices that have none of their own."""
        return AcceleratorCounters(self.torch_type, self.device_count)

    def release_caches(self, torch: ModuleType) -> None:
        """Free memory that torch caches per stream or per graph. Called only where no graph is alive."""

    def own_threads(self, torch: ModuleType) -> int:  # noqa: ARG002
        """Return the number of threads that the devices keep."""
        return 0

    def _function(self, torch: ModuleType, name: str) -> Callable[..., Any] | None:
        """Return a function of the device's module; None if it lacks it."""
        function = getattr(getattr(torch, self.torch_type, None), name, None)
        return function if callable(function) else None

    def _of_accelerator(self, torch: ModuleType, name: str) -> Callable[..., Any] | None:
        """Return a function of torch.accelerator, if that serves devices of this type."""
        served = accelerator.accelerator_type(torch) == self.torch_type
        return getattr(torch.accelerator, name, None) if served else None

    # What follows from the facts

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


def _by_accelerator(torch: ModuleType, index: int) -> None:
    torch.accelerator.synchronize(index)


def _by_stream(torch: ModuleType, index: int) -> None:
    torch.accelerator.current_stream(index).synchronize()

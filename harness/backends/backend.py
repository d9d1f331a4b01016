"""What is special about one kind of device: a frozen value a kind, in a file of its own, registered in `table`.

Facts hold in every process. Functions are for executors: they take the torch module that the process has imported, and
none of them wakes a device that sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

#: Names a kind of device: in ``--device``, in ``requires(device=…)``, in inventories.
Kind = str


class DeviceCounters(Protocol):
    """Reads what the devices of one kind hold for this process."""

    def read(self, torch: ModuleType, blind: MutableMapping[str, str], *, full: bool) -> dict[str, int]:
        """Values by meter; with `full` the dear ones too. What cannot be read goes to `blind`, with the reason."""
        ...


@dataclass(frozen=True, slots=True, eq=False)  # one value a kind: compared and hashed by identity
class Backend:
    """One kind of device.

    Facts:

    - `kind` names it; `torch_type` is the type of its `torch.device`.
    - `label` is what reports call the device so that nobody takes a result on it for one of a GPU; empty for a GPU.
    - `no_gpu` says why it lacks what only a GPU has; empty for a GPU.
    - `uuid_prefixes`: how the UUIDs of its devices begin.
    - `mask`: the variable that lists the visible devices; `variables`: others that decide which devices there are.
    - `device_nodes`: files that a process holds open once it has initialised the driver.
    - `hardware`: a driver serves it. Its devices are examined and watched, and workers take turns at them. Processes
      end through the whole teardown, since drivers crash there.
    - `software`: this project builds and loads it. Every process has devices of its own, which may be given faults.
    - `implied`: the conditions that hold on a machine of this kind, beside those that it declares.

    Functions: `is_awake`, whether this process uses the devices; `device_count`; `synchronize` one device, by index,
    which raises RuntimeError for a sticky error; `failures`, sticky errors that the devices report without being asked
    to synchronise; `seed` all generators; `empty_cache` returns cached memory; `faults_struck`, how often each injected
    fault has struck.

    Leak checks: `counters` makes a reader of memory and its like. `objects` names the meters that count objects of
    torch, each with what is counted (`harness.checks.meters.torch_memory.Census`). `own_threads` is the number of
    threads that the devices keep. `silenced` are meters of the process that mean nothing beside a device that is awake.
    """

    kind: Kind
    torch_type: str
    label: str
    no_gpu: str
    uuid_prefixes: tuple[str, ...]
    mask: str | None = None
    variables: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    hardware: bool = False
    software: bool = False
    implied: Mapping[str, Any] = field(default_factory=dict)
    is_awake: Callable[[ModuleType], bool] = lambda _: False
    device_count: Callable[[ModuleType], int] = lambda _: 0
    synchronize: Callable[[ModuleType, int], object] = lambda *_: None
    failures: Callable[[ModuleType], Sequence[str]] = lambda _: ()
    seed: Callable[[ModuleType, int], object] = lambda *_: None
    empty_cache: Callable[[ModuleType], object] = lambda _: None
    faults_struck: Callable[[ModuleType], Mapping[str, int]] = lambda _: {}
    counters: Callable[[], DeviceCounters] | None = None
    objects: Mapping[str, str] = field(default_factory=dict)
    own_threads: Callable[[ModuleType], int] = lambda _: 0
    silenced: tuple[str, ...] = ()

    def first_device(self, torch: ModuleType) -> Any:
        """The `torch.device` of the first visible device of this kind."""
        return torch.device(self.torch_type, 0) if self.accelerator else torch.device(self.torch_type)

    @property
    def accelerator(self) -> bool:
        """Whether it is anything but the CPU."""
        return self.hardware or self.software

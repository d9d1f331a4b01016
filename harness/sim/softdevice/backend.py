"""The module ``torch.soft``: the functions that programs and torch itself expect of a device module, like torch.cuda.

Only `loading.load_software_device` imports it, after the library is loaded. ``torch.accelerator`` also works on the
device; this module uses it wherever possible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from harness.sim.softdevice import _softdevice as _native

_TYPE = "soft"
_NAME = "software device of the GPU conformance harness"

#: A device: an index, ``soft``, ``soft:1``, or a torch.device. None is the current device.
DeviceLike = torch.device | str | int | None


# Functions of the library, and of torch.accelerator, as they are.
device_count = _native.device_count  # the devices that this process sees
current_device = torch.accelerator.current_device_index
set_stream = torch.accelerator.set_stream  # its device becomes the current one, too
empty_cache = torch.accelerator.empty_cache  # of all devices
memory_snapshot = _native.memory_snapshot  # with the keys of ``torch.cuda.memory_snapshot``
reset_peak_host_memory_stats = _native.reset_peak_host_memory_stats
reset_accumulated_host_memory_stats = _native.reset_accumulated_host_memory_stats
#: Replaces the injected faults of this process with those of a text, in the syntax of ``$SOFT_INJECT``.
inject = _native.inject
faults_struck = _native.faults_struck  # how often each fault has occurred so far
thread_count = _native.thread_count  # of the devices: the threads live until the end of the process, and are no leak
#: torch calls it before it seeds: whether a process was forked from one that had used a device.
_is_in_bad_fork = _native.forked


def _index(device: DeviceLike) -> int:
    """Return the index of a device. Raise ValueError if it has another type or does not exist."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != _TYPE:
            raise ValueError(f"expected a {_TYPE} device, got {str(device)!r}")
        device = device.index
    if device is None:
        return current_device()
    if not 0 <= device < device_count():
        raise ValueError(f"there is no device {_TYPE}:{device}: this process sees {device_count()} devices")
    return device


# ---- devices ----


def is_available() -> bool:
    """Return whether this process sees any device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return whether any device has been used. The call itself initialises none."""
    return any(_native.is_awake(index) for index in range(device_count()))


def __getattr__(name: str) -> bool:
    """Return `_initialized`, which torch's checkpoints read, instead of calling `is_initialized`."""
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def set_device(device: DeviceLike) -> None:
    """Make a device the current one of the calling thread."""
    torch.accelerator.set_device_index(_index(device))


class device:  # noqa: N801 - torch's name for it
    """A context that changes the current device of the calling thread. None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        """`device` is any DeviceLike."""
        self._index = -1 if device is None else _index(device)
        self._before = -1

    def __enter__(self) -> None:
        """Switch to the device."""
        if self._index >= 0:
            self._before = current_device()
            torch.accelerator.set_device_index(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch back to the previous device."""
        if self._index >= 0:
            torch.accelerator.set_device_index(self._before)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The properties of a device. `total_memory` is in bytes."""

    name: str
    uuid: str
    total_memory: int


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Return name, UUID and memory of the device. Does not initialise it."""
    return DeviceProperties(_NAME, uuid(device), _native.memory())


def get_device_name(device: DeviceLike = None) -> str:
    """Return the name of the device. The name cannot be mistaken for that of a GPU."""
    return get_device_properties(device).name


def uuid(device: DeviceLike = None) -> str:
    """Return the UUID of the device on the machine, such as ``SOFT-0``.

    It does not depend on the index in this process.
    """
    return _native.uuid(_index(device))


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all streams of the device. Does not initialise an unused device."""
    _native.synchronize(_index(device))


def failure(device: DeviceLike = None) -> str | None:
    """Return the sticky error of the device, or None. Does not use the device."""
    sticky = _native.failure(_index(device))
    return None if sticky is None else sticky[1]


def loading_code() -> str:
    """Return Python code that loads the devices into a new process with the environment of this one."""
    return f"from harness.sim.softdevice.build import load_software_device as load\nload({_native.__file__!r})\n"


def _lazy_init() -> None:
    """Do nothing. torch calls this at the first use from Python.

    torch 2.11 does not synchronise a device before that.
    """


# ---- streams and events ----


#: torch's own classes. Without a device they use the current accelerator, which is this one. Subclasses do not work
#: everywhere: functions of torch that take another event check for exactly its own class.
Stream = torch.Stream
Event = torch.Event


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """Return the calling thread's stream of the device."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """Return the device's stream number 0."""
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=_native.device_type())


class StreamContext:
    """A context that changes the current stream and device of the calling thread. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        """`stream` is a stream of any soft device."""
        self.stream = stream

    def __enter__(self) -> None:
        """Switch to the stream."""
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch back to the previous stream and device."""
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Return a context for a stream: ``with torch.soft.stream(s):``."""
    return StreamContext(stream)


def sleep(milliseconds: float, stream: torch.Stream | None = None) -> None:
    """Let a stream, by default the current one, sleep for this time. Return immediately."""
    chosen = current_stream() if stream is None else stream
    if chosen.device.type != _TYPE:
        raise ValueError(f"expected a stream of a {_TYPE} device, got one of {str(chosen.device)!r}")
    _native.sleep(chosen.device_index, chosen.stream_id, milliseconds)


def is_current_stream_capturing() -> bool:
    """Return whether the calling thread's stream captures into a graph."""
    return _native.is_capturing(current_device())


def supports_graphs() -> bool:
    """Return whether this torch has graphs for devices other than CUDA: ``torch.accelerator.Graph``."""
    return hasattr(torch.accelerator, "Graph")


# ---- random numbers ----


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _native.manual_seed(current_device(), seed % 2**64)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices. Does not initialise them."""
    for index in range(device_count()):
        _native.manual_seed(index, seed % 2**64)


def seed() -> int:
    """Seed the current device's generator with a random number, and return the number."""
    return _native.seed(current_device())


def seed_all() -> None:
    """Seed the generators of all devices with the same random number."""
    drawn = 0
    for index in range(device_count()):
        if index == 0:
            drawn = _native.seed(index)
        else:
            _native.manual_seed(index, drawn)


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return _native.initial_seed(current_device())


def get_rng_state(device: DeviceLike = _TYPE) -> torch.Tensor:
    """Return the state of the device's generator: 16 bytes on the CPU."""
    return torch.frombuffer(bytearray(_native.get_rng_state(_index(device))), dtype=torch.uint8)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of the generators of all devices, in order."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = _TYPE) -> None:
    """Set the device's generator to a state from `get_rng_state`."""
    if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
        raise TypeError(f"expected a uint8 tensor on the cpu, got {new_state.dtype} on {new_state.device}")
    _native.set_rng_state(_index(device), bytes(new_state.tolist()))


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the generators of all devices to states from `get_rng_state_all`."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# ---- autocast ----


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast supports."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether bfloat16 works. On a software device it is emulated, like everything else."""
    return including_emulation


# ---- memory ----


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, Any]:
    """Return the allocator's statistics under torch's names. Empty until a device is used."""
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Return bytes in use by tensors."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Return the peak of bytes in use by tensors since the last reset."""
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """Return bytes that the allocator has reserved."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Return the peak of bytes that the allocator has reserved since the last reset."""
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Reset the peak statistics to the current values."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Reset the accumulated counts of allocations and frees to 0."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Return free and total bytes of the device. Each process counts only its own allocations."""
    return torch.accelerator.get_memory_info(_index(device))


def host_memory_stats() -> OrderedDict[str, int]:
    """Return statistics of pinned memory, with the keys of ``torch.cuda.host_memory_stats``."""
    flat: dict[str, int] = {}
    for name, value in _native.host_memory_stats().items():
        if isinstance(value, dict):
            flat |= {f"{name}.{kind}": number for kind, number in value.items()}
        else:
            flat[name] = value
    return OrderedDict(sorted(flat.items()))


# ---- faults, and the device's own threads ----


def times_struck(name: str) -> int:
    """Return how often this fault has occurred so far."""
    return _native.faults_struck().get(name, 0)

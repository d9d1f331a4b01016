"""Device arguments of `torch.cuda` functions: a device without an index, no device, wrong numbers, defaults."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ..streams.busy import calibrate, sleep_on
from . import _torch_private as private

pytestmark = pytest.mark.requires(device="cuda")
MIB = 1 << 20

#: Functions that read a value specific to each device. A type without an index means the current device.
READERS: dict[str, Callable[[Any], Any]] = {
    "memory_allocated": torch.cuda.memory_allocated,
    "memory_reserved": torch.cuda.memory_reserved,
    "max_memory_allocated": torch.cuda.max_memory_allocated,
    "max_memory_reserved": torch.cuda.max_memory_reserved,
    "memory_stats": torch.cuda.memory_stats,
    "memory_stats_as_nested_dict": torch.cuda.memory_stats_as_nested_dict,
    "mem_get_info": torch.cuda.mem_get_info,
    "get_device_properties": lambda device: torch.cuda.get_device_properties(device).uuid,
    "memory_summary": torch.cuda.memory_summary,
    "accelerator.memory_allocated": torch.accelerator.memory_allocated,
    "accelerator.get_memory_info": torch.accelerator.get_memory_info,
    "accelerator.memory_stats": torch.accelerator.memory_stats,
}


@pytest.mark.requires(devices=2)
@pytest.mark.parametrize("name", READERS)
def test_cuda_functions_take_the_type_without_an_index_as_the_current_device(name: str) -> None:
    """None, "cuda" and `torch.device("cuda")` mean the current device; a number or an index means that device."""
    read = READERS[name]
    held = [torch.empty((index + 1) * 32 * MIB, dtype=torch.uint8, device=f"cuda:{index}") for index in (0, 1)]
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    by_device = [read(0), read(1)]
    assert by_device[0] != by_device[1]
    for current in (0, 1):
        with torch.cuda.device(current):
            for given in (None, "cuda", torch.device("cuda")):
                assert read(given) == by_device[current], f"{name}({given!r})"
            for index in (0, 1):
                for chosen in (index, f"cuda:{index}", torch.device("cuda", index)):
                    assert read(chosen) == by_device[index], f"{name}({chosen!r})"
    del held


#: Functions that each reset a value that a function reads.
RESETS: dict[str, tuple[Callable[..., Any], str]] = {
    "reset_peak_memory_stats": (torch.cuda.reset_peak_memory_stats, "allocated_bytes.all.peak"),
    "reset_max_memory_allocated": (torch.cuda.reset_max_memory_allocated, "allocated_bytes.all.peak"),
    "reset_max_memory_cached": (torch.cuda.reset_max_memory_cached, "allocated_bytes.all.peak"),
    "reset_accumulated_memory_stats": (torch.cuda.reset_accumulated_memory_stats, "allocated_bytes.all.allocated"),
}


@pytest.mark.requires(devices=2)
@pytest.mark.filterwarnings("ignore:.*reset_peak_memory_stats:FutureWarning")
@pytest.mark.parametrize("name", RESETS)
def test_cuda_resets_concern_the_device_they_are_given(name: str) -> None:
    """A reset affects the chosen device; None and a type without an index mean the current one."""
    reset, key = RESETS[name]
    for current in (0, 1):
        with torch.cuda.device(current):
            for given, index in ((None, current), ("cuda", current), (0, 0), (1, 1), ("cuda:1", 1)):
                for place in (0, 1):
                    torch.empty(8 * MIB, dtype=torch.uint8, device=f"cuda:{place}")
                before = [torch.cuda.memory_stats(place)[key] for place in (0, 1)]
                reset(given)
                after = [torch.cuda.memory_stats(place)[key] for place in (0, 1)]
                assert after[index] < before[index], f"{name}({given!r})"
                assert after[1 - index] == before[1 - index], f"{name}({given!r})"


@pytest.mark.parametrize("number", [-1, "count", 99])
def test_get_device_properties_refuses_a_number_that_is_no_device(number: int | str) -> None:
    """A negative number raises, as do the number of devices and any number above it."""
    index = torch.cuda.device_count() if number == "count" else number
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(index)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.can_device_access_peer(index, 0)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        torch.cuda.can_device_access_peer(0, index)


@pytest.mark.requires(devices=2)
def test_can_device_access_peer_takes_none_and_a_type_as_the_current_device() -> None:
    """The first device may be None or a type without an index; the second must have an index."""
    for current in (0, 1):
        with torch.cuda.device(current):
            for other in (0, 1):
                reported = torch.cuda.can_device_access_peer(current, other)
                assert isinstance(reported, bool)
                assert torch.cuda.can_device_access_peer(None, other) == reported  # type: ignore[arg-type]
                assert torch.cuda.can_device_access_peer("cuda", other) == reported
                assert reported == (torch.cuda.can_device_access_peer(0, 1) and current != other)


def test_set_device_takes_every_way_to_name_a_device_and_ignores_negative_numbers() -> None:
    """`set_device` selects a number, a text or a device.

    A negative number changes nothing; a number too large raises.
    """
    count = torch.cuda.device_count()
    before = torch.cuda.current_device()
    try:
        for index in range(count):
            for given in (index, f"cuda:{index}", torch.device("cuda", index)):
                torch.cuda.set_device((index + 1) % count)
                torch.cuda.set_device(given)
                assert torch.cuda.current_device() == index
                torch.cuda.set_device(-1)
                assert torch.cuda.current_device() == index
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.set_device(count)
        with pytest.raises(ValueError, match="device"):
            torch.cuda.set_device("cpu")
    finally:
        torch.cuda.set_device(before)


@pytest.mark.requires(devices=2)
def test_caching_allocator_alloc_is_on_the_device_it_is_given() -> None:
    """Memory is on the chosen device, and without an argument on the current one, whichever device is current."""
    size = 4 * MIB
    for current in (0, 1):
        with torch.cuda.device(current):
            for given, index in ((None, current), (0, 0), (1, 1), ("cuda:1", 1), (torch.device("cuda", 0), 0)):
                before = [torch.cuda.memory_allocated(place) for place in (0, 1)]
                address = torch.cuda.caching_allocator_alloc(size, given)
                after = [torch.cuda.memory_allocated(place) for place in (0, 1)]
                torch.cuda.caching_allocator_delete(address)
                assert [b - a for a, b in zip(before, after, strict=True)] == [
                    size if place == index else 0 for place in (0, 1)
                ], f"caching_allocator_alloc({given!r}) with device {current} current"
                assert torch.cuda.current_device() == current


@pytest.mark.requires(devices=2)
def test_cuda_synchronize_waits_for_the_device_it_is_given(device: torch.device) -> None:
    """`synchronize` waits for the chosen device, and without an argument for the current one."""
    streams = [torch.cuda.Stream(index) for index in (0, 1)]
    calibrate(device)
    calibrate(torch.device("cuda", 1))
    for current, given in ((0, 1), (1, 0), (0, None), (1, None)):
        chosen = current if given is None else given
        with torch.cuda.device(current):
            sleep_on(streams[chosen], 100)
            assert not streams[chosen].query()
            torch.cuda.synchronize(given)
            assert streams[chosen].query()


@pytest.mark.requires(devices=2)
def test_cuda_default_stream_is_the_null_stream_of_its_device() -> None:
    """The default stream has the number 0 and the handle 0, on the requested device."""
    for index in (0, 1):
        stream = torch.cuda.default_stream(index)
        assert (stream.stream_id, stream.cuda_stream, stream.device_index) == (0, 0, index)
        assert stream == torch.cuda.default_stream(f"cuda:{index}")
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)


@pytest.mark.parametrize("name", ["set_device_index", "current_stream", "synchronize", "memory_allocated"])
def test_accelerator_refuses_a_device_of_another_type(name: str) -> None:
    """A function of `torch.accelerator` raises ValueError for a device of another type."""
    torch.empty(1, device="cuda")  # memory functions do nothing before the first use
    with pytest.raises(ValueError, match="cpu"):
        getattr(torch.accelerator, name)(torch.device("cpu"))


def test_accelerator_set_device_index_needs_an_index() -> None:
    """`set_device_index` refuses a device without an index, and None."""
    for given in ("cuda", torch.device("cuda"), None):
        with pytest.raises((ValueError, TypeError)):
            torch.accelerator.set_device_index(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("major", "native"), [(7, False), (8, True), (9, True), (12, True)])
def test_is_bf16_supported_and_is_tf32_supported_follow_the_capability(
    monkeypatch: pytest.MonkeyPatch, major: int, native: bool
) -> None:
    """Both are True from capability 8.0 on. Below, bfloat16 is emulated, and TF32 is not supported.

    Without a device, neither is supported.
    """
    torch.cuda.init()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(major=major))

    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.is_bf16_supported(including_emulation=False) == native
    assert torch.cuda.is_tf32_supported() == native
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torch.cuda.is_bf16_supported() is torch.cuda.is_tf32_supported() is False


def test_cuda_stream_equals_streams_only(device: torch.device) -> None:
    """A stream equals the current stream if it is that stream, and no other stream or object."""
    one, two = torch.cuda.Stream(device), torch.cuda.Stream(device)
    with torch.cuda.stream(one):
        again = torch.cuda.current_stream(device)

    assert one == again
    assert hash(one) == hash(again)
    assert one != two
    for other in (one.cuda_stream, "stream", torch.cuda.Event(), one.stream_id):
        assert one != other


@pytest.mark.xfail(
    raises=AssertionError,
    reason="torch 2.11 to 2.13 answer False to both comparisons (THPStream_richcompare in torch/csrc/Stream.cpp,"
    " https://github.com/pytorch/pytorch)",
)
@pytest.mark.parametrize("kind", [torch.Stream, torch.cuda.Stream], ids=["torch", "torch_cuda"])
def test_stream_is_unequal_to_none(device: torch.device, kind: type[torch.Stream]) -> None:
    """A stream is unequal to None: `stream != None` is True, as `stream == None` is False."""
    stream = kind(device)
    equal, unequal = stream == None, stream != None  # noqa: E711 - the case checks the operators
    assert (equal, unequal) == (False, True)


def test_cuda_event_keeps_its_options(device: torch.device) -> None:
    """An event for other processes has a handle of 64 bytes, and an event without `interprocess` has none.

    Only an event with `enable_timing` measures time.
    """
    shared = torch.cuda.Event(interprocess=True)
    shared.record()
    assert len(shared.ipc_handle()) == 64
    own = torch.cuda.Event()
    own.record()
    with pytest.raises(RuntimeError):
        own.ipc_handle()
    timed = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for each in timed:
        each.record()
    torch.cuda.synchronize(device)
    assert timed[0].elapsed_time(timed[1]) >= 0
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        own.elapsed_time(timed[0])


@pytest.mark.parametrize("priority", [-1, 0])
def test_cuda_stream_keeps_its_priority_with_and_without_a_device(device: torch.device, priority: int) -> None:
    """`priority` is the priority of the new stream, on the current device and on a given one."""
    assert torch.cuda.Stream(priority=priority).priority == priority
    assert torch.cuda.Stream(device, priority=priority).priority == priority
    assert torch.cuda.Stream().priority == 0


#: The architectures of a build, the capability of a device, and whether the build has code that runs there.
BUILDS = [
    (["sm_90"], (9, 0), True),
    (["sm_80"], (8, 6), True),
    (["sm_80"], (8, 0), True),
    (["sm_86"], (8, 0), False),
    (["sm_80", "sm_90a"], (9, 0), True),
    (["sm_75", "sm_80"], (9, 0), False),
    (["sm_90"], (8, 0), False),
    (["sm_100f"], (10, 3), True),
    (["sm_100"], (9, 0), False),
    (["sm_100"], (11, 0), False),
    (["sm_120"], (12, 0), True),
    (["sm_89"], (8, 6), False),
    (["sm_103"], (10, 0), False),
    (["sm_75", "sm_86"], (8, 9), True),
    # Boards that have CPU and GPU in one chip only run code that is built for them.
    (["sm_80", "sm_86"], (8, 7), False),
    (["sm_80", "sm_87"], (8, 7), True),
    (["sm_70"], (7, 2), False),
    (["sm_50", "sm_52"], (5, 3), False),
    (["sm_60"], (6, 2), False),
    (["sm_100"], (10, 1), False),
    ([], (9, 0), True),
]


def _pretend(monkeypatch: pytest.MonkeyPatch, built: list[str], capability: tuple[int, int]) -> None:
    """Make torch find a build with code for `built`, and devices of this capability.

    torch's own first use comes before, since it warns too.
    """
    torch.cuda.init()
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize(("built", "capability", "served"), BUILDS, ids=str)
def test_cuda_first_use_warns_of_a_device_without_code(
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    built: list[str],
    capability: tuple[int, int],
    served: bool,
) -> None:
    """The first use of CUDA warns of each device for which the build has no code.

    Code runs on devices of its major capability with the same or a higher minor one (CUDA C++ Programming Guide,
    "Binary Compatibility").
    """
    _pretend(monkeypatch, built, capability)
    private.check_capability()()
    reported = [str(each.message) for each in recwarn]
    assert bool(reported) != served, reported
    assert len(reported) == (0 if served else torch.cuda.device_count())


#: The architectures of a build, the capability of a device, and whether one of the binaries is for its major
#: capability.
BINARIES = [
    (["sm_80"], (8, 6), True),
    (["sm_75", "sm_80"], (8, 0), True),
    (["sm_100f"], (10, 3), True),
    (["sm_80", "sm_120"], (12, 1), True),
    (["sm_80"], (9, 0), False),
    (["sm_90a"], (8, 9), False),
    (["compute_80"], (8, 0), False),
    (["sm_75", "compute_90"], (9, 0), False),
    ([], (9, 0), True),
]


@pytest.mark.requires(rocm=False)
@pytest.mark.parametrize(("built", "capability", "served"), BINARIES, ids=str)
def test_cuda_first_use_warns_of_a_device_without_a_binary(
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    built: list[str],
    capability: tuple[int, int],
    served: bool,
) -> None:
    """The first use also warns of a device for whose major capability the build has no binary, and names both."""
    _pretend(monkeypatch, built, capability)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # several devices of one name share one warning
    private.check_cubins()()
    reported = [str(each.message) for each in recwarn]
    assert len(reported) == (0 if served else 1)
    for text in reported:
        assert f"{torch.cuda.get_device_name(0)} with CUDA capability sm_{capability[0]}{capability[1]} " in text
        assert f"capabilities {' '.join(built)}." in text


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("capability", [(13, 0), (13, 4)], ids=str)
def test_cuda_first_use_warns_of_code_for_an_unknown_architecture(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    """The first use names code for an unknown architecture, which runs on devices of its major capability."""
    torch.cuda.init()
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_130"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    with pytest.warns(UserWarning, match=r"unknown compute capability 13\.0"):
        private.check_capability()()


#: The processor, the capability of a device, and the CUDA releases whose builds of torch 2.13 have code for it.
RELEASES = [
    ("x86_64", (5, 0), ["12.6"]),
    ("aarch64", (5, 0), []),
    ("AARCH64", (11, 0), ["13.0", "13.2"]),
    ("x86_64", (11, 0), []),
    ("x86_64", (12, 0), ["12.9", "13.0", "13.2"]),
    ("AMD64", (7, 5), ["12.6", "12.9", "13.0", "13.2"]),
    ("x86_64", (3, 5), []),
]


@pytest.mark.requires(torch=">=2.13,<2.14")
@pytest.mark.parametrize(("machine", "capability", "releases"), RELEASES, ids=str)
def test_cuda_first_use_names_the_builds_that_have_code_for_a_device(
    monkeypatch: pytest.MonkeyPatch, machine: str, capability: tuple[int, int], releases: list[str]
) -> None:
    """The warning of a device without code names the CUDA releases whose builds support it, or says that none do."""
    torch.cuda.init()
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.warns(UserWarning, match="compute capability") as reported:
        private.check_capability()()

    for index, each in enumerate(reported):
        text = str(each.message)
        assert f"GPU{index} " in text
        assert "CC) {}.{}.".format(*capability) in text
        assert re.findall(r"For CUDA (\S+) use pip", text) == releases
        assert ("No published" in text) is not bool(releases)


@pytest.mark.requires(devices=2)
def test_deviceguard_selects_a_device_and_restores_the_one_before() -> None:
    """The guard of compiled code selects a device and restores the previous one, also after an exception.

    A negative number changes nothing.
    """
    for current in (0, 1):
        with torch.cuda.device(current):
            for index in (0, 1, -1):
                for _ in range(2):
                    with contextlib.suppress(LookupError), private.device_guard(index):
                        assert torch.cuda.current_device() == (current if index < 0 else index)
                        raise LookupError
                    assert torch.cuda.current_device() == current

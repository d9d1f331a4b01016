"""DLPack: memory that libraries share, its lifetime, tensors that cannot be shared, and the order of streams."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import dlpack

from ..streams.busy import NOT_SHOWN, POISON, calibrate, seen_in_trials, sleep_on

TYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]
#: Devices for which torch has a DLPack name. No out-of-tree device has its own.
NAMED = pytest.mark.requires(any=[{"not_": {"accelerator": True}}, {"device": "cuda"}, {"device": "xpu"}])
CUDA = pytest.mark.requires(device="cuda")
#: The specification's numbers of these devices.
HOST, GPU, PINNED = 1, 2, 3


@NAMED
@pytest.mark.parametrize("dtype", TYPES, ids=lambda each: str(each).removeprefix("torch."))
def test_from_dlpack_keeps_values_and_type(device: torch.device, dtype: torch.dtype) -> None:
    """A tensor passed through DLPack has the type, device, values and memory of the original."""
    first = torch.tensor([0, 1, 2, 5, 1, 0], device=device).to(dtype)

    second = torch.from_dlpack(first)

    assert (second.dtype, second.device) == (dtype, device)
    assert second.data_ptr() == first.data_ptr()
    assert torch.equal(second, first)
    first[1:3] = 0
    assert second.tolist() == first.tolist()
    assert not second[1]


@NAMED
@pytest.mark.parametrize("form", ["transposed", "steps", "offset", "expanded", "scalar", "empty", "long_strides"])
def test_from_dlpack_keeps_the_layout(device: torch.device, form: str) -> None:
    """Shape, strides and offset are preserved, so that a write reaches the same element."""
    whole = torch.arange(24.0, device=device)
    first = {
        "transposed": lambda: whole.reshape(4, 6).t(),
        "steps": lambda: whole[::3],
        "offset": lambda: whole[5:].reshape(19, 1),
        "expanded": lambda: whole[7:8].expand(3),
        "scalar": lambda: whole[9],
        "empty": lambda: whole[4:4].reshape(0, 3),
        "long_strides": lambda: whole.as_strided((2, 2), (13, 2), 3),
    }[form]()

    second = torch.from_dlpack(first)

    assert second.shape == first.shape
    assert torch.equal(second, first)
    if first.numel():
        assert second.data_ptr() == first.data_ptr()
        second.select(0, -1).fill_(-1) if second.dim() else second.fill_(-1)
        assert torch.equal(second, first)
        assert (whole == -1).sum() == (1 if form in {"scalar", "expanded", "steps", "offset"} else first[-1].numel())


@NAMED
@pytest.mark.parametrize("copy", [True, False, None])
def test_from_dlpack_copies_if_it_is_asked_to(device: torch.device, copy: bool | None) -> None:
    """`copy=True` gives separate memory with the same values; `copy=False` and None give the same memory."""
    first = torch.arange(6.0, device=device).reshape(2, 3).t()

    second = torch.from_dlpack(first, copy=copy)

    assert torch.equal(second, first)
    first.add_(10)
    assert (second[0, 0].item() == 10) == (copy is not True)
    assert (second.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()) == (copy is not True)


@CUDA
def test_from_dlpack_to_another_device_copies(device: torch.device) -> None:
    """A tensor moves to another device by a copy, which `copy=False` refuses; on its own device nothing is copied."""
    first = torch.arange(5.0)

    there = torch.from_dlpack(first, device=device)

    assert (there.device, there.tolist()) == (device, [0, 1, 2, 3, 4])
    back = torch.from_dlpack(there, device="cpu")
    there[0] = 7
    assert (back.device.type, back.tolist()) == ("cpu", [0, 1, 2, 3, 4])
    with pytest.raises(ValueError, match="copy"):
        torch.from_dlpack(first, device=device, copy=False)
    assert torch.from_dlpack(there, device=device, copy=False).data_ptr() == there.data_ptr()


@NAMED
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0)], ids=["none", "old", "new"])
def test_dlpack_capsule_is_consumed_once(device: torch.device, version: tuple[int, int] | None) -> None:
    """A capsule has the name of its version, passes its tensor to one consumer, and refuses a second one."""
    first = torch.arange(4.0, device=device)
    capsule: Any = first.__dlpack__(max_version=version)
    name = "dltensor_versioned" if version == (1, 0) else "dltensor"
    assert f'"{name}"' in repr(capsule)

    second = torch.from_dlpack(capsule)

    assert second.data_ptr() == first.data_ptr()
    assert f'"used_{name}"' in repr(capsule)
    with pytest.raises(RuntimeError, match="consumed"):
        torch.from_dlpack(capsule)
    assert second.tolist() == [0, 1, 2, 3]


@NAMED
@pytest.mark.parametrize("version", [None, (1, 0)], ids=["old", "new"])
@pytest.mark.parametrize("consumed", [False, True], ids=["dropped", "consumed"])
def test_dlpack_capsule_keeps_memory_until_it_is_dropped(
    device: torch.device, consumed: bool, version: tuple[int, int] | None
) -> None:
    """A capsule keeps the memory alive without its producer, and so does its consumer; the last one frees it."""
    storage = torch.arange(1000.0, device=device).untyped_storage()
    alive = weakref.ref(storage)
    first = torch.empty(0, device=device).set_(storage, 0, (1000,))  # type: ignore[call-overload]
    capsule: Any = first.__dlpack__(max_version=version)
    del first, storage
    gc.collect()
    held: Any = capsule

    if consumed:
        held = torch.from_dlpack(capsule)
        del capsule
        gc.collect()
        assert held.sum().item() == 999 * 500
    else:
        del capsule
    if device.type == "cuda":
        allocated = torch.cuda.memory_allocated(device)
        del held
        gc.collect()
        assert allocated - torch.cuda.memory_allocated(device) >= 4000
    else:
        del held
        gc.collect()
        assert alive() is None


@NAMED
def test_dlpack_refuses_what_it_cannot_describe(device: torch.device) -> None:
    """Tensors that require grad, are conjugated, or are sparse raise BufferError, since DLPack cannot describe them."""
    complex_ones = torch.ones(2, dtype=torch.complex64, device=device)
    for first, why in [
        (torch.ones(2, device=device, requires_grad=True), "gradient"),
        (torch.ones(2, device=device, requires_grad=True) * 2, "gradient"),
        (complex_ones.conj(), "conj"),
        (torch.eye(2, device=device).to_sparse(), "layout"),
    ]:
        with pytest.raises(BufferError, match=why):
            torch.from_dlpack(first)
    assert torch.from_dlpack(torch.ones(2, device=device, requires_grad=True).detach()).tolist() == [1, 1]
    assert torch.equal(torch.from_dlpack(complex_ones.conj().resolve_conj()), complex_ones)


@NAMED
def test_dlpack_device_names_type_and_index(device: torch.device) -> None:
    """`__dlpack_device__` returns the number of the device's type and the device's index."""
    tensor = torch.ones(1, device=device)
    kind, index = tensor.__dlpack_device__()
    assert (int(kind), index) == ((GPU, device.index) if device.type == "cuda" else (HOST, 0))
    assert kind is (dlpack.DLDeviceType.kDLCUDA if device.type == "cuda" else dlpack.DLDeviceType.kDLCPU)


@pytest.mark.requires(pinned_memory=True)
@CUDA
def test_dlpack_device_of_pinned_memory(device: torch.device) -> None:
    """Pinned memory has DLPack's device type for CUDA host memory, and can be imported from DLPack."""
    tensor = torch.arange(3.0).pin_memory()
    assert int(tensor.__dlpack_device__()[0]) == PINNED
    assert torch.from_dlpack(tensor).to(device).tolist() == [0, 1, 2]


def test_dlpack_shares_memory_with_numpy() -> None:
    """NumPy can use a tensor's memory, and torch an array's memory, with its strides and type."""
    tensor = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    array = np.from_dlpack(tensor.t())
    assert (array.shape, array.dtype) == ((3, 2), np.int16)
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]
    tensor[1, 2] = -5
    assert array[2, 1] == -5

    own = np.arange(8.0)
    taken = torch.from_dlpack(own[::2])
    assert (taken.dtype, taken.tolist()) == (torch.float64, [0, 2, 4, 6])
    taken[1] = 9
    assert own.tolist() == [0, 1, 9, 3, 4, 5, 6, 7]


@NAMED
def test_dlpack_stream_that_is_no_number_is_refused(device: torch.device) -> None:
    """`stream` is a number or None; a stream object raises TypeError."""
    with pytest.raises(TypeError, match="stream"):
        torch.ones(1, device=device).__dlpack__(stream=torch.ones(1))


@CUDA
def test_dlpack_refuses_the_default_stream_per_thread(device: torch.device) -> None:
    """Stream number 2, the per-thread default stream, is refused, because torch does not support it."""
    with pytest.raises(BufferError, match="per-thread"):
        torch.ones(1, device=device).__dlpack__(stream=2)


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@CUDA
@pytest.mark.parametrize("stream", ["own", "legacy", "none"])
def test_dlpack_stream_waits_for_the_producer(device: torch.device, stream: str) -> None:
    """The consumer's stream waits for the producer's current stream: a side stream, or the default one with 1 or None.

    With -1 no stream waits, and the reader sees the previous contents.
    """
    writer = torch.cuda.Stream(device)
    reader = torch.cuda.Stream(device) if stream == "own" else torch.cuda.default_stream(device)
    number = {"own": reader.cuda_stream, "legacy": 1, "none": None}[stream]
    buffer = torch.empty(1 << 18, dtype=torch.int32, device=device)
    seen = torch.empty_like(buffer)
    calibrate(device)

    def read_behind(value: int, number: int | None) -> bool:
        """Return whether the reader saw `value`, which is written late."""
        buffer.fill_(POISON)
        seen.fill_(POISON)
        torch.cuda.synchronize(device)
        sleep_on(writer)
        with torch.cuda.stream(writer):
            buffer.fill_(value)
            lent = torch.from_dlpack(buffer.__dlpack__(stream=number))
        with torch.cuda.stream(reader):
            seen.copy_(lent, non_blocking=True)
        torch.cuda.synchronize(device)
        return bool((seen == value).all())

    assert seen_in_trials(lambda value: not read_behind(value, -1)), NOT_SHOWN
    for value in range(1, 6):
        assert read_behind(value, number)


@CUDA
@pytest.mark.requires(devices=2)
def test_dlpack_refuses_a_tensor_of_another_device(device: torch.device) -> None:
    """A tensor can only be passed on while its device is current, since the stream would be of another device."""
    there = torch.arange(3.0, device=torch.device("cuda", 1))
    with pytest.raises(BufferError, match="device index"):
        torch.from_dlpack(there)
    with torch.cuda.device(1):
        lent = torch.from_dlpack(there)
    assert (lent.device.index, lent.tolist()) == (1, [0, 1, 2])
    assert torch.cuda.current_device() == device.index

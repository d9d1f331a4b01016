"""Pinned memory: how it is created, which tensors have it, and that it works like any memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from .bit_patterns import DTYPE, bit_patterns, bits

pytestmark = pytest.mark.requires(accelerator=True, pinned_memory=True)

MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(10, pin_memory=True),
    "zeros": lambda: torch.zeros(10, pin_memory=True),
    "ones": lambda: torch.ones(10, pin_memory=True),
    "full": lambda: torch.full((10,), 3.0, pin_memory=True),
    "rand": lambda: torch.rand(10, pin_memory=True),
    "arange": lambda: torch.arange(10.0, pin_memory=True),
    "tensor": lambda: torch.tensor([1.0, 2.0], pin_memory=True),
    "empty_like": lambda: torch.empty_like(torch.ones(3), pin_memory=True),
    "new_zeros": lambda: torch.ones(3).new_zeros(5, pin_memory=True),
    "pin_memory": lambda: torch.arange(10.0).pin_memory(),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_pin_memory_argument_of_factories_pins(make: Callable[[], torch.Tensor]) -> None:
    """Each factory function with `pin_memory` returns pinned host memory that can be written and read."""
    x = make()

    assert x.device.type == "cpu"
    assert x.is_pinned()
    assert x.fill_(7).tolist() == [7] * x.numel()


@DTYPE
def test_pin_memory_keeps_every_bit(dtype: torch.dtype) -> None:
    """The pinned copy of a tensor of any dtype is bitwise equal and separate, and the source is not pinned."""
    x = bit_patterns(dtype)

    pinned = x.pin_memory()

    assert pinned.dtype == dtype
    assert torch.equal(bits(pinned), bits(bit_patterns(dtype)))
    assert torch.equal(bits(x), bits(bit_patterns(dtype)))
    assert pinned.data_ptr() != x.data_ptr()
    assert not x.is_pinned()


@pytest.mark.covers("test_cuda::TestCuda::test_noncontiguous_pinned_memory")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(10).view(2, 5).t(),
        lambda: torch.arange(100)[::7],
        lambda: torch.arange(120).view(2, 3, 4, 5).permute(3, 0, 2, 1),
        lambda: torch.arange(20)[3:9],
        lambda: torch.empty(0, 4, dtype=torch.int64),
        lambda: torch.tensor(7),
    ],
    ids=["transposed", "strided", "permuted", "slice", "no_elements", "scalar"],
)
def test_pin_memory_keeps_shape_and_values_of_any_layout(make: Callable[[], torch.Tensor]) -> None:
    """Pinning a non-contiguous tensor preserves its shape and values."""
    x = make()

    pinned = x.pin_memory()

    assert torch.equal(pinned, x)
    assert pinned.is_pinned() or x.numel() == 0


def test_pin_memory_of_a_pinned_tensor_gives_itself() -> None:
    """Pinning a pinned tensor does not copy it."""
    x = torch.arange(5).pin_memory()

    assert x.pin_memory().data_ptr() == x.data_ptr()


def test_is_pinned_is_true_for_views_of_pinned_memory() -> None:
    """`is_pinned` depends on the memory.

    It is True for views and NumPy arrays of pinned memory, and False for a clone.
    """
    x = torch.arange(100).pin_memory()

    for view in (x[13:], x[::5], x.view(10, 10).t(), x.detach(), torch.from_numpy(x.numpy()), x[99:]):
        assert view.is_pinned()
    x.numpy()[3] = -4
    assert x[3] == -4
    assert not x.clone().is_pinned()
    assert not torch.empty_like(x).is_pinned()


def test_pin_memory_of_device_memory_is_refused(device: torch.device) -> None:
    """Device memory is not pinned, and pinning it raises."""
    x = torch.ones(3, device=device)

    assert not x.is_pinned()
    with pytest.raises(RuntimeError, match=r"(?i)cannot pin|only dense cpu|can be pinned"):
        x.pin_memory()


@pytest.mark.requires(any=[{"device": "cuda"}, {"torch": ">=2.12"}])  # 2.11 queries CUDA, whatever the accelerator
@pytest.mark.filterwarnings("ignore:The argument 'device' of Tensor:DeprecationWarning")  # 2.11 passes it internally
def test_storage_pin_memory_pins() -> None:
    """`pin_memory` of a storage returns a pinned storage of the same bytes, and a pinned tensor's storage is pinned."""
    assert torch.arange(3).pin_memory().untyped_storage().is_pinned()
    storage = torch.arange(12, dtype=torch.uint8).untyped_storage()

    pinned = storage.pin_memory()

    assert pinned.is_pinned()
    assert not storage.is_pinned()
    assert pinned.tolist() == storage.tolist()


def test_pin_memory_blocks_do_not_overlap() -> None:
    """Pinned tensors that are alive together do not overlap, whatever their sizes."""
    sizes = [1, 7, 511, 512, 513, 4095, 4096, 4097, 100_000, 1 << 20, (1 << 20) + 1] * 3

    blocks = [torch.empty(size, dtype=torch.int16).pin_memory() for size in sizes]
    for number, block in enumerate(blocks):
        block.fill_(number)

    assert [number for number, block in enumerate(blocks) if not bool((block == number).all())] == []


def test_dataloader_pin_memory_gives_whole_batches(device: torch.device) -> None:
    """A DataLoader with `pin_memory` returns pinned batches of any nesting, with correct values on the device."""
    data = [{"x": torch.arange(3.0) + 10 * number, "y": (torch.tensor(number + 1),)} for number in range(8)]
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)  # type: ignore[arg-type]

    batches = list(loader)

    assert len(batches) == 2
    for number, batch in enumerate(batches):
        assert batch["x"].is_pinned()
        assert batch["y"][0].is_pinned()
        places = range(4 * number, 4 * number + 4)
        there = batch["x"].to(device, non_blocking=True), batch["y"][0].to(device, non_blocking=True)
        assert there[0].tolist() == [[10 * place, 10 * place + 1, 10 * place + 2] for place in places]
        assert there[1].tolist() == [place + 1 for place in places]


class Point(NamedTuple):
    """A batch that is a named tuple."""

    x: torch.Tensor
    y: torch.Tensor


class Labelled(dict[str, Any]):
    """A batch of a custom type, with an attribute."""

    label = ""


class Owner:
    """A batch with its own method `pin_memory`."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def pin_memory(self) -> Owner:
        return Owner(self.x.pin_memory())


def test_dataloader_pin_memory_keeps_the_types_of_batches(device: torch.device) -> None:
    """Pinned batches keep the types from `collate_fn`: named tuples, lists, mappings, texts, and custom classes.

    Mappings keep their attributes.

    The custom class has a method `pin_memory`. Source: torch.utils.data, memory pinning.
    """

    def collate(numbers: list[int]) -> dict[str, Any]:
        labelled = Labelled(x=torch.tensor(numbers))
        labelled.label = "kept"
        return {
            "point": Point(torch.tensor(numbers), -torch.tensor(numbers)),
            "list": [torch.tensor(numbers), (torch.tensor(numbers), "text")],
            "labelled": labelled,
            "owner": Owner(torch.tensor(numbers)),
            "number": 5,
            "bytes": b"raw",
        }

    loader = torch.utils.data.DataLoader(list(range(4)), batch_size=2, pin_memory=True, collate_fn=collate)  # type: ignore[arg-type]
    for number, batch in enumerate(loader):
        wanted = [2 * number, 2 * number + 1]
        point, (first, (second, text)), labelled, owner = (
            batch[name] for name in ("point", "list", "labelled", "owner")
        )
        assert [type(point), type(batch["list"]), type(labelled), type(owner)] == [Point, list, Labelled, Owner]
        assert (text, labelled.label, batch["number"], batch["bytes"]) == ("text", "kept", 5, b"raw")
        tensors = [point.x, -point.y, first, second, labelled["x"], owner.x]
        assert [each.to(device, non_blocking=True).tolist() for each in tensors] == [wanted] * 6
        assert all(each.is_pinned() for each in (point.x, point.y, first, second, labelled["x"], owner.x))

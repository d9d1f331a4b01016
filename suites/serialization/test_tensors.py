"""Saved and loaded tensors: device, dtype, layout, sharing and flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ..transfers.bit_patterns import DTYPE, bit_patterns, bits
from .files import loaded, saved, through_a_file

LEGACY = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


@DTYPE
@LEGACY
def test_load_preserves_every_dtype_bit_by_bit(device: torch.device, dtype: torch.dtype, zipped: bool) -> None:
    """A tensor of any dtype is loaded bitwise, with its shape and device, in the current and the older file format."""
    patterns = bit_patterns(dtype)
    values = torch.stack([patterns, patterns.flip(0)])
    x = values.to(device)

    back = loaded(saved(x, _use_new_zipfile_serialization=zipped))

    assert (back.dtype, back.device, back.shape) == (x.dtype, x.device, x.shape)
    assert torch.equal(bits(back), bits(values))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.covers("test_cuda::TestCuda::test_serialization_array_with_storage")
def test_load_keeps_shared_storages_shared(device: torch.device) -> None:
    """Tensors and storages that share memory when saved share it after loading, and others do not."""
    x, y = torch.randn(5, 5, device=device), torch.arange(10, dtype=torch.uint8, device=device)

    first, second, again, view, storage = through_a_file([x, y, x, x[1:, ::2], y.untyped_storage()])

    assert [one.device for one in (first, second, again, view)] == [device] * 4
    assert (first.dtype, second.dtype) == (torch.float32, torch.uint8)
    assert torch.equal(first, x)
    assert torch.equal(view, x[1:, ::2])
    first.fill_(5)
    assert (again == 5).all()
    assert (view == 5).all()
    assert second.tolist() == list(range(10))
    second.fill_(10)
    assert torch.empty(0, dtype=torch.uint8, device=device).set_(storage.untyped()).tolist() == [10] * 10
    assert (x != 5).any()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.covers("test_cuda::TestCuda::test_serialization_array_with_storage")
def test_load_preserves_a_typed_storage(device: torch.device) -> None:
    """A typed storage, the older kind, is loaded with its dtype, device and values."""
    x = torch.arange(10, dtype=torch.int32, device=device)
    storage = x.storage()

    tensor, back = through_a_file([x, storage])

    assert isinstance(back, torch.storage.TypedStorage)
    assert (back.dtype, back.device) == (torch.int32, device)
    assert torch.equal(tensor, x)
    assert torch.equal(torch.empty(0, dtype=torch.int32, device=device).set_(back.untyped()), x)


@pytest.mark.covers("test_cuda::TestCuda::test_serialization_array_with_empty")
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)], ids=str)
def test_load_preserves_tensors_without_elements(device: torch.device, shape: tuple[int, ...]) -> None:
    """A tensor without elements, before or after one with elements, keeps its shape, dtype and device."""
    empties = [torch.empty(shape, dtype=dtype, device=device) for dtype in (torch.float16, torch.int64)]
    some = torch.arange(16.0, device=device).view(4, 4)

    before, full, empty = through_a_file([empties[0], some, empties[1]])

    assert (before.shape, before.device, before.dtype) == (torch.Size(shape), device, torch.float16)
    assert (empty.shape, empty.device, empty.dtype) == (torch.Size(shape), device, torch.int64)
    assert torch.equal(full, some)
    assert full.get_device() == empty.get_device() == torch.empty(0, device=device).get_device()


LAYOUTS: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "scalar": lambda device: torch.tensor(3.5, device=device),
    "transposed": lambda device: torch.arange(60.0, device=device).view(3, 20).t(),
    "strided": lambda device: torch.arange(100.0, device=device)[7::3],
    "expanded": lambda device: torch.arange(5.0, device=device)[:, None].expand(5, 7),
    "channels_last": lambda device: (
        torch.arange(120.0, device=device).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    ),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_load_preserves_strides_and_offsets(device: torch.device, make: Callable[[torch.device], torch.Tensor]) -> None:
    """Shape, strides and offset of a tensor are preserved, and so is the size of its storage."""
    x = make(device)

    back = through_a_file(x)

    assert (back.shape, back.stride(), back.storage_offset()) == (x.shape, x.stride(), x.storage_offset())
    assert back.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert torch.equal(back, x)


def test_load_preserves_parameters_requires_grad_and_conj(device: torch.device) -> None:
    """A parameter is loaded as a parameter, with its `requires_grad`; conjugate and negated views remain such views."""
    frozen = torch.nn.Parameter(torch.arange(3.0, device=device), requires_grad=False)
    free = torch.nn.Parameter(torch.arange(3.0, 6.0, device=device))
    leaf = torch.ones(2, device=device, requires_grad=True)
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).to(device).conj()

    negated = torch.tensor([1 + 2j, 3 - 1j]).to(device).conj().imag
    assert negated.is_neg()

    a, b, c, d, e = through_a_file([frozen, free, leaf, conjugate, negated])

    assert [type(one) for one in (a, b, c)] == [torch.nn.Parameter, torch.nn.Parameter, torch.Tensor]
    assert [one.requires_grad for one in (a, b, c)] == [False, True, True]
    assert [one.tolist() for one in (a, b, c)] == [[0, 1, 2], [3, 4, 5], [1, 1]]
    assert d.is_conj()
    assert torch.equal(d.cpu(), torch.tensor([1 - 2j, 3 + 1j]))
    assert e.is_neg()
    assert e.tolist() == [-2, 1]


def test_save_of_a_view_writes_the_whole_storage_unless_cloned(device: torch.device) -> None:
    """A view is saved with its whole storage, and a clone only with its own memory, so the clone's file is smaller."""
    x = torch.zeros(100_000, dtype=torch.uint8, device=device)

    part, clone = saved(x[:10]), saved(x[:10].clone())

    assert len(part) - len(clone) > 90_000
    assert loaded(part).untyped_storage().nbytes() == 100_000
    assert loaded(clone).untyped_storage().nbytes() == 10


def test_save_waits_for_pending_work(device: torch.device) -> None:
    """`save` waits for pending work: the result of five hundred queued operations is in the file."""
    x = torch.zeros(1 << 16, dtype=torch.int64, device=device)
    for _ in range(500):
        x.add_(1)

    data = saved(x)
    x.fill_(-1)

    assert (loaded(data) == 500).all()


def test_load_gives_separate_memory(device: torch.device) -> None:
    """Loading twice gives two independent tensors."""
    x = torch.arange(10, device=device)
    data = saved(x)

    first, second = loaded(data), loaded(data)
    first.fill_(-1)

    assert torch.equal(second, x)
    assert torch.equal(loaded(data), x)
    assert (x >= 0).all()


def test_save_and_load_by_path_and_by_open_file_are_the_same(device: torch.device, tmp_path: Path) -> None:
    """Saving to and loading from a path, string or open file are equivalent, and saving again overwrites the file."""
    path, x = tmp_path / "tensor.pt", torch.arange(100.0, device=device)

    torch.save(torch.zeros(100_000, device=device), path)
    torch.save(x, path)

    assert torch.equal(torch.load(path, weights_only=True), x)
    with path.open("rb") as file:
        assert torch.equal(torch.load(file, weights_only=True), x)
    assert torch.equal(torch.load(str(path), weights_only=True, map_location="cpu"), x.cpu())


@pytest.mark.filterwarnings("ignore:Sparse.*beta state", "ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator": False}])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_load_preserves_compressed_indices(device: torch.device, layout: torch.layout, dtype: torch.dtype) -> None:
    """A compressed sparse tensor is loaded with its layout, its shape, and the types and values of its indices."""
    blocks = layout in (torch.sparse_bsr, torch.sparse_bsc)
    values = torch.arange(1.0, 13.0).view(3, 2, 2) if blocks else torch.arange(1.0, 4.0)
    starts, places = torch.tensor([0, 2, 3], dtype=dtype), torch.tensor([0, 1, 1], dtype=dtype)
    shape = (4, 4) if blocks else (2, 2)
    x = torch.sparse_compressed_tensor(starts.to(device), places.to(device), values.to(device), shape, layout=layout)

    back = loaded(saved(x))

    assert (back.layout, back.shape, back.device) == (layout, x.shape, device)
    rows = layout in (torch.sparse_csr, torch.sparse_bsr)
    found = (back.crow_indices(), back.col_indices()) if rows else (back.ccol_indices(), back.row_indices())
    assert [part.dtype for part in found] == [dtype, dtype]
    assert [part.tolist() for part in found] == [starts.tolist(), places.tolist()]
    assert torch.equal(back.values().cpu(), values)

"""Typed storages, which `Tensor.storage` returns: their elements, types, copies, moves and files.

`TypedStorage` is deprecated; old files and old code use it. Source: the page "torch.Storage" of PyTorch's
documentation.
"""

from __future__ import annotations

import array
import copy
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from suites import children

TypedStorage = torch.storage.TypedStorage

pytestmark = pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated",
    "ignore:The argument 'device' of Tensor",  # torch 2.11 passes it on itself
)

#: The conversion methods without a tensor class of their own, and the results of each for 0.5, -2 and 3.
CONVERSIONS: dict[str, tuple[torch.dtype, list[Any]]] = {
    "complex_double": (torch.complex128, [0.5 + 0j, -2 + 0j, 3 + 0j]),
    "complex_float": (torch.complex64, [0.5 + 0j, -2 + 0j, 3 + 0j]),
    "float8_e5m2": (torch.float8_e5m2, [0.5, -2.0, 3.0]),
    "float8_e4m3fn": (torch.float8_e4m3fn, [0.5, -2.0, 3.0]),
    "float8_e5m2fnuz": (torch.float8_e5m2fnuz, [0.5, -2.0, 3.0]),
    "float8_e4m3fnuz": (torch.float8_e4m3fnuz, [0.5, -2.0, 3.0]),
}
#: A type that only a storage has. Its elements are read as bytes.
QUANTIZED = torch.quint8


WARNED = """
import copy, pickle, warnings
import torch

x = torch.arange(3.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.clone().share_memory_()):
        other.untyped_storage().nbytes()
    print(len(caught))
    storage = x.storage()
    print(*((each.category.__name__, each.filename, str(each.message)) for each in caught))
    storage.tolist(), torch.storage.TypedStorage([0, 1, 2])
    print(len(caught))
"""


@pytest.mark.own_process
def test_typed_storage_warns_once_that_it_is_deprecated() -> None:
    """The first typed storage of a process warns at its caller; later ones and torch's internal uses do not."""
    before, warned, after = children.fork(WARNED).lines()
    assert (before, after) == ("0", "1")
    assert re.match(r"\('UserWarning', '<(child|string)>', 'TypedStorage is deprecated", warned)
    assert "tensor.untyped_storage()" in warned


def test_typed_storage_elements_are_those_of_the_tensor(device: torch.device) -> None:
    """The elements are those of the whole memory of a tensor, in order, and each view sees a write.

    A negative index counts from the end, a slice can be written but not read, and an index beyond the ends raises.
    """
    x = torch.arange(6.0, device=device).view(2, 3)
    view = x.t()[1]
    storage = view.storage()
    assert isinstance(storage, TypedStorage)
    assert (len(storage), storage.size(), storage.dtype, storage.device) == (6, 6, torch.float32, device)
    assert storage.tolist() == list(storage) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert (storage[1], storage[-1], storage[-6]) == (1.0, 5.0, 0.0)

    storage[4] = -4.0
    storage[-6] = 7.0
    storage[2:-2] = 9.0
    assert x.tolist() == [[7.0, 1.0, 9.0], [9.0, -4.0, 5.0]]
    assert view.tolist() == [1.0, -4.0]
    assert storage.tolist() == [7.0, 1.0, 9.0, 9.0, -4.0, 5.0]

    for index in (6, -7):
        with pytest.raises(IndexError, match="out of range"):
            storage[index]
        with pytest.raises(IndexError, match="out of bounds"):
            storage[index] = 0.0
    with pytest.raises(RuntimeError, match="slices are only supported in UntypedStorage"):
        storage[1:2]
    for wrong in ("1", 1.0):
        with pytest.raises(RuntimeError, match="can't index"):
            storage[wrong]
        with pytest.raises(RuntimeError, match="can't index"):
            storage[wrong] = 0.0
    with pytest.raises(RuntimeError, match="cannot set item"):
        storage[0] = storage
    assert storage.tolist() == [7.0, 1.0, 9.0, 9.0, -4.0, 5.0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8", "complex64"])
def test_typed_storage_fill_sets_every_element_and_returns_itself(device: torch.device, dtype: str) -> None:
    """`fill_` sets all elements of the memory, including those outside the tensor, and returns the storage."""
    x = torch.arange(5, device=device).to(getattr(torch, dtype))
    storage = x[1:3].storage()
    assert storage.fill_(7) is storage
    assert storage.tolist() == x.tolist() == [7] * 5


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int16", "bool", "complex64"])
def test_typed_storage_sizes_are_in_elements_and_in_bytes(device: torch.device, dtype: str) -> None:
    """`size` counts elements, `nbytes` and `sys.getsizeof` bytes; `element_size` is the bytes of one element."""
    wanted = getattr(torch, dtype)
    storage, empty = torch.zeros(5, dtype=wanted, device=device).storage(), TypedStorage(dtype=wanted, device=device)
    assert (storage.size(), storage.element_size(), storage.nbytes()) == (5, wanted.itemsize, 5 * wanted.itemsize)
    assert (empty.size(), empty.nbytes(), empty.tolist(), empty.device) == (0, 0, [], device)
    assert sys.getsizeof(storage) - sys.getsizeof(empty) == 5 * wanted.itemsize
    assert storage.untyped().nbytes() == 5 * wanted.itemsize


@pytest.mark.parametrize("method", CONVERSIONS)
def test_typed_storage_conversion_to_complex_and_float8(method: str) -> None:
    """Each method gives the values in its type, in separate memory, even if they have the type already."""
    storage = torch.tensor([0.5, -2.0, 3.0]).storage()
    dtype, values = CONVERSIONS[method]
    found = getattr(storage, method)()
    assert (type(found), found.dtype, found.tolist()) == (TypedStorage, dtype, values)
    again = getattr(found, method)()
    again[0] = 1
    assert (again.dtype, found.tolist(), again.tolist()) == (dtype, values, [1, *values[1:]])
    assert storage.tolist() == [0.5, -2.0, 3.0]


def test_typed_storage_copy_copies_the_bytes_of_another_of_its_size(device: torch.device) -> None:
    """`copy_` copies the bytes of a typed or untyped storage of its size, also across devices, and returns itself.

    The types need not match. A storage of another size in bytes is refused, and changes nothing.
    """
    x = torch.zeros(3, device=device)
    storage = x.storage()
    assert storage.copy_(torch.tensor([1.0, -2.0, 4.0]).storage()) is storage
    assert x.tolist() == [1.0, -2.0, 4.0]
    back = torch.zeros(3)
    assert back.storage().copy_(storage, non_blocking=False).tolist() == [1.0, -2.0, 4.0]
    assert back.tolist() == [1.0, -2.0, 4.0]
    assert storage.copy_(torch.tensor([5.0, 6.0, 7.0], device=device).untyped_storage()) is storage
    assert x.tolist() == [5.0, 6.0, 7.0]
    storage.copy_(torch.tensor([0x3F800000, 0x40000000, 0], dtype=torch.int32, device=device).storage())
    assert x.tolist() == [1.0, 2.0, 0.0]
    with pytest.raises(RuntimeError, match="size does not match, self was 12 bytes but src was 24 bytes"):
        storage.copy_(torch.ones(3, dtype=torch.float64, device=device).storage())
    assert x.tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("how", ["copy", "deepcopy", "clone", "pickle"])
def test_typed_storage_copies_have_memory_of_their_own(device: torch.device, how: str) -> None:
    """`copy.copy`, `copy.deepcopy`, `clone` and pickle preserve type, device and values, in other memory."""
    storage = torch.tensor([3, -1, 2], dtype=torch.int16, device=device).storage()
    copies = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "clone": lambda each: each.clone(),
        "pickle": lambda each: pickle.loads(pickle.dumps(each)),
    }
    found = copies[how](storage)
    assert (type(found), found.dtype, found.device, found.tolist()) == (TypedStorage, torch.int16, device, [3, -1, 2])
    found[0] = 9
    assert (storage.tolist(), found.tolist()) == ([3, -1, 2], [9, -1, 2])
    first, second = copy.deepcopy([storage, storage])
    assert first.data_ptr() == second.data_ptr() != storage.data_ptr()


@pytest.mark.xfail(
    raises=AttributeError,
    reason="the old format of torch.save asks an untyped storage for its dtype "
    "(seen with torch 2.11 and 2.13; not reported yet)",
)
def test_pickle_of_an_untyped_storage_has_its_bytes() -> None:
    """pickle of an `UntypedStorage`, which defines `__reduce__`, gives a storage with the same bytes."""
    storage = torch.tensor([1, 2, 3], dtype=torch.uint8).untyped_storage()
    assert pickle.loads(pickle.dumps(storage)).tolist() == [1, 2, 3]


def test_typed_storage_to_moves_and_keeps_the_type(device: torch.device) -> None:
    """`to` and `cpu` return a storage of the same type and values on a device, and share memory that is already there.

    `to` accepts the device as a value or as a text. `get_device`, `is_cuda` and `is_hpu` match the device.
    """
    host = torch.tensor([1, -2, 3], dtype=torch.int64).storage()
    for where in (device, str(device)):
        there = host.to(device=where)
        assert (there.dtype, there.device, there.tolist()) == (torch.int64, device, [1, -2, 3])
        assert there.to(device=where).data_ptr() == there.data_ptr()
        assert there.untyped().to(device=where).data_ptr() == there.data_ptr()
    assert there.get_device() == device.index
    converted = there.int()
    assert (converted.dtype, converted.device, converted.tolist()) == (torch.int32, device, [1, -2, 3])
    assert (there.is_cuda, host.is_cuda) == (device.type == "cuda", False)
    assert (there.untyped().is_cuda, host.untyped().is_cuda) == (device.type == "cuda", False)
    assert (there.is_hpu, there.untyped().is_hpu) == (False, False)
    back = there.cpu()
    assert (back.dtype, back.device.type, back.tolist()) == (torch.int64, "cpu", [1, -2, 3])
    assert back.cpu().data_ptr() == back.data_ptr()
    back[0] = 9
    assert host[0] == (9 if device.type == "cpu" else 1)
    with pytest.raises(AssertionError, match="HPU device module is not loaded"):
        host.hpu()


@pytest.mark.requires(device="cuda")
def test_typed_storage_cuda_moves_to_a_device_of_cuda(device: torch.device) -> None:
    """`cuda` returns a storage of the same type and values on the device; a CUDA class creates storages there."""
    host = torch.tensor([1, -2, 3], dtype=torch.int16).storage()
    for there in (host.cuda(), host.cuda(device.index)):
        assert (there.dtype, there.device, there.tolist()) == (torch.int16, device, [1, -2, 3])
        assert (there.is_cuda, there.get_device(), there.type()) == (True, device.index, "torch.cuda.ShortStorage")
    assert there.is_pinned() is False
    assert torch.cuda.ShortStorage([4, 5]).device == device
    wrapped = torch.cuda.ShortStorage(wrap_storage=there.untyped())
    assert (wrapped.data_ptr(), wrapped.tolist()) == (there.data_ptr(), [1, -2, 3])
    with pytest.raises(RuntimeError, match="must be cpu, but got cuda"):
        torch.ShortStorage(wrap_storage=there.untyped())


@pytest.mark.requires(device="cuda", devices=2)
def test_storage_cuda_takes_the_index_of_a_device(device: torch.device) -> None:
    """`cuda` with an index moves to that device, from host or device; without one, to the current device."""
    host = torch.tensor([1, -2, 3], dtype=torch.int16).storage()
    other = torch.device("cuda", 1)
    there = host.cuda(1)
    assert (there.device, there.dtype, there.tolist()) == (other, torch.int16, [1, -2, 3])
    assert host.untyped().cuda(1).device == other
    with torch.cuda.device(other):
        assert host.cuda().device == other
    back = there.cuda()
    assert (back.device, back.get_device(), back.tolist()) == (device, device.index, [1, -2, 3])


@pytest.mark.xfail(
    raises=AssertionError,
    reason="cuda() copies to a device without an index, which equals none that a storage has "
    "(seen with torch 2.13; not reported yet)",
)
@pytest.mark.requires(device="cuda")
@pytest.mark.parametrize("index", [None, 0])
def test_storage_cuda_of_a_storage_on_the_device_does_not_copy(device: torch.device, index: int | None) -> None:
    """`cuda` returns a storage that is already on the device without a copy, as documented."""
    storage = torch.ones(3, device=device).untyped_storage()
    assert storage.cuda(index).data_ptr() == storage.data_ptr()


def test_typed_storage_of_a_quantized_type_stays_on_the_host() -> None:
    """Elements of a quantized type are read and written as the numbers that store them, and no device supports them."""
    storage = TypedStorage([1, 200, 3], dtype=QUANTIZED)
    assert (storage.element_size(), storage.tolist()) == (1, [1, 200, 3])
    storage[1] = 255
    storage[-1] = 0
    assert storage.tolist() == [1, 255, 0]
    assert storage.fill_(4).tolist() == [4, 4, 4]
    wide = TypedStorage([-70000, 2], dtype=torch.qint32)
    assert (wide.element_size(), wide.tolist(), wide[-2]) == (4, [-70000, 2], -70000)
    with pytest.raises(RuntimeError, match="Cannot create CUDA storage with quantized dtype"):
        TypedStorage(3, dtype=QUANTIZED, device="cuda")
    with pytest.raises(RuntimeError, match="Cannot create CUDA storage with quantized dtype"):
        storage.cuda()
    with pytest.raises(RuntimeError, match="Cannot create HPU storage with quantized dtype"):
        storage.hpu()
    with pytest.raises(RuntimeError, match="Cannot create META storage with quantized dtype"):
        storage.to(device="meta")


@pytest.mark.requires(not_={"accelerator": True})
def test_typed_storage_without_an_accelerator_is_not_pinned() -> None:
    """Without an accelerator, no storage is pinned."""
    assert torch.ones(2).storage().is_pinned() is False


@pytest.mark.requires(pinned_memory=True)
@pytest.mark.requires(accelerator=True)
def test_typed_storage_pin_memory_copies_to_pinned_memory(device: torch.device) -> None:
    """`pin_memory` returns a pinned storage of the same type and values, and shares memory that is already pinned."""
    host = torch.tensor([1.5, -2.0], dtype=torch.float64).storage()
    pinned = host.pin_memory()
    assert (host.is_pinned(), pinned.is_pinned()) == (False, True)
    assert (pinned.dtype, pinned.device.type, pinned.tolist()) == (torch.float64, "cpu", [1.5, -2.0])
    pinned[0] = 3.0
    assert host[0] == 1.5
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert pinned.to(device=device).tolist() == [3.0, -2.0]
    byte = torch.tensor([7], dtype=torch.uint8).storage().pin_memory()
    assert (byte.is_pinned(), byte.tolist()) == (True, [7])


def test_typed_storage_type_names_its_class(device: torch.device) -> None:
    """`type` without an argument returns the name of the class for the type on the device, or of `TypedStorage`."""
    module = {"cpu": "torch", "cuda": "torch.cuda"}
    for dtype, name in ((torch.float32, "Float"), (torch.int64, "Long"), (torch.complex64, "ComplexFloat")):
        found = torch.zeros(2, dtype=dtype, device=device).storage().type()
        if device.type in module:
            assert found == f"{module[device.type]}.{name}Storage"
    assert TypedStorage(2, dtype=torch.uint16, device=device).type() == "torch.storage.TypedStorage"


def test_typed_storage_type_of_a_class_of_bytes_copies() -> None:
    """`type` with the name of a class of elements of the same size gives the bytes in its type, in other memory."""
    storage = torch.tensor([1, 200, 3], dtype=torch.uint8).storage()
    found: Any = storage.type("torch.CharStorage")
    assert (type(found), found.dtype, found.tolist()) == (TypedStorage, torch.int8, [1, -56, 3])
    found[0] = 9
    assert storage.tolist() == [1, 200, 3]


@pytest.mark.parametrize(
    ("values", "dtype", "swapped"),
    [
        (bytes([0, 1, 2, 3]), torch.uint8, bytes([0, 1, 2, 3])),
        (bytes([0, 1, 2, 3]), torch.int16, bytes([1, 0, 3, 2])),
        (bytes(range(8)), torch.float32, bytes([3, 2, 1, 0, 7, 6, 5, 4])),
        (bytes(range(8)), torch.complex64, bytes([3, 2, 1, 0, 7, 6, 5, 4])),
        (bytes(range(8)), torch.complex32, bytes([1, 0, 3, 2, 5, 4, 7, 6])),
    ],
    ids=["uint8", "int16", "float32", "complex64", "complex32"],
)
def test_byteswap_of_a_storage_swaps_the_bytes_of_each_number(
    values: bytes, dtype: torch.dtype, swapped: bytes
) -> None:
    """`UntypedStorage.byteswap` swaps the bytes of the elements of a type, and of both parts of a complex number."""
    storage = torch.tensor(list(values), dtype=torch.uint8).untyped_storage()
    storage.byteswap(dtype)
    assert bytes(storage.tolist()) == swapped


def test_typed_storage_size_can_be_a_number_of_numpy() -> None:
    """A size may be a NumPy integer."""
    numpy = pytest.importorskip("numpy")
    assert TypedStorage(numpy.int64(3), dtype=torch.int16).nbytes() == 6
    assert torch.ShortStorage(numpy.int32(3)).size() == 3


@pytest.mark.xfail(
    raises=RuntimeError,
    reason="type() counts the bytes of the source as elements of the result "
    "(seen with torch 2.11 and 2.13; not reported yet)",
)
@pytest.mark.parametrize("name", ["torch.FloatStorage", "torch.DoubleStorage"])
def test_typed_storage_type_of_a_class_casts(name: str) -> None:
    """`type` with the name of a class gives the elements in the type of the class."""
    storage = torch.tensor([1.5, -2.0]).storage().type(name)
    assert (storage.type(), storage.tolist()) == (name, [1.5, -2.0])  # type: ignore[union-attr]


def test_typed_storage_constructor_takes_a_size_a_sequence_or_a_storage(device: torch.device) -> None:
    """A size, a sequence or nothing, with device and type, creates a storage; so does an untyped storage with a type.

    The latter shares its memory. The default type is the default dtype, and the default device is the CPU.
    """
    assert (TypedStorage().dtype, TypedStorage().size(), TypedStorage().device.type) == (torch.float32, 0, "cpu")
    sized = TypedStorage(3, dtype=torch.int16, device=device)
    assert (sized.size(), sized.nbytes(), sized.device) == (3, 6, device)
    listed = TypedStorage([1, 2, 3], dtype=torch.int16, device=device)
    assert (listed.tolist(), listed.dtype, listed.device) == ([1, 2, 3], torch.int16, device)
    assert TypedStorage((1.5, 2)).tolist() == [1.5, 2.0]
    bits = torch.tensor([1.0, 2.0], device=device)
    wrapped = TypedStorage(wrap_storage=bits.untyped_storage(), dtype=torch.int32)
    assert (wrapped.tolist(), wrapped.device) == ([0x3F800000, 0x40000000], device)
    wrapped[0] = 0x40400000
    assert bits.tolist() == [3.0, 2.0]
    assert torch.is_storage(wrapped)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((3, 4), {}, RuntimeError, "Too many positional arguments"),
        ((1.5,), {}, TypeError, "Argument type not recognized: <class 'float'>"),
        ((), {"wrap_storage": torch.UntypedStorage(0)}, RuntimeError, "Argument 'dtype' must be specified"),
        ((), {"wrap_storage": torch.UntypedStorage(0), "dtype": "int8"}, TypeError, "must be torch.dtype"),
        ((), {"wrap_storage": [1], "dtype": torch.int8}, TypeError, "must be UntypedStorage"),
        ((3,), {"wrap_storage": torch.UntypedStorage(0), "dtype": torch.int8}, RuntimeError, "No positional arguments"),
        (
            (),
            {"wrap_storage": torch.UntypedStorage(0), "dtype": torch.int8, "device": "cpu"},
            RuntimeError,
            "Argument 'device' should not be specified",
        ),
    ],
    ids=["two", "float", "no_dtype", "dtype", "wrapped", "size_and_wrapped", "device_and_wrapped"],
)
def test_typed_storage_constructor_refuses_other_arguments(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Other combinations of arguments raise, and the error lists the possible ones and what is wrong."""
    with pytest.raises(error, match=text) as found:
        TypedStorage(*arguments, **options)
    assert "(int size, *, torch.device device, torch.dtype dtype)" in str(found.value)


def test_class_of_one_type_makes_typed_storages() -> None:
    """A class such as `torch.ShortStorage` creates typed storages of its type, which are instances of it only."""
    for storage, values in (
        (torch.ShortStorage(), []),
        (torch.ShortStorage([1, -2]), [1, -2]),
        (torch.ShortStorage(wrap_storage=torch.tensor([5, 6], dtype=torch.int16).untyped_storage()), [5, 6]),
    ):
        assert (type(storage), storage.dtype, storage.device.type) == (TypedStorage, torch.int16, "cpu")
        assert storage.tolist() == values
        assert isinstance(storage, torch.ShortStorage)
        assert not isinstance(storage, (torch.IntStorage, torch.cuda.ShortStorage))
    for other in (torch.zeros(1, dtype=torch.int16), storage.untyped(), [1]):
        assert not isinstance(other, torch.ShortStorage)
    assert torch.ShortStorage(3).nbytes() == 6


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((1, 2), {}, RuntimeError, "Too many positional arguments"),
        ((1.5,), {}, TypeError, "Argument type not recognized: <class 'float'>"),
        ((2,), {"device": "cpu"}, RuntimeError, "Keyword argument 'device' cannot be specified"),
        ((2,), {"dtype": torch.int16}, RuntimeError, "Keyword argument 'dtype' cannot be specified"),
        ((2,), {"wrap_storage": torch.UntypedStorage(0)}, RuntimeError, "No positional arguments"),
        ((), {"wrap_storage": [1]}, TypeError, "must be UntypedStorage"),
        ((), {"wrap_storage": torch.UntypedStorage(2, device="meta")}, RuntimeError, "must be cpu, but got meta"),
    ],
    ids=["two", "float", "device", "dtype", "size_and_wrapped", "wrapped", "other_device"],
)
def test_class_of_one_type_refuses_other_arguments(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """A class of one type accepts neither type nor device, and its error lists what it accepts."""
    with pytest.raises(error, match=text) as found:
        torch.ShortStorage(*arguments, **options)
    assert "(*, UntypedStorage wrap_storage)" in str(found.value)


def test_typed_storage_from_buffer_reads_numbers_of_either_order() -> None:
    """`from_buffer` copies numbers from a buffer in a byte order, from an offset in bytes, and as many as requested.

    The type is that of the class; for `TypedStorage` it is the given type, or the default dtype.
    """
    data = bytes([0, 1, 2, 3, 4, 5])
    little, big = [0x0100, 0x0302, 0x0504], [0x0001, 0x0203, 0x0405]
    assert torch.ShortStorage.from_buffer(data, "little").tolist() == little
    assert torch.ShortStorage.from_buffer(data, byte_order="big").tolist() == big
    assert torch.ShortStorage.from_buffer(data, "big", count=1, offset=2).tolist() == [0x0203]
    found = TypedStorage.from_buffer(data, "big", dtype=torch.int16)
    assert (type(found), found.dtype, found.tolist()) == (TypedStorage, torch.int16, big)
    numbers = array.array("f", [1.5, -2.0])
    floats = TypedStorage.from_buffer(numbers, byte_order=sys.byteorder, device="cpu")
    assert (floats.dtype, floats.tolist()) == (torch.float32, [1.5, -2.0])
    floats[0] = 7.0
    assert numbers[0] == 1.5
    with pytest.raises(RuntimeError, match="Not available for device meta"):
        TypedStorage.from_buffer(data, "big", device="meta")
    with pytest.raises(RuntimeError, match="'dtype' can only be specified"):
        torch.ShortStorage.from_buffer(data, "big", dtype=torch.int16)
    with pytest.raises(RuntimeError, match="'dtype' can only be specified"):
        torch.ShortStorage.from_buffer(data, "big", 1, 0, torch.int16)
    with pytest.raises(RuntimeError, match="'device' can only be specified"):
        torch.ShortStorage.from_buffer(data, "big", device="cpu")


@pytest.mark.parametrize("shared", [True, False])
def test_typed_storage_from_file_maps_a_number_of_elements(tmp_path: Path, shared: bool) -> None:
    """`from_file` of a class maps a number of elements of a file.

    Only a shared storage writes to it, and has its name.
    """
    file = tmp_path / "numbers"
    file.write_bytes(array.array("h", [1, -2, 3]).tobytes())
    storage = torch.ShortStorage.from_file(str(file), shared, 3)
    assert (type(storage), storage.dtype, storage.tolist()) == (TypedStorage, torch.int16, [1, -2, 3])
    assert storage.filename == (str(file) if shared else None)
    storage[1] = 9
    assert array.array("h", file.read_bytes()).tolist() == [1, 9 if shared else -2, 3]
    assert TypedStorage(3).filename is None
    with pytest.raises(RuntimeError, match="can only be called on derived classes"):
        TypedStorage.from_file(str(file), shared, 3)


def test_typed_storage_resize_keeps_the_elements_that_remain(device: torch.device) -> None:
    """`resize_` changes the number of elements of the tensor's memory, and keeps those that both sizes have.

    Memory of another owner is not resizable, as `resizable` reports.
    """
    x = torch.tensor([1, -2, 3], dtype=torch.int16, device=device)
    storage = x.storage()
    assert storage.resizable() is True
    storage.resize_(5)
    assert (storage.size(), storage.nbytes(), x.untyped_storage().nbytes()) == (5, 10, 10)
    assert storage.tolist()[:3] == x.tolist() == [1, -2, 3]
    storage.resize_(2)
    assert (storage.size(), storage.tolist()) == (2, [1, -2])
    others = torch.frombuffer(bytearray(6), dtype=torch.int16).storage()
    assert others.resizable() is False
    with pytest.raises(RuntimeError, match="not resizable"):
        others.resize_(4)


def test_typed_storage_pickle_storage_type_names_the_class_of_its_type() -> None:
    """`pickle_storage_type` is the class name that old files have; a type without such a class has none."""
    assert TypedStorage(dtype=torch.float64).pickle_storage_type() == "DoubleStorage"
    assert TypedStorage(dtype=torch.bfloat16).pickle_storage_type() == "BFloat16Storage"
    with pytest.raises(KeyError, match="float8_e5m2 is not recognized"):
        TypedStorage(dtype=torch.float8_e5m2).pickle_storage_type()


def test_typed_storage_text_has_the_elements_and_what_it_is(device: torch.device) -> None:
    """`str` and `repr` have one element per line, and then class, type, device and size; on meta, no elements."""
    storage = torch.tensor([1.5, -2.0], device=device).storage()
    facts = "torch.storage.TypedStorage(dtype=torch.float32, device={}) of size 2]"
    assert str(storage) == repr(storage) == f" 1.5\n -2.0\n[{facts.format(device)}"
    absent = TypedStorage(2, device="meta")
    assert str(absent) == f"...\n[{facts.format('meta')}"
    with pytest.raises(NotImplementedError, match="Not available for 'meta' device type"):
        absent[0]

"""Device names, and the errors for invalid ones. Names are parsed first, so no device is needed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from ._torch_private import get_device_index

GOOD: list[tuple[tuple[object, ...], str, int | None]] = [
    (("cpu",), "cpu", None),
    (("cpu:0",), "cpu", 0),
    (("cuda",), "cuda", None),
    (("cuda:0",), "cuda", 0),
    (("cuda:7",), "cuda", 7),
    (("cuda:127",), "cuda", 127),
    (("cuda", 3), "cuda", 3),
    (("meta",), "meta", None),
    (("meta:1",), "meta", 1),
    (("xpu", 2), "xpu", 2),
]

MALFORMED = [
    "cuda0",
    "cuda:",
    "cuda:-1",
    "cuda:x",
    "cuda:0:1",
    "cuda:01",
    "cuda: 0",
    " cuda",
    "cuda ",
    "CUDA",
    "cud",
    "gpu",
    "cpu:-1",
    ":0",
    "0",
    "cuda:0\n",
    "cuda.0",
    "cüda",
]


@pytest.mark.parametrize(("arguments", "kind", "index"), GOOD, ids=lambda value: str(value).replace("'", ""))
def test_torch_device_is_type_and_index(arguments: tuple[object, ...], kind: str, index: int | None) -> None:
    """`torch.device` accepts "type", "type:index" and (type, index), and its string has both.

    The device need not exist.
    """
    device = torch.device(*arguments)

    assert (device.type, device.index) == (kind, index)
    assert str(device) == (kind if index is None else f"{kind}:{index}")
    assert torch.device(str(device)) == device
    assert eval(repr(device), {"device": torch.device}) == device


@pytest.mark.covers("test_cuda::TestCuda::test_specify_improper_device_name")
@pytest.mark.parametrize("name", MALFORMED)
def test_torch_device_refuses_a_malformed_name_and_quotes_it(name: str) -> None:
    """A malformed device string raises RuntimeError with the string, in every function with a device argument."""
    for take in (torch.device, lambda text: torch.empty(1, device=text), lambda text: torch.empty(1).to(text)):
        with pytest.raises(RuntimeError) as refusal:
            take(name)
        assert name in str(refusal.value)
        assert "device" in str(refusal.value)


def test_torch_device_refuses_an_empty_name() -> None:
    """An empty string raises, and the error says that it is empty."""
    with pytest.raises(RuntimeError, match="empty"):
        torch.device("")


@pytest.mark.parametrize("index", [-2, -1])
def test_torch_device_refuses_a_negative_index(index: int) -> None:
    """A negative index raises."""
    with pytest.raises(RuntimeError, match=r"(?i)index.*negative|negative.*index"):
        torch.device("cuda", index)


@pytest.mark.parametrize("value", [1.5, None, [0], object()], ids=["float", "none", "list", "object"])
def test_torch_device_of_another_type_is_a_typeerror(value: object) -> None:
    """A value of another type raises TypeError with the type's name."""
    with pytest.raises(TypeError, match=rf"device\(\).*{type(value).__name__}"):
        torch.device(value)


@pytest.mark.xfail(
    raises=AssertionError,
    reason="torch stores an index in 8 bits, with wraparound: torch.device('cuda:200').index is -56",
)
@pytest.mark.parametrize("index", [128, 200, 99_999])
def test_torch_device_refuses_an_index_that_is_too_large(index: int) -> None:
    """An index that torch cannot represent raises with the index, and never gives another device."""
    try:
        kept = torch.device(f"cuda:{index}").index
    except (RuntimeError, OverflowError) as refusal:
        assert str(index) in str(refusal)  # noqa: PT017 - either answer is one
    else:
        assert kept == index


def test_torch_device_refuses_an_unknown_type_and_lists_the_known() -> None:
    """The error for an unknown type lists the known types."""
    with pytest.raises(RuntimeError) as refusal:
        torch.device("nonsense:0")

    assert all(known in str(refusal.value) for known in ("cpu", "cuda", "meta", "nonsense"))


def test_torch_device_equality_and_hash_go_by_type_and_index() -> None:
    """Equality and hash depend on type and index; "cuda" differs from "cuda:0"; copies and pickles are equal."""
    one, same, other, bare = (torch.device(name) for name in ("cuda:1", "cuda:1", "cuda:0", "cuda"))

    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same, other, bare, torch.device("cpu:1")}) == 4
    for device in (one, bare):
        for made in (copy.copy(device), copy.deepcopy(device), pickle.loads(pickle.dumps(device))):
            assert made == device
            assert type(made) is torch.device


def test_torch_device_is_a_context_for_new_tensors() -> None:
    """A device block sets the default device; nested blocks and exceptions restore the previous one."""

    def block() -> None:
        with torch.device("meta"):
            assert torch.empty(1).device.type == "meta"
            with torch.device("cpu"):
                assert torch.empty(1).device.type == "cpu"
            assert torch.empty(1).device.type == "meta"
            assert torch.empty(1, device="cpu").device.type == "cpu"
            raise LookupError

    with pytest.raises(LookupError):
        block()

    assert torch.empty(1).device.type == "cpu"


def test_set_default_device_holds_until_it_is_reset() -> None:
    """`set_default_device` sets the device for new tensors, `get_default_device` returns it, and None resets it."""
    before = torch.get_default_device()
    try:
        torch.set_default_device("meta")
        assert torch.get_default_device() == torch.device("meta")
        assert torch.zeros(2).device.type == "meta"
    finally:
        torch.set_default_device(None)

    assert torch.get_default_device() == before
    assert torch.zeros(2).device == before


@pytest.mark.covers("test_cuda::TestCuda::test_get_device_index")
@pytest.mark.parametrize(
    ("given", "index"), [("cuda:3", 3), (5, 5), (torch.device("cuda", 2), 2), ("cuda:0", 0), (0, 0)], ids=str
)
def test_get_device_index_reads_text_number_and_device(given: object, index: int) -> None:
    """torch.cuda accepts a string, a number or a device, and returns the same index for each."""
    assert get_device_index()(given) == index


@pytest.mark.covers("test_cuda::TestCuda::test_get_device_index")
def test_get_device_index_refuses_another_device_type() -> None:
    """torch.cuda raises RuntimeError for a malformed name, and ValueError for another device type or a missing device.

    The errors quote the name or both device types.
    """
    read = get_device_index()

    with pytest.raises(RuntimeError, match=r"Invalid device string.*cuda0"):
        read("cuda0", optional=True)
    for given in ("cpu", torch.device("cpu"), torch.device("meta")):
        with pytest.raises(ValueError, match=f"(?i)expected a cuda device.*{torch.device(given).type}"):
            read(given, optional=True)
    for given in (None, "cuda", torch.device("cuda")):
        with pytest.raises(ValueError, match=r"(?i)device"):
            read(given)


@pytest.mark.covers(
    "test_cuda::TestCudaArchList::test_get_arch_list_does_not_require_cuda_is_available",
    "test_cuda::TestCudaArchList::test_get_arch_list_empty_when_cuda_not_compiled",
)
def test_get_arch_list_needs_no_device() -> None:
    """`get_arch_list` returns names such as sm_90 (none in a CPU build) and does not initialize a device."""
    before = torch.cuda.is_initialized()

    architectures = torch.cuda.get_arch_list()

    assert torch.cuda.is_initialized() == before
    assert all(name.startswith(("sm_", "compute_", "gfx")) for name in architectures)
    assert len(set(architectures)) == len(architectures)
    if torch.version.cuda is None and torch.version.hip is None:
        assert architectures == []


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("BFloat16", torch.bfloat16),
        ("Bool", torch.bool),
        ("Byte", torch.uint8),
        ("Char", torch.int8),
        ("ComplexDouble", torch.complex128),
        ("ComplexFloat", torch.complex64),
        ("Double", torch.float64),
        ("Float", torch.float32),
        ("Half", torch.float16),
        ("Int", torch.int32),
        ("Long", torch.int64),
        ("Short", torch.int16),
    ],
)
def test_storage_classes_of_cuda_have_their_type(name: str, dtype: torch.dtype) -> None:
    """Each storage class for CUDA names the type of its elements, also without CUDA, and is deprecated."""
    assert getattr(torch.cuda, f"{name}Storage").dtype is dtype

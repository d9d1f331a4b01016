"""Caller errors: they raise immediately with a clear message, and the device still works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": torch.add,
    "mul": torch.mul,
    "matmul": torch.matmul,
    "mm": torch.mm,
    "addmm": lambda here, there: torch.addmm(here, here, there),
    "bmm": lambda here, there: torch.bmm(here[None], there[None]),
    "cat": lambda here, there: torch.cat([here, there]),
    "linear": F.linear,
    "where": lambda here, there: torch.where(here > 0, here, there),
    "add_": lambda here, there: here.add_(there),
    "out": lambda here, there: torch.add(here, here, out=there),
}


@pytest.mark.requires(accelerator=True)
@pytest.mark.covers("test_cuda::TestCuda::test_matmul_device_mismatch")
@pytest.mark.parametrize("operation", MIXED.values(), ids=MIXED.keys())
@pytest.mark.parametrize("host_first", [True, False], ids=["host_first", "host_second"])
def test_operands_of_cpu_and_device_are_refused(
    device: torch.device, operation: Callable[[torch.Tensor, torch.Tensor], object], host_first: bool
) -> None:
    """An operation on a CPU and a device tensor raises RuntimeError with both devices, and copies nothing silently."""
    host, there = torch.ones(3, 3), torch.ones(3, 3, device=device)
    operands = (host, there) if host_first else (there, host)

    with pytest.raises(RuntimeError, match=r"device") as refusal:
        operation(*operands)

    assert all(kind in str(refusal.value) for kind in ("cpu", device.type))
    assert host.eq(1).all()
    assert there.eq(1).all()
    assert (there + there).sum().item() == 18


@pytest.mark.requires(accelerator=True)
def test_indexing_a_device_tensor_with_cpu_indices(device: torch.device) -> None:
    """A device tensor can be read and written at CPU indices, the documented exception; the result is on the device."""
    x = torch.arange(10, device=device)

    read = x[torch.tensor([3, 1])]
    x[torch.tensor([0, 9])] = -1

    assert read.device == device
    assert read.tolist() == [3, 1]
    assert x.tolist() == [-1, 1, 2, 3, 4, 5, 6, 7, 8, -1]


@pytest.mark.requires(device="cuda")  # the contract is CUDA's only
def test_indexing_a_cpu_tensor_with_device_indices_is_refused(device: torch.device) -> None:
    """A CPU tensor cannot be indexed with device indices; the error names the permitted devices."""
    with pytest.raises(RuntimeError, match=r"indices should be either on .*cpu"):
        torch.arange(10)[torch.tensor([1], device=device)]


@pytest.mark.requires(accelerator=True)
@pytest.mark.covers("test_cuda::TestCuda::test_to_numpy")
def test_numpy_of_a_device_tensor_is_a_typeerror(device: torch.device) -> None:
    """`numpy()` of a device tensor raises TypeError and says to copy it to the host; `force=True` works."""
    import numpy as np

    x = torch.arange(4, device=device)

    with pytest.raises(TypeError, match=r"cpu\(\)"):
        x.numpy()
    with pytest.raises(TypeError, match=r"cpu\(\)"):
        np.asarray(x)

    assert x.numpy(force=True).tolist() == x.cpu().numpy().tolist() == [0, 1, 2, 3]


def test_operands_whose_shapes_do_not_fit_are_refused(device: torch.device) -> None:
    """Shapes are checked at the call: the error names both, and nothing is computed."""
    a, b = torch.ones(2, 3, device=device), torch.ones(4, 5, device=device)

    with pytest.raises(RuntimeError, match=r"2x3.*4x5"):
        a @ b
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\).*b \(5\)"):
        a + b
    with pytest.raises(RuntimeError, match=r"(?i)shape '\[5\]' is invalid for input of size 6"):
        a.view(5)
    assert a.sum().item() == 6


def test_index_given_as_a_number_is_an_indexerror_of_the_call(device: torch.device) -> None:
    """A Python index out of range raises IndexError at the call, without a device error."""
    x = torch.arange(4, device=device)

    for index in (4, -5):
        with pytest.raises(IndexError, match=r"out of (bounds|range)"):
            x[index]
    with pytest.raises(IndexError, match=r"(?i)dimension"):
        x.sum(3)
    assert x.sum().item() == 6


@pytest.mark.parametrize("size", [-1, -(1 << 40)])
def test_empty_refuses_a_negative_size(device: torch.device, size: int) -> None:
    """A negative size raises RuntimeError and names the size."""
    with pytest.raises(RuntimeError, match=rf"(?i)negative.*{size}\b"):
        torch.empty(size, device=device)


def test_empty_refuses_a_size_beyond_all_memory(device: torch.device) -> None:
    """A tensor larger than any memory raises RuntimeError, and the device still works."""
    for size in ((1 << 62,), (1 << 40, 1 << 40), (1 << 50,)):
        with pytest.raises(RuntimeError, match=r"(?i)memory|overflow|size|storage"):
            torch.empty(size, device=device)

    assert torch.ones(5, device=device).sum().item() == 5


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_check_error")
def test_check_error_raises_cudaerror_with_text_and_number() -> None:
    """`check_error` of success has no effect; for an error it raises torch.cuda.CudaError with text and number.

    2 is out of memory, 1 an invalid value, 801 not supported.
    """
    torch.cuda.check_error(0)

    for number, said in ((2, "out of memory|OutOfMemory"), (1, "invalid argument|InvalidValue"), (801, "not support")):
        with pytest.raises(torch.cuda.CudaError, match=f"(?i){said}") as refusal:
            torch.cuda.check_error(number)
        assert isinstance(refusal.value, RuntimeError)
        assert str(number) in str(refusal.value)


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_stream_invalid_device_index")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(torch.cuda.Stream, id="cuda"),
        pytest.param(torch.cuda.ExternalStream, id="external"),
        pytest.param(torch.Stream, id="generic", marks=pytest.mark.requires(torch=">=2.13")),  # older: a crash
    ],
)
def test_stream_on_a_missing_device_is_refused(make: Callable[..., object]) -> None:
    """A stream on a missing device raises, and the current device does not change."""
    before = torch.cuda.current_device()
    beyond = torch.device("cuda", torch.cuda.device_count())
    arguments = (0,) if make is torch.cuda.ExternalStream else ()

    with pytest.raises((RuntimeError, ValueError, AssertionError), match=r"(?i)device"):
        make(*arguments, device=beyond)

    assert torch.cuda.current_device() == before
    assert torch.ones(2, device="cuda").sum().item() == 2

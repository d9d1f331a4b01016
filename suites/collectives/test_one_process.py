"""Collectives of one process over its GPUs: `torch.cuda.comm`, `torch.cuda.nccl`, and `nn.parallel` upon them.

Each case goes through each root or destination, and through parts of different sizes. The last device has values of its
own, so that a call that takes only the first, or that confuses them, fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.cuda import comm, nccl

from ..streams.busy import NOT_SHOWN, calibrate, ever, sleep_on
from . import _torch_private

pytestmark = pytest.mark.requires(device="cuda", devices=2)

SIZE = 6


@pytest.fixture
def both() -> list[torch.device]:
    return [torch.device("cuda", index) for index in range(2)]


@pytest.fixture(params=[0, 1])
def root(request: pytest.FixtureRequest) -> int:
    """Return the index of the device that a collective begins or ends with."""
    index: int = request.param
    return index


def values(index: int, size: int = SIZE, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values that belong to a device, as a tensor of that device."""
    return (torch.arange(size) + 10 * (index + 1)).to(dtype).to(f"cuda:{index}")


def settled(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return the values of tensors, after all work of their devices, which NCCL need not wait for."""
    for index in range(2):
        torch.cuda.synchronize(index)
    return [tensor.tolist() for tensor in tensors]


DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8]


# torch.cuda.comm


@pytest.mark.parametrize("form", ["devices", "out"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_comm_broadcast_copies_to_each_device(
    form: str, dtype: torch.dtype, root: int, both: list[torch.device]
) -> None:
    """Each device gets the values of the source, on whichever device that is, as new tensors or in those of `out`."""
    source = values(root, dtype=dtype)
    order = [both[root], both[1 - root]]
    if form == "devices":
        made = comm.broadcast(source, order)
    else:
        made = comm.broadcast(source, out=[torch.zeros(SIZE, dtype=dtype, device=device) for device in order])

    assert [tensor.device for tensor in made] == order
    assert settled(made) == [source.tolist()] * 2


@pytest.mark.parametrize("buffer_size", [1, 16, 1 << 20])
def test_comm_broadcast_coalesced_copies_each_tensor(buffer_size: int, root: int, both: list[torch.device]) -> None:
    """Tensors of several sizes and types reach each device in order, however many fit into the buffer."""
    dtypes = [torch.float32, torch.int64, torch.float32, torch.float16]
    sources = [values(root, size, dtype) for size, dtype in zip((1, 5, 0, 3), dtypes, strict=True)]

    copies = comm.broadcast_coalesced(sources, [both[root], both[1 - root]], buffer_size=buffer_size)

    for device, made in zip([both[root], both[1 - root]], copies, strict=True):
        assert [tensor.device for tensor in made] == [device] * 4
        assert [tensor.dtype for tensor in made] == dtypes
        assert settled(made) == [source.tolist() for source in sources]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_comm_reduce_add_adds_on_the_destination(dtype: torch.dtype, root: int) -> None:
    """The sum of both devices' tensors is on the destination, and the inputs are as before."""
    inputs = [values(index, dtype=dtype) for index in range(2)]
    before = settled(inputs)

    total = comm.reduce_add(inputs, destination=root)

    assert total.device.index == root
    assert settled([total])[0] == [float(a + b) for a, b in zip(*before, strict=True)]
    assert settled(inputs) == before


@pytest.mark.parametrize("buffer_size", [1, 1 << 20])
def test_comm_reduce_add_coalesced_adds_each_tensor(buffer_size: int, root: int) -> None:
    """The sums of lists of tensors of several sizes are on the destination, in order."""
    sizes = (3, 1, 4)
    inputs = [[values(index, size) for size in sizes] for index in range(2)]

    totals = comm.reduce_add_coalesced(inputs, destination=root, buffer_size=buffer_size)

    assert [total.device.index for total in totals] == [root] * 3
    assert settled(totals) == [[10.0 + 20.0 + 2 * step for step in range(size)] for size in sizes]


@pytest.mark.parametrize("form", ["chunk_sizes", "out"])
@pytest.mark.parametrize("sizes", [(3, 3), (1, 5), (4, 2)])
@pytest.mark.parametrize("dim", [0, 1])
def test_comm_scatter_and_gather_of_uneven_parts(
    form: str, sizes: tuple[int, int], dim: int, root: int, both: list[torch.device]
) -> None:
    """`scatter` cuts a tensor of either device into parts, and `gather` joins them on the destination or the host."""
    source = values(root, 12).view(6, 2) if dim == 0 else values(root, 12).view(2, 6)
    shapes = [(size, 2) if dim == 0 else (2, size) for size in sizes]
    if form == "chunk_sizes":
        parts = comm.scatter(source, both, chunk_sizes=sizes, dim=dim)
    else:
        parts = comm.scatter(
            source, out=[torch.zeros(shape, device=device) for shape, device in zip(shapes, both, strict=True)], dim=dim
        )

    assert [part.device for part in parts] == both
    assert settled(parts) == [part.tolist() for part in source.split(sizes, dim)]
    for destination in (both[root], torch.device("cpu")):
        joined = comm.gather(parts, dim, destination=destination)
        assert joined.device == destination
        assert joined.tolist() == source.tolist()


# torch.cuda.nccl


def test_nccl_all_reduce_adds_on_each_device() -> None:
    """`all_reduce` without outputs writes the sum into each input."""
    tensors = [values(index) for index in range(2)]

    nccl.all_reduce(tensors)

    assert settled(tensors) == [[30.0 + 2 * step for step in range(SIZE)]] * 2


def test_nccl_reduce_adds_on_the_root(root: int) -> None:
    """`reduce` writes the sum into the output on the root's device, and changes no input."""
    inputs = [values(index) for index in range(2)]
    before = settled(inputs)
    output = torch.zeros(SIZE, device=f"cuda:{root}")

    nccl.reduce(inputs, output, root=root)

    assert settled([output]) == [[30.0 + 2 * step for step in range(SIZE)]]
    assert settled(inputs) == before


@pytest.mark.parametrize(
    "source",
    [
        0,
        pytest.param(
            1,
            marks=pytest.mark.xfail(
                raises=AssertionError,
                strict=True,
                reason="torch sends the first tensor for any root; no issue found",
            ),
        ),
    ],
)
def test_nccl_broadcast_sends_the_tensor_of_the_root(source: int) -> None:
    """`broadcast` writes the values of the root's tensor into the others."""
    tensors = [values(index) for index in range(2)]
    wanted = tensors[source].tolist()

    nccl.broadcast(tensors, root=source)

    assert settled(tensors) == [wanted] * 2


def test_nccl_all_gather_joins_the_tensors_on_each_device() -> None:
    """Each output has the inputs of all devices, in their order."""
    inputs = [values(index) for index in range(2)]
    outputs = [torch.zeros(2 * SIZE, device=f"cuda:{index}") for index in range(2)]

    nccl.all_gather(inputs, outputs)

    assert settled(outputs) == [[each for tensor in inputs for each in tensor.tolist()]] * 2


def test_nccl_reduce_scatter_gives_each_device_its_part() -> None:
    """Each output has the device's part of the sum."""
    inputs = [values(index) for index in range(2)]
    outputs = [torch.zeros(SIZE // 2, device=f"cuda:{index}") for index in range(2)]

    nccl.reduce_scatter(inputs, outputs)

    total = [30.0 + 2 * step for step in range(SIZE)]
    assert settled(outputs) == [total[:3], total[3:]]


# nn.parallel


class Net(nn.Module):
    """A linear layer and a buffer, which both count in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("offset", torch.tensor([1.0, 2.0]))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        result: Tensor = self.linear(x) + self.offset
        return result if scale is None else result * scale


@pytest.fixture
def net(device: torch.device) -> Net:
    torch.manual_seed(3)
    return Net().to(device)


def gradients(run: Callable[[Tensor, Tensor], Tensor], net: nn.Module, rows: int, device: torch.device) -> list[Tensor]:
    """Return the result of a run on the device of the module, and the gradients of its inputs and parameters."""
    net.zero_grad()
    x = torch.linspace(-1, 1, rows * 3).view(rows, 3).to(device).requires_grad_()
    scale = torch.linspace(1, 2, rows).view(rows, 1).to(device).requires_grad_()
    result = run(x, scale)
    (result.to(device) ** 2).sum().backward()
    found = [result, x.grad, scale.grad, *(parameter.grad for parameter in net.parameters())]
    assert all(each is not None for each in found)
    return [each.detach().to(device) for each in found if each is not None]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("form", ["DataParallel", "data_parallel"])
def test_dataparallel_has_the_results_and_gradients_of_the_module(
    form: str, rows: int, root: int, net: Net, both: list[torch.device], device: torch.device
) -> None:
    """A batch over both devices gives the module's own result on the output device, and its own gradients.

    This holds for batches that cannot be halved, and for one that the second device gets nothing of.
    """
    wanted = gradients(lambda x, scale: net(x, scale), net, rows, device)
    places: list[torch.device] = []

    def parallel(x: Tensor, scale: Tensor) -> Tensor:
        made: Tensor
        if form == "DataParallel":
            made = nn.DataParallel(net, both, output_device=both[root])(x, scale)
        else:
            made = nn.parallel.data_parallel(net, (x, scale), both, output_device=both[root])
        places.append(made.device)
        return made

    found = gradients(parallel, net, rows, device)

    if rows > 1:
        assert places == [both[root]]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_replicate_copies_parameters_and_buffers_to_each_device(net: Net, both: list[torch.device]) -> None:
    """Replicas have the values of the module on their devices, and gradients of each replica add up in the module."""
    first, second = nn.parallel.replicate(net, both)

    for replica, device in ((first, both[0]), (second, both[1])):
        assert {tensor.device for tensor in (replica.linear.weight, replica.linear.bias, replica.offset)} == {device}
        assert replica.linear.weight.tolist() == net.linear.weight.tolist()
        assert replica.offset.tolist() == net.offset.tolist()
    (first.linear.weight.sum() * 2 + second.linear.weight.to(both[0]).sum() * 3).backward()
    assert net.linear.weight.grad is not None
    assert net.linear.weight.grad.unique().tolist() == [5.0]


def test_parallel_scatter_and_gather_of_nested_arguments(
    root: int, both: list[torch.device], device: torch.device
) -> None:
    """`scatter` cuts each tensor of nested arguments and repeats the rest; `gather` joins them, with gradients."""
    x = torch.arange(10.0, device=device).view(5, 2).requires_grad_()

    first, second = nn.parallel.scatter({"a": x, "b": [x * 2, "word"]}, both)
    joined: Any = nn.parallel.gather([first, second], both[root])

    assert (first["a"].device, second["a"].device) == (both[0], both[1])
    assert (first["a"].shape, second["a"].shape) == ((3, 2), (2, 2))
    assert (first["b"][1], second["b"][1]) == ("word", "word")
    assert joined["a"].device == both[root]
    assert joined["a"].tolist() == x.tolist()
    (joined["a"] * joined["b"][0]).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == (4 * x).tolist()


@pytest.mark.requires(asynchronous=True)
@pytest.mark.races("the control reads without a wait")
def test_parallel_scatter_makes_each_current_stream_wait_for_its_copy(both: list[torch.device]) -> None:
    """What a device's current stream runs after `scatter` from the host sees the copied values.

    The streams that copy sleep first. Control: `comm.scatter` on the same streams, after which no stream waits.
    """
    streams = [_torch_private.scatter_stream(each) for each in both]
    for each in both:
        calibrate(each)

    def arrives(scatter: Callable[[Tensor], Sequence[Tensor]], value: int) -> bool:
        source = torch.arange(value, value + 8.0).view(2, 4).pin_memory()
        for stream in streams:
            sleep_on(stream)
        parts = scatter(source)
        found = [part.clone() for part in parts]
        settled([])
        return all(torch.equal(part.cpu(), row[None]) for part, row in zip(found, source, strict=True))

    assert ever(lambda: not arrives(lambda source: comm.scatter(source, both, streams=streams), -99)), NOT_SHOWN
    assert all(arrives(lambda source: nn.parallel.scatter(source, both), 100 * trial) for trial in range(1, 6))

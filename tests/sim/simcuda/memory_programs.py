"""Small programs that use memory wrongly, and programs that do not, for ``--check memory``.

``python -m tests.sim.simcuda.memory_programs NAME`` runs one of them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

import torch

Program = Callable[[], object]

#: Programs by name, with the kind of the finding that each causes; "" for none.
PROGRAMS: dict[str, tuple[str, Program]] = {}
UNWRITTEN, ILLEGAL, NOTHING = "read before it was written", "illegal access", ""


def finds(kind: str) -> Callable[[Program], Program]:
    def add(program: Program) -> Program:
        PROGRAMS[program.__name__] = kind, program
        return program

    return add


class Borrowed:
    """Memory at an address, which torch takes for a tensor on the device."""

    def __init__(self, address: int, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": "<f4",
            "data": (address, False),
            "version": 3,
        }


def _runtime(name: str, *arguments: object) -> None:
    assert getattr(ctypes.CDLL(None), name)(*arguments) == 0


@finds(UNWRITTEN)
def empty() -> object:
    return torch.empty(64, device="cuda").sum()


@finds(UNWRITTEN)
def part_of_a_tensor() -> object:
    x = torch.empty(64, device="cuda")
    x[:63].fill_(1)
    return x.sum()


@finds(UNWRITTEN)
def memory_of_an_earlier_tensor() -> object:
    del_me = torch.ones(64, device="cuda")
    del del_me
    return torch.empty(64, device="cuda") + 1


@finds(UNWRITTEN)
def compiled() -> object:
    function = torch.compile(lambda x: x.sin() + 1)
    function(torch.ones(64, device="cuda"))
    return function(torch.empty(64, device="cuda"))


@finds(UNWRITTEN)
def copy_to_the_host() -> object:
    return torch.empty(64, device="cuda").cpu()


@finds(UNWRITTEN)
def output_of_a_graph_before_its_first_replay() -> object:
    x, graph = torch.ones(64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    return y.sum()


@finds(ILLEGAL)
def ordinary_memory_of_the_host() -> object:
    host = torch.ones(1024)
    address = ctypes.c_void_p(host.data_ptr())
    _runtime("cudaHostRegister", address, ctypes.c_size_t(4096), 0)
    array = torch.as_tensor(Borrowed(host.data_ptr(), 64), device="cuda")
    _runtime("cudaHostUnregister", address)
    return array + 1, host


@finds(ILLEGAL)
def freed_memory() -> object:
    address, result = ctypes.c_void_p(), torch.zeros(64, device="cuda")
    _runtime("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(4096))
    array = torch.as_tensor(Borrowed(address.value or 0, 64), device="cuda")
    _runtime("cudaFree", address)
    return torch.add(array, 1, out=result)


@finds(ILLEGAL)
def freed_memory_of_a_pool() -> object:
    address = ctypes.c_void_p()
    _runtime("cudaMallocAsync", ctypes.byref(address), ctypes.c_size_t(4096), None)
    array = torch.as_tensor(Borrowed(address.value or 0, 64), device="cuda")
    _runtime("cudaFreeAsync", address, None)
    return array + 1


@finds(ILLEGAL)
def end_of_an_allocation() -> object:
    address = ctypes.c_void_p()
    _runtime("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(4096))
    return torch.as_tensor(Borrowed(address.value or 0, 1025), device="cuda").fill_(1)


@finds(ILLEGAL)
def misaligned() -> object:
    x = torch.zeros(65, device="cuda")
    return torch.as_tensor(Borrowed(x.data_ptr() + 2, 64), device="cuda").fill_(1), x


@finds(ILLEGAL)
def freed_memory_in_a_graph() -> object:
    """The launch is what is refused: the capture is right, as is the first replay."""
    address, result, captured = ctypes.c_void_p(), torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    _runtime("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(4096))
    array = torch.as_tensor(Borrowed(address.value or 0, 64), device="cuda")
    with torch.cuda.graph(captured):
        torch.add(array.zero_(), 1, out=result)
    captured.replay()
    torch.cuda.synchronize()
    _runtime("cudaFree", address)
    captured.replay()
    return captured


@finds(ILLEGAL)
def misaligned_in_a_graph() -> object:
    x, captured = torch.zeros(65, device="cuda"), torch.cuda.CUDAGraph()
    array = torch.as_tensor(Borrowed(x.data_ptr() + 2, 64), device="cuda")
    with torch.cuda.graph(captured):
        array.fill_(1)
    captured.replay()
    return captured, x


@finds(ILLEGAL)
def read_by_the_host() -> object:
    x = torch.ones(64, device="cuda")
    return ctypes.string_at(x.data_ptr(), 4)


@finds(ILLEGAL)
def written_by_the_host() -> object:
    x, host = torch.ones(64, device="cuda"), torch.ones(64)
    return ctypes.memmove(x.data_ptr(), host.data_ptr(), 256)


@finds(ILLEGAL)
def read_by_a_thread_of_the_host() -> object:
    x = torch.ones(64, device="cuda")
    thread = threading.Thread(target=lambda: ctypes.string_at(x.data_ptr(), 4))
    thread.start()
    thread.join()
    return x


@finds(NOTHING)
def memory_of_the_host_beside_it() -> object:
    """Pinned, ordinary and managed memory stays the host's, also after the device's was in use."""
    x, managed = torch.ones(64, device="cuda"), ctypes.c_void_p()
    _runtime("cudaMallocManaged", ctypes.byref(managed), ctypes.c_size_t(4096), 1)
    pinned = torch.empty(64).pin_memory()
    pinned.copy_(x)
    ctypes.memmove(managed.value or 0, pinned.data_ptr(), 256)
    return ctypes.string_at(managed.value or 0, 4), x.nonzero(), x.int().bincount(), torch.equal(x, x)


@finds(NOTHING)
def pinned_memory() -> object:
    host = torch.ones(64).pin_memory()
    return (torch.as_tensor(Borrowed(host.data_ptr(), 64), device="cuda") + 1).sum().item()


@finds(NOTHING)
def filled() -> object:
    x = torch.empty(64, 64, device="cuda")
    x[:32].fill_(1)
    x[32:].copy_(torch.ones(32, 64))
    return x.sum().item(), torch.empty(64, device="cuda").normal_().sum(), torch.empty_like(x).copy_(x).sum()


@finds(NOTHING)
def product_that_ignores_its_first_argument() -> object:
    a = torch.ones(8, 8, device="cuda")
    return torch.addmm(torch.empty(8, 8, device="cuda"), a, a, beta=0).sum().item()


@finds(NOTHING)
def many_gaps() -> object:
    x = torch.empty(4096, 2, device="cuda")
    x[:, 0].fill_(1)
    return x[:, 0].sum().item()


@finds(NOTHING)
def training() -> object:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        with torch.autocast("cuda"):
            loss = model(torch.randn(2, 3, 8, 8, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


@finds(NOTHING)
def two_devices() -> object:
    return torch.ones(64, device="cuda").to("cuda:1").sum().item()


@finds(NOTHING)
def graph() -> object:
    x, captured = torch.ones(64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = (x * 2).sin()
    captured.replay()
    return y.sum().item()


@finds(NOTHING)
def graph_with_its_own_memory() -> object:
    """A node allocates memory, which the next ones use, and a node frees it."""
    x, captured = torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    address, handle = ctypes.c_void_p(), ctypes.c_void_p(stream.cuda_stream)
    with torch.cuda.graph(captured, stream=stream):
        _runtime("cudaMallocAsync", ctypes.byref(address), ctypes.c_size_t(256), handle)
        array = torch.as_tensor(Borrowed(address.value or 0, 64), device="cuda").fill_(2)
        torch.add(array, 1, out=x)
        _runtime("cudaFreeAsync", address, handle)
    for _ in range(3):
        captured.replay()
    return x.sum().item()


if __name__ == "__main__":
    kept = PROGRAMS[sys.argv[1]][1]()
    torch.cuda.synchronize()

"""Small programs whose results depend on an order that they forgot, and programs that forgot none.

``python -m tests.sim.simcuda.order_programs`` prints their results as a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

Program = Callable[[], torch.Tensor]

FORGOTTEN: list[Program] = []
#: Programs that give 1 in each order.
ORDERED: list[Program] = []


def forgets(program: Program) -> Program:
    FORGOTTEN.append(program)
    return program


def keeps(program: Program) -> Program:
    ORDERED.append(program)
    return program


def zero() -> torch.Tensor:
    made = torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    return made


@forgets
def a_side_stream_writes() -> torch.Tensor:
    value = zero()
    with torch.cuda.stream(torch.cuda.Stream()):
        value.fill_(1)
    result = value * 2
    torch.cuda.current_stream().synchronize()
    return result


@forgets
def the_host_changes_a_pinned_source() -> torch.Tensor:
    source = torch.ones(64).pin_memory()
    copy = zero()
    copy.copy_(source, non_blocking=True)
    source.fill_(5)
    return copy


@forgets
def two_streams_change_a_tensor() -> torch.Tensor:
    value = zero()
    with torch.cuda.stream(torch.cuda.Stream()):
        value.add_(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        value.mul_(10)
    torch.cuda.synchronize()
    return value


def branches(value: torch.Tensor, *, ordered: bool = False) -> None:
    """Change the tensor on two streams, after the work of the current stream so far and before that to come."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    current = torch.cuda.current_stream()
    first.wait_stream(current)
    second.wait_stream(current)
    with torch.cuda.stream(first):
        value.add_(1)
    if ordered:
        second.wait_stream(first)
    with torch.cuda.stream(second):
        value.mul_(10)
    current.wait_stream(first)
    current.wait_stream(second)


@forgets
def two_branches_of_a_graph() -> torch.Tensor:
    value = zero()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        branches(value)
    graph.replay()
    return value


@forgets
def a_parent_of_two_branches_of_a_graph() -> torch.Tensor:
    value = zero()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value.add_(0)
        branches(value)
        value.mul_(2).add_(1)
    graph.replay()
    return value


_NEIGHBOURS = """
extern "C" __global__ void neighbours(float *values) {
  __shared__ float shared[65];
  shared[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared[64] = 0;
  __syncthreads();
  shared[threadIdx.x] = 1;
  BARRIER
  values[threadIdx.x] += shared[threadIdx.x + 1];
}
"""


def neighbour(barrier: str) -> torch.Tensor:
    """Each of 64 threads writes a value of the shared memory of its block, and reads that of the next thread."""
    values = zero()
    kernel = torch.cuda._compile_kernel(_NEIGHBOURS.replace("BARRIER", barrier), "neighbours")
    kernel((1, 1, 1), (64, 1, 1), (values,))
    return values


@forgets
def threads_of_a_block_share_memory() -> torch.Tensor:
    return neighbour("")


@forgets
def blocks_of_a_kernel_share_memory() -> torch.Tensor:
    values = zero()
    source = """
    extern "C" __global__ void blocks(float *values) {
      if (blockIdx.y == 1) atomicExch(values + 1, 1.0f);
      if (blockIdx.y == 0) values[0] = atomicAdd(values + 1, 0.0f);
    }
    """
    torch.cuda._compile_kernel(source, "blocks")((1, 2, 1), (1, 1, 1), (values,))
    return values


@keeps
def threads_of_a_block_meet_at_a_barrier() -> torch.Tensor:
    return neighbour("__syncthreads();")


@keeps
def branches_in_order() -> torch.Tensor:
    value = zero()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        branches(value, ordered=True)
        value.sub_(9)
    graph.replay()
    return value


@keeps
def a_stream_that_is_waited_for() -> torch.Tensor:
    value = zero()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        value.fill_(1)
    torch.cuda.current_stream().wait_stream(side)
    return value * 1


@keeps
def an_event_that_is_polled() -> torch.Tensor:
    source = torch.ones(64).pin_memory()
    copy = zero()
    done = torch.cuda.Event()
    copy.copy_(source, non_blocking=True)
    done.record()
    while not done.query():
        pass
    source.fill_(5)
    return copy


@keeps
def memory_of_the_host_that_is_polled() -> torch.Tensor:
    result = torch.zeros(64).pin_memory()
    result.copy_(zero() + 1, non_blocking=True)
    while result[-1].item() != 1:  # nothing asks the device
        pass
    return result


@keeps
def a_backward_pass_on_a_side_stream() -> torch.Tensor:
    weight = torch.ones(64, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss = (weight * 2).sum() / 2
    loss.backward()
    assert weight.grad is not None
    return weight.grad


def main() -> None:
    def results(programs: list[Program]) -> dict[str, float]:
        return {program.__name__: program()[0].item() for program in programs}  # type: ignore[attr-defined]

    print(json.dumps({"forgotten": results(FORGOTTEN), "ordered": results(ORDERED)}))


if __name__ == "__main__":
    main()

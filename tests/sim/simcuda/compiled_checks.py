"""A program of checks for simulated devices (see `checks`): each check compiles something with Inductor."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

DEVICE = torch.device("cuda", 0)

cuda: Any = torch.cuda  # partly untyped


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32, device=DEVICE).reshape(shape) % 7 - 3


def compare(work: Callable[..., Any], *arguments: Any, calls: int = 2, **options: Any) -> None:
    compiled = torch.compile(work, **options)
    for _ in range(calls):
        torch.testing.assert_close(compiled(*arguments), work(*arguments))


def check_pointwise() -> None:
    compare(lambda x, y: (x * 2 + y).relu(), numbers(8, 9), numbers(8, 9))


def check_reductions() -> None:
    compare(lambda x: (torch.softmax(x, 1), x.sum(0), x.argmax(1), x.var(0)), numbers(8, 9))


def check_product_with_an_epilogue() -> None:
    compare(lambda x, y: torch.relu(x @ y + 1), numbers(8, 9), numbers(9, 4))


def check_operators_that_inductor_calls() -> None:
    compare(lambda x: x.cumsum(0) * 2 + x.sort(0).values, numbers(8, 9))


def check_any_size() -> None:
    compiled = torch.compile(lambda x: (x * 2).sum(0), dynamic=True)
    for rows in (5, 6, 11):
        torch.testing.assert_close(compiled(numbers(rows, 3)), (numbers(rows, 3) * 2).sum(0))


def check_another_thread() -> None:
    arguments = [numbers(rows, 4, 8) for rows in (3, 5)]
    compiled = torch.compile(lambda x: x.transpose(0, 1) * 2 + x.shape[0], dynamic=True)
    with ThreadPoolExecutor(1) as pool:
        found = [pool.submit(compiled, x).result() for x in arguments]
    torch.testing.assert_close(found, [x.transpose(0, 1) * 2 + x.shape[0] for x in arguments])


def check_training() -> None:
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1)).to(DEVICE)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other)
    for model, call in ((eager, eager), (other, compiled)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(numbers(4, 8)).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(list(other.parameters()), list(eager.parameters()))


def check_trees_of_graphs() -> None:
    compare(lambda x, y: torch.relu(x @ y + 1) * 2, numbers(8, 9), numbers(9, 4), calls=5, mode="reduce-overhead")


def check_vector_instructions_are_looked_for_on_the_host_only() -> None:
    from torch._inductor import cpu_vec_isa

    asked = []

    def search() -> list[cpu_vec_isa.VecISA]:
        asked.append("asked")
        return []

    real = cpu_vec_isa.valid_vec_isa_list
    cpu_vec_isa.valid_vec_isa_list = search  # type: ignore[assignment]
    try:
        compare(lambda x: x.exp() * 3 - 4, numbers(8, 9))
        assert not asked, "code for the device was generated after a search that compiles nine programs"
        cpu_vec_isa.pick_vec_isa()
        assert asked
    finally:
        cpu_vec_isa.valid_vec_isa_list = real


def check_random_numbers_follow_the_seed() -> None:
    compiled = torch.compile(lambda x: torch.rand_like(x))
    torch.manual_seed(3)
    first, second = compiled(numbers(100)), compiled(numbers(100))
    torch.manual_seed(3)
    assert torch.equal(compiled(numbers(100)), first)
    assert not torch.equal(first, second)
    assert 0 <= first.min().item() < 0.2 < 0.8 < first.max().item() < 1


def check_random_numbers_of_torchs_operators() -> None:
    compiled = torch.compile(lambda x: x + torch.rand_like(x), options={"fallback_random": True})
    compiled(numbers(100))
    torch.manual_seed(3)
    found = compiled(numbers(100))
    torch.manual_seed(3)
    assert torch.equal(found, numbers(100) + torch.rand_like(numbers(100)))


def check_a_call_returns_before_its_kernels_run() -> None:
    x = numbers(64)
    compiled = torch.compile(lambda x: x * 2 + 1)
    compiled(x)
    torch.cuda.synchronize()
    cuda._sleep(10**9)
    begin = time.monotonic()
    found = compiled(x)
    launched = not cuda.current_stream().query()
    assert launched, f"the call waited for its stream, for {time.monotonic() - begin:.3f} s"
    assert torch.equal(found, x * 2 + 1)


def check_work_is_in_the_order_of_the_callers_stream() -> None:
    x, stream = numbers(64), cuda.Stream()
    compiled = torch.compile(lambda x: x * 2 + 1)
    compiled(x)
    torch.cuda.synchronize()
    with cuda.stream(stream):
        cuda._sleep(10**8)
        x.add_(5)
        found = compiled(x)
        assert not stream.query()
    assert cuda.default_stream().query()
    stream.synchronize()
    assert torch.equal(found, x * 2 + 1)


def check_a_number_on_the_host_is_read_at_the_call() -> None:
    x, number = numbers(8), torch.tensor(2.0)
    compiled = torch.compile(lambda x, number: x * number)
    compiled(x, number)
    cuda._sleep(10**8)
    found = compiled(x, number)
    number.fill_(9)
    assert torch.equal(found, x * 2)


def check_capture() -> None:
    x, graph = numbers(8, 9), torch.cuda.CUDAGraph()
    compiled = torch.compile(lambda x: (x * 2 + 1).sum(1))
    compiled(x)
    with torch.cuda.graph(graph):
        found = compiled(x)
    x.add_(3)
    graph.replay()
    assert torch.equal(found, (x * 2 + 1).sum(1))


def check_the_second_device() -> None:
    compiled = torch.compile(lambda x: x * 2)
    x = numbers(8).to("cuda:1")
    found = compiled(x)
    assert found.device == x.device
    assert torch.equal(found, x * 2)
    assert cuda.current_device() == 0


def run(check: Callable[[], None]) -> None:
    torch.compiler.reset()
    check()

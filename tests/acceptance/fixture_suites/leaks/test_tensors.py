"""Cases that leak tensors, each held in a different way, and cases between them that must not be affected."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

EXPECTED = {
    "test_before": "passed",
    "test_list": "leaked: 1 more torch tensor after each of 4 repetitions",
    "test_after_list": "passed",
    "test_class_attribute": "leaked: 2 more torch tensors",
    "test_closure": "leaked: 1 more torch tensor after each",
    "test_cycle_that_saves_itself": "leaked: 1 more torch tensor after each",
    "test_graph": "leaked: 2 more torch tensors",
    "test_cycle_through_a_hook_of_the_graph": "leaked: 2 more torch tensors",
    "test_hooks_of_a_shared_module": "leaked: 1 more torch tensor after each",
    "test_storage_alone": "leaked: 4.0 KiB more CPU memory in torch storages",
    "test_after_storage": "passed",
    "test_default_argument": "leaked: 1 more torch tensor after each",
    "test_cache_with_a_new_key_each_time": "leaked: 1 more torch tensor after each",
    "test_suspended_generator": "leaked: 1 more torch tensor after each",
    "test_uncollectable": "leaked: 1 more torch tensor after each",
    "test_view_from_numpy": "leaked: 1 more torch tensor after each",
    "test_in_shared_memory": "leaked: 1 more torch tensor after each",
    "test_in_the_teardown_of_a_fixture": "leaked: 1 more torch tensor after each",
    "test_parameters[1]": "passed",
    "test_parameters[2]": "leaked: 2 more torch tensors",
    "TestMethods::test_attribute_of_the_class": "leaked: 1 more torch tensor after each",
    "TestMethods::test_nothing": "passed",
    "test_that_fails_as_well": "failed: assert 1 == 2",
    "test_last": "passed",
}
#: Part of the note that names the origin of a case's leak.
NOTES = {
    "test_list": "tensors: 4 times: float32 tensor of shape 1000 on cpu, 3.9 KiB, held by: item of list of 7, global",
    "test_class_attribute": "class attribute 'KEPT' of ",
    "test_closure": "in the closure of function ",
    "test_cycle_that_saves_itself": "global 'SAVED' of module",
    "test_graph": "float32 scalar tensor on cpu, 4 bytes, with autograd graph (SumBackward0), held by: item of list",
    "test_cycle_through_a_hook_of_the_graph": "in the closure of function ",
    "test_hooks_of_a_shared_module": "global 'SHARED' of module",
    "test_storage_alone": "storage on cpu, 4.0 KiB, held by: item of list of 7, global 'STORAGES' of module",
    "test_default_argument": "default of function ",
    "test_cache_with_a_new_key_each_time": "cache of ",
    "test_suspended_generator": "a suspended ",
    "test_uncollectable": "item of gc.garbage",
    "test_view_from_numpy": "held by: C, C++ or a running function",  # the garbage collector does not track arrays
    "test_in_shared_memory": "also leaked: ",
    "test_in_the_teardown_of_a_fixture": "global 'TORN_DOWN' of module",
    "test_parameters[2]": "global 'LIST' of module",
    "TestMethods::test_attribute_of_the_class": "class attribute 'SEEN' of ",
}

LIST: list[torch.Tensor] = []
CALLBACKS: list[Callable[[], float]] = []
SAVED: list[object] = []
LOSSES: list[torch.Tensor] = []
STORAGES: list[torch.UntypedStorage] = []
GENERATORS: list[Iterator[int]] = []
ARRAYS: list[object] = []
TORN_DOWN: list[torch.Tensor] = []
FAILED: list[torch.Tensor] = []
SHARED = torch.nn.Linear(2, 2)
NUMBERS = itertools.count()


def test_before() -> None:
    torch.zeros(1000)


def test_list() -> None:
    LIST.append(torch.zeros(1000))


def test_after_list() -> None:
    assert LIST == []


class Holder:
    KEPT: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # noqa: RUF012 - the leak itself


def test_class_attribute() -> None:
    Holder.KEPT[next(NUMBERS)] = torch.zeros(10), torch.zeros(20)


def test_closure() -> None:
    values = torch.zeros(10)
    CALLBACKS.append(lambda: values.sum().item())


class Phoenix:
    def __init__(self) -> None:
        self.itself = self
        self.values = torch.zeros(100)

    def __del__(self) -> None:
        SAVED.append(self)


def test_cycle_that_saves_itself() -> None:
    Phoenix()
    gc.collect()


def test_graph() -> None:
    LOSSES.append((torch.ones(3, requires_grad=True) * 2).sum())


def test_cycle_through_a_hook_of_the_graph() -> None:
    """The garbage collector does not see that the graph, which is C++, holds its hooks."""
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    loss.register_hook(lambda grad: grad * loss)  # type: ignore[no-untyped-call]


def test_hooks_of_a_shared_module() -> None:
    offset = torch.ones(2)
    SHARED.register_forward_hook(lambda _module, _args, output: output + offset)
    SHARED(torch.ones(1, 2))


def test_storage_alone() -> None:
    STORAGES.append(torch.zeros(1024).untyped_storage())


def test_after_storage() -> None:
    assert STORAGES == []
    assert not SHARED._forward_hooks


def test_default_argument() -> None:
    def callback(values: torch.Tensor = torch.zeros(10)) -> float:  # noqa: B008 - the leak itself
        return values.sum().item()

    CALLBACKS.append(callback)


@functools.cache
def table(number: int) -> torch.Tensor:
    return torch.full((10,), float(number))


def test_cache_with_a_new_key_each_time() -> None:
    table(next(NUMBERS))


def numbers() -> Iterator[int]:
    values = torch.arange(10)
    yield from values.tolist()
    del values


def test_suspended_generator() -> None:
    generator = numbers()
    assert next(generator) == 0
    GENERATORS.append(generator)


def test_uncollectable() -> None:
    gc.garbage.append(torch.zeros(10))


def test_view_from_numpy() -> None:
    ARRAYS.append(torch.zeros(10).numpy())


def test_in_shared_memory() -> None:
    LIST.append(torch.zeros(10).share_memory_())  # type: ignore[no-untyped-call]


@pytest.fixture
def careless() -> Iterator[torch.Tensor]:
    values = torch.zeros(10)
    yield values
    TORN_DOWN.append(values)


def test_in_the_teardown_of_a_fixture(careless: torch.Tensor) -> None:
    assert careless.sum() == 0


@pytest.mark.parametrize("count", [1, 2])
def test_parameters(count: int) -> None:
    if count > 1:
        LIST.extend(torch.zeros(count) for _ in range(count))


class TestMethods:
    SEEN: list[torch.Tensor] = []  # noqa: RUF012 - the leak itself

    def test_attribute_of_the_class(self) -> None:
        self.SEEN.append(torch.zeros(1))

    def test_nothing(self) -> None:
        assert self.SEEN == []


def test_that_fails_as_well() -> None:
    FAILED.append(torch.zeros(1000))
    assert len(FAILED) == 2


def test_last() -> None:
    assert not any([LIST, CALLBACKS, SAVED, LOSSES, STORAGES, GENERATORS, ARRAYS, TORN_DOWN])

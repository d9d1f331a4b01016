"""Breaks that are made from the name of an operator, a C function or an attribute; each in its own process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable

import pytest
import torch

from tests.breaks.breaks import BreakError
from tests.breaks.search import generated


def in_fork(body: Callable[[], object]) -> object:
    """Return what a function returns in a fork, or the error that it raises, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            value: object = body()
        except BaseException as error:  # noqa: BLE001 - the parent compares it
            value = f"{type(error).__name__}: {error}"
        os.write(writer, pickle.dumps(value))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def with_operator(name: str, body: Callable[[], object]) -> object:
    def broken() -> object:
        generated.operator_break(name, "cpu")()
        return body()

    return in_fork(broken)


def products() -> list[float]:
    values: list[float] = (torch.arange(4.0) * torch.full((4,), 3.0)).tolist()
    return values


def test_operator_with_one_wrong_element() -> None:
    found = with_operator("mul.Tensor:last", products)
    assert isinstance(found, list)
    assert found[:3] == products()[:3]
    assert found[3] != products()[3]


def test_operator_with_every_element_wrong() -> None:
    found = with_operator("mul.Tensor:every", products)
    assert isinstance(found, list)
    assert all(wrong != right for wrong, right in zip(found, products(), strict=True))


def test_operator_not_done() -> None:
    assert with_operator("mul.Tensor:not_done", products) == [0.0] * 4
    assert with_operator("mul_.Tensor:not_done", lambda: torch.ones(2).mul_(3).tolist()) == [1.0, 1.0]
    assert with_operator("mul.out:not_done", lambda: torch.mul(torch.ones(1), 3, out=torch.zeros(1)).item()) == 0.0


def test_operator_that_loses_its_errors() -> None:
    def product() -> list[float]:
        values: list[float] = torch.mm(torch.ones(2, 3), torch.ones(2, 3)).tolist()
        return values

    assert str(in_fork(product)).startswith("RuntimeError: ")
    assert with_operator("mm:errors", product) == [[1.0] * 3] * 2


def test_gradients_of_a_broken_operator() -> None:
    def gradient() -> list[float]:
        x = torch.ones(2, requires_grad=True)
        (x * 3).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        values: list[float] = x.grad.tolist()
        return values

    found = with_operator("mul.Tensor:last", gradient)
    assert isinstance(found, list)
    assert found[0] == 3.0
    assert found[1] != 3.0


@pytest.mark.parametrize("name", ["mul.Tensor", "mul.Tensor:other", ":last"])
def test_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(BreakError, match="expected a place in torch"):
        generated.operator_break(name, "cpu")


def test_unknown_operator_is_refused() -> None:
    with pytest.raises(BreakError, match="no_such"):
        generated.operator_break("no_such.Tensor:last", "cpu")()


def with_function(name: str, body: Callable[[], object]) -> object:
    def broken() -> object:
        generated.function_break(name, generated.functions())()
        return body()

    return in_fork(broken)


def test_functions_of_modules_and_methods_of_classes_are_found_once() -> None:
    found = generated.functions()
    assert {"torch.set_num_threads", "torch.Generator.manual_seed", "torch.relu"} <= found.keys()
    assert not any(name.endswith(".iter_next") for name in found), "of Python, and used in torch"
    names = generated.names_of_functions(found)
    assert names[id(torch.set_num_threads)] == "torch.set_num_threads"


def test_function_with_a_wrong_result() -> None:
    right = torch.get_num_threads()
    assert with_function("torch.get_num_threads:last", torch.get_num_threads) == right
    assert with_function("torch.get_num_threads:last", lambda: torch.get_num_threads()) == 2 * right + 1


def test_method_that_does_nothing() -> None:
    def seed() -> int:
        generator = torch.Generator()
        generator.manual_seed(3)
        return generator.initial_seed()

    assert in_fork(seed) == 3
    assert with_function("torch.Generator.manual_seed:not_done", seed) != 3


def test_function_that_loses_its_errors() -> None:
    def threads() -> object:
        torch.set_num_threads(-1)
        return "accepted"

    assert str(in_fork(threads)).startswith("RuntimeError: ")
    assert with_function("torch.set_num_threads:errors", threads) == "accepted"


def test_attribute_with_a_wrong_value() -> None:
    attributes = generated.attributes()
    name = next(name for name in attributes if name.endswith(".is_leaf"))

    def broken() -> bool:
        generated.attribute_break(f"{name}:last", attributes)()
        return torch.ones(1).is_leaf

    assert in_fork(broken) is False
    with pytest.raises(BreakError, match="no such attribute"):
        generated.attribute_break("torch.Tensor.no_such:last", attributes)()


def test_class_that_loses_the_errors_of_its_constructor() -> None:
    def device() -> object:
        return [isinstance(torch.ones(1).device, torch.device), str(torch.device("no such device"))]

    assert str(in_fork(device)).startswith("RuntimeError: ")
    assert with_function("torch.device:errors", device) == [True, "None"]
    assert with_function("torch.device:last", lambda: str(torch.device("cpu"))) == "meta"

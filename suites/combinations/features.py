"""Features that wrap a function of tensors and change none of its values or gradients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

Function = Callable[..., Tensor]


def within(block: Callable[[], AbstractContextManager[object]]) -> Callable[[Function], Function]:
    """Return a feature that runs the function in a block."""

    def feature(function: Function) -> Function:
        def run(*inputs: Tensor) -> Tensor:
            with block():
                return function(*inputs)

        return run

    return feature


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Subclass(Tensor):
    """A tensor with `__torch_function__` of its own type."""


def subclass(function: Function) -> Function:
    return lambda *inputs: function(*(each.as_subclass(_Subclass) for each in inputs)).as_subclass(Tensor)


def in_a_thread(function: Function) -> Function:
    def run(*inputs: Tensor) -> Tensor:
        found: list[Any] = []
        grad = torch.is_grad_enabled()

        def work() -> None:
            try:
                with torch.set_grad_enabled(grad):
                    found.append(function(*inputs))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(found[0], BaseException):
            raise found[0]
        result: Tensor = found[0]
        return result

    return run


def batched(function: Function) -> Function:
    return lambda *inputs: torch.func.vmap(function)(*(each.unsqueeze(0) for each in inputs)).squeeze(0)


class _Called(torch.nn.Module):
    """A module that calls a function of two tensors."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._function(x, y)


def as_module(function: Function) -> Function:
    return lambda *inputs: torch.func.functional_call(_Called(function), {}, inputs)


class _Own(torch.autograd.Function):
    """A function whose backward pass runs the forward pass again."""

    @staticmethod
    def forward(function: Function, *inputs: Tensor) -> Tensor:
        return function(*(each.detach() for each in inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004 - torch calls it by these names
        ctx.function = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        saved = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            result = ctx.function(*saved)
        if not result.requires_grad:
            return None, *([None] * len(saved))
        return None, *torch.autograd.grad(result, saved, gradient, allow_unused=True)


def own_function(function: Function) -> Function:
    return lambda *inputs: _Own.apply(function, *inputs)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def compiled(backend: str, dynamic: bool | None = None) -> Callable[[Function], Function]:
    return lambda function: torch.compile(function, backend=backend, dynamic=dynamic)


FEATURES: dict[str, Callable[[Function], Function]] = {
    "compile_eager": compiled("eager"),
    "compile_aot_eager": compiled("aot_eager"),
    "compile_dynamic": compiled("aot_eager", dynamic=True),
    "checkpoint": lambda function: lambda *inputs: checkpoint(function, *inputs, use_reentrant=False),
    "checkpoint_reentrant": lambda function: lambda *inputs: checkpoint(function, *inputs, use_reentrant=True),
    "saved_tensors_hooks": within(
        lambda: saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda saved: saved)
    ),
    "save_on_cpu": within(save_on_cpu),
    "function_mode": within(_Functions),
    "dispatch_mode": within(_Dispatch),
    "subclass": subclass,
    "thread": in_a_thread,
    "vmap": batched,
    "functional_call": as_module,
    "own_function": own_function,
    "deterministic": within(deterministic),
    "autocast_disabled": within(lambda: torch.autocast("cpu", enabled=False)),
    "enable_grad": within(torch.enable_grad),
}

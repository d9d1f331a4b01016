"""Two tensor subclasses that only forward calls: one for each of torch's override hooks."""

from __future__ import annotations

from typing import Any

import torch

from . import _torch_private as private


class FunctionTensor(torch.Tensor):
    """Intercepts every public torch function called on it, and forwards it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class DispatchTensor(torch.Tensor):
    """Wraps a plain tensor, intercepts every operator dispatched on it, and runs it on the wrapped tensor."""

    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DispatchTensor:
        wrapper = private.wrapper_tensor(cls, inner)
        wrapper.wrapped = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(func(*map(_plain, args), **(kwargs or {})))


def _plain(value: Any) -> Any:
    return value.wrapped if isinstance(value, DispatchTensor) else value

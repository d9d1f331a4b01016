"""Breaks of kernels, one line each: the theme that adds them, and numbers for their demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.breaks.breaks import Break, Theme, replace_kernel

Around = Callable[..., Any]


def torch_() -> Any:
    """Return torch, which a catalogue must not import before a break is made."""
    import torch

    return torch


def torch_with_cuda() -> Any:
    """Return torch with CUDA initialised."""
    torch = torch_()
    torch.cuda.init()
    return torch


def waves(*shape: int, dtype: str = "float64") -> Any:
    """Return irregular numbers of a shape, which are always the same."""
    torch = torch_()
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(1, count + 1, dtype=torch.float64) * 0.7318).sin().to(getattr(torch, dtype)).view(shape)


def plain(value: Any) -> object:
    """Return the contents of tensors as a value that can be compared."""
    torch = torch_()
    if isinstance(value, torch.Tensor):
        return str(
            value.to_dense().detach().flatten()[-40:].tolist()
            if value.layout != torch.strided
            else value.detach().flatten()[-40:].tolist()
        )
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


@dataclass
class KernelTheme(Theme):
    """A theme whose breaks replace kernels. Its demonstrations may return tensors."""

    def function(
        self,
        name: str,
        breaks: str,
        suite: str | Sequence[str],
        apply: Callable[[], object],
        shows: Callable[[], object],
        device: str = "cpu",
    ) -> None:
        """Add a break that a function makes."""
        suites = (suite,) if isinstance(suite, str) else tuple(suite)
        self.add(Break(name, breaks, suites, apply, lambda: plain(shows()), device))

    def kernel(
        self,
        name: str,
        breaks: str,
        suite: str | Sequence[str],
        operators: str | Sequence[str],
        around: Around,
        shows: Callable[[], object],
        keys: Sequence[str] = ("CPU",),
    ) -> None:
        """Add a break of the kernels of operators. See `replace_kernel` for `around`."""
        wanted = (operators,) if isinstance(operators, str) else operators

        def apply() -> None:
            for operator in wanted:
                replace_kernel(operator, around, keys)

        self.function(name, breaks, suite, apply, shows)


def result(change: Callable[..., Any]) -> Around:
    """Return a kernel that changes the result of an operator. `change` gets the result and the arguments."""
    return lambda kernel, *arguments, **named: change(kernel(*arguments, **named), *arguments, **named)


def spoiled(x: Any, factor: float = 1.01) -> Any:
    """Return the tensor with its first element 1% off, or one more."""
    spoilt = x.clone()
    first = spoilt.view(-1)[:1] if spoilt.is_contiguous() else spoilt.reshape(-1)[:1]
    if spoilt.numel():
        place = (0,) * spoilt.dim()
        spoilt[place] = first[0] * factor if spoilt.is_floating_point() or spoilt.is_complex() else first[0] + 1
    return spoilt

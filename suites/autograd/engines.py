"""The two ways to run a backward pass: the eager engine, and compiled autograd.

A case takes the fixture `engine` and calls `backward` as ever; that is what makes it run both ways. It makes no
difference between them: what holds for one must hold for the other. Where compiled autograd breaks the contract today,
the case is `waived` for it: it runs, must fail in the way said there, and is red once it passes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from . import _torch_private as private
from .names import COMPILED, EAGER, ENGINES, WHOLE

__all__ = ["COMPILED", "EAGER", "ENGINES", "LIST", "WHOLE", "Engine", "Known", "as_one_graph", "each", "waived"]

#: PyTorch's own list of tests of autograd that fail under compiled autograd: where no issue is about it alone.
LIST = "https://github.com/pytorch/pytorch/blob/main/test/inductor/test_compiled_autograd.py"

Mark = Callable[[Callable[..., None]], Callable[..., None]]


class Engine:
    """The engine that a case runs with. `captures` tells how many graphs have been captured since it began."""

    def __init__(self, name: str, captures: Callable[[], int]) -> None:
        self.name = name
        self._captures = captures

    @property
    def captures(self) -> int:
        return self._captures()

    def settle(self) -> None:
        """Have what a failed capture left behind collected now, and not by chance within the next."""
        if private.capture_left_open():
            gc.collect()

    def check(self) -> None:
        """Fail where a case that passed has not run with the engine it was given."""
        captures = self.captures
        if self.name != EAGER:
            assert captures, "no backward pass of this case was captured: it has checked the eager engine"
        else:
            assert not captures, f"{captures} graphs were captured by a case for the eager engine"

    def still_works(self) -> None:
        """Assert that a backward pass is right after an error, or in a case that has no other."""
        self.settle()
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (x.sin() * x).sum().backward()
        expected = x.detach().sin() + x.detach() * x.detach().cos()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, expected)


#: For a case about what compiled autograd does where a backward pass is one graph, and refuses to do elsewhere.
as_one_graph: Mark = pytest.mark.parametrize("engine", [EAGER, WHOLE], indirect=True)


@dataclass(frozen=True)
class Known:
    """A contract that compiled autograd does not keep: why, where that is told, and how it shows.

    `when` restricts it, to releases of torch say. `always` is False for what comes and goes: such a case may pass too.
    """

    reason: str
    link: str
    raises: type[BaseException] | tuple[type[BaseException], ...]
    when: bool = True
    always: bool = True

    def mark(self) -> pytest.MarkDecorator:
        """The waiver, as a mark: it holds on all machines and in all profiles, those without waivers too."""
        if not self.link.startswith("https://"):
            raise ValueError(f"a waiver needs a link that can be followed, not {self.link!r}")
        reason = f"{self.reason} ({self.link})"
        return pytest.mark.xfail(self.when, raises=self.raises, reason=reason, strict=self.always)


def waived(known: Known) -> Mark:
    """Mark a case whose contract compiled autograd does not keep."""
    engines: list[Any] = [EAGER, pytest.param(COMPILED, marks=known.mark())]
    mark: Mark = pytest.mark.parametrize("engine", engines, indirect=True)
    return mark


def each(argument: str, values: Iterable[str], known: Mapping[str, Known]) -> Mark:
    """`parametrize(argument, values)`, for a case of which compiled autograd does not keep some."""
    rest = set(known) - set(values)
    if rest:
        raise ValueError(f"no such value of {argument}: {', '.join(sorted(rest))}")
    pairs: list[Any] = [pytest.param(EAGER, value) for value in values]
    pairs += [pytest.param(COMPILED, value, marks=known[value].mark() if value in known else ()) for value in values]
    mark: Mark = pytest.mark.parametrize(("engine", argument), pairs, indirect=["engine"])
    return mark

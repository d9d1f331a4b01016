"""The two ways to run a backward pass: the eager engine and compiled autograd.

A case takes the fixture `engine` and calls `backward` as usual; requesting the fixture makes it run both ways. The case
does not distinguish between them, because the same contract holds for both. If compiled autograd currently breaks the
contract, the case is `waived`: it still runs, must fail in the stated way, and is reported once it passes.
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

#: PyTorch's own list of autograd tests that fail under compiled autograd, for failures without an issue.
LIST = "https://github.com/pytorch/pytorch/blob/main/test/inductor/test_compiled_autograd.py"

Mark = Callable[[Callable[..., None]], Callable[..., None]]


class Engine:
    """The engine with which a case runs. `captures` is the number of graphs captured since the engine started."""

    def __init__(self, name: str, captures: Callable[[], int]) -> None:
        self.name = name
        self._captures = captures

    @property
    def captures(self) -> int:
        return self._captures()

    def settle(self) -> None:
        """Collect the remains of a failed capture now, so that this does not happen during the next capture."""
        if private.capture_left_open():
            gc.collect()

    def check(self) -> None:
        """Fail a case that passed without running under its engine."""
        captures = self.captures
        if self.name != EAGER:
            assert captures, "no backward pass of this case was captured, so the case checked the eager engine instead"
        else:
            assert not captures, f"{captures} graphs were captured in a case for the eager engine"

    def still_works(self) -> None:
        """Check that a backward pass gives correct gradients, after an error or in a case that runs no other pass."""
        self.settle()
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (x.sin() * x).sum().backward()
        expected = x.detach().sin() + x.detach() * x.detach().cos()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, expected)


#: For a case in which compiled autograd must capture the backward pass as one graph, or raise.
as_one_graph: Mark = pytest.mark.parametrize("engine", [EAGER, WHOLE], indirect=True)


@dataclass(frozen=True)
class Known:
    """A contract that compiled autograd does not satisfy: the reason, a link, and the expected exception.

    `when` restricts the waiver, for example to releases of torch. `always=False` is for intermittent failures: the case
    may pass too.
    """

    reason: str
    link: str
    raises: type[BaseException] | tuple[type[BaseException], ...]
    when: bool = True
    always: bool = True

    def mark(self) -> pytest.MarkDecorator:
        """Return the waiver as an xfail mark.

        It applies on all machines and in all profiles, including profiles without waivers.
        """
        if not self.link.startswith("https://"):
            raise ValueError(f"a waiver needs an https:// link, not {self.link!r}")
        reason = f"{self.reason} ({self.link})"
        return pytest.mark.xfail(self.when, raises=self.raises, reason=reason, strict=self.always)


def waived(known: Known) -> Mark:
    """Mark a case whose contract compiled autograd does not satisfy."""
    engines: list[Any] = [EAGER, pytest.param(COMPILED, marks=known.mark())]
    mark: Mark = pytest.mark.parametrize("engine", engines, indirect=True)
    return mark


def each(argument: str, values: Iterable[str], known: Mapping[str, Known]) -> Mark:
    """Return `parametrize(argument, values)` for a case in which compiled autograd fails for some of the values."""
    rest = set(known) - set(values)
    if rest:
        raise ValueError(f"no such value of {argument}: {', '.join(sorted(rest))}")
    pairs: list[Any] = [pytest.param(EAGER, value) for value in values]
    pairs += [pytest.param(COMPILED, value, marks=known[value].mark() if value in known else ()) for value in values]
    mark: Mark = pytest.mark.parametrize(("engine", argument), pairs, indirect=["engine"])
    return mark

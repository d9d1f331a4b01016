"""Checks in ranks: one set of ranks makes many checks, each with its parameters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

#: The exceptions that torch raises for a call that it refuses.
REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)
#: The maximum number of failed checks per rank in a message.
_SHOWN = 4


@dataclass
class Checks:
    """The checks of one rank. A rank continues after a failed check, so that the others do not wait for it."""

    number: int
    made: int = 0
    wrong: list[str] = field(default_factory=list)

    def same(self, what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Check type, shape and every bit."""
        self.made += 1
        text = difference(found, expected)
        if text:
            self.wrong.append(f"{what}: {text}")

    def equal(self, what: str, found: object, expected: object) -> None:
        """Check values that are not tensors."""
        self.made += 1
        if found != expected:
            self.wrong.append(f"{what}: {found!r}, expected {expected!r}")

    def true(self, what: str, holds: object) -> None:
        """Check a condition."""
        self.made += 1
        if not holds:
            self.wrong.append(what)

    def refused(
        self,
        what: str,
        call: Callable[[], object],
        pattern: str = "",
        kinds: tuple[type[BaseException], ...] = REFUSALS,
    ) -> None:
        """Check that a call raises one of these exceptions, with a message that matches `pattern`."""
        self.made += 1
        try:
            call()
        except kinds as error:
            if re.search(pattern, str(error), re.IGNORECASE) is None:
                self.wrong.append(f"{what}: refused with {str(error)[:200]!r}, expected {pattern!r}")
        else:
            self.wrong.append(f"{what}: accepted, expected a refusal")


def difference(found: torch.Tensor, expected: torch.Tensor) -> str:
    """Return the first difference of two tensors, or an empty string.

    Zeros of different signs differ, and equal NaNs do not.
    """
    found, expected = found.detach().cpu(), expected.detach().cpu()
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype} {tuple(found.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
    if found.numel() == 0:
        return ""
    wrong = (_bytes(found) != _bytes(expected)).any(dim=1).nonzero().flatten()
    if wrong.numel() == 0:
        return ""
    place = int(wrong[0])
    values = found.flatten()[place].item(), expected.flatten()[place].item()
    return f"element {place} is {values[0]!r}, expected {values[1]!r} ({wrong.numel()} of {found.numel()} wrong)"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return one row of bytes per element."""
    return tensor.contiguous().flatten().view(torch.uint8).reshape(tensor.numel(), -1)


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """Return a hash of all bits of tensors."""
    made = hashlib.sha256()
    for tensor in tensors:
        made.update(_bytes(tensor.detach().cpu()).numpy().tobytes())
    return made.hexdigest()


def expect_all_right(results: Sequence[Checks]) -> None:
    """Fail with the first failed checks of each rank. All ranks make the same checks, and at least one."""
    __tracebackhide__ = True
    lines = [f"rank {checks.number} of {len(results)}: {text}" for checks in results for text in checks.wrong[:_SHOWN]]
    count = sum(len(checks.wrong) for checks in results)
    made = [checks.made for checks in results]
    assert not lines, f"{count} of {sum(made)} checks are wrong:\n" + "\n".join(lines)
    assert min(made) > 0, f"ranks made {made} checks"


def checks_of(results: Sequence[Any]) -> list[Checks]:
    """Return the checks of ranks that return a tuple that begins with them."""
    return [result[0] for result in results]

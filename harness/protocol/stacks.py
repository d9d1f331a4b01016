"""Shortens the stacks that faulthandler writes, for reports."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

_FRAME = "  File "
_MACHINERY = ("/_pytest/", "/pluggy/", "/harness/executor/", "/harness/zygote/", '"<frozen runpy>"')


def fold_stacks(text: str) -> str:
    """Return the stacks without the frames below each test: about thirty frames of pytest and of this harness.

    A stack that has only such frames is kept whole, because the fault may then be in the harness. The list of extension
    modules at the end of a fatal error is dropped.
    """
    return "\n".join(_folded(text.splitlines()))


def _folded(lines: list[str]) -> Iterator[str]:
    stack: list[str] = []
    for line in [*lines, ""]:
        if line.startswith(_FRAME):
            stack.append(line)
            continue
        yield from _without_machinery(stack)
        stack = []
        if not line.startswith("Extension modules: "):
            yield line


def _without_machinery(stack: list[str]) -> list[str]:
    below = sum(1 for _ in takewhile(lambda line: any(part in line for part in _MACHINERY), reversed(stack)))
    if below in (0, 1, len(stack)):
        return stack
    return [*stack[:-below], f"  [… {below} frames of pytest and the harness …]"]

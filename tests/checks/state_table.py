"""The tables of changes that a case must restore and of harmless ones, and the comparison of messages with a row.

The modules `state_rows_*` contain the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Action = Callable[[], object]

#: By name: the action of a case, and the expected messages. "…" stands for any text.
CONTAMINATIONS: dict[str, tuple[Action, list[str]]] = {}
HARMLESS: dict[str, Action] = {}
#: Rows that cannot be restored, or that take seconds: skipped if one process runs all rows.
ONCE: set[str] = set()
KEPT: list[object] = []
#: State that some releases of torch change as well. A message that begins with "?" is optional.
OF_INDUCTOR = "?did not restore torch._inductor.config.deterministic (now True, was False)"


def contaminates(*texts: str, once: bool = False) -> Callable[[Action], Action]:
    def enter(action: Action) -> Action:
        CONTAMINATIONS[action.__name__] = (action, list(texts))
        if once:
            ONCE.add(action.__name__)
        return action

    return enter


def harmless(action: Action) -> Action:
    HARMLESS[action.__name__] = action
    return action


def slow_harmless(action: Action) -> Action:
    ONCE.add(action.__name__)
    return harmless(action)


def passing_modes() -> tuple[Any, Any]:
    """Return untyped modes of __torch_dispatch__ and of __torch_function__ that change nothing."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Dispatch, Function


def actions() -> list[tuple[str, Action]]:
    return [(name, action) for name, (action, _) in CONTAMINATIONS.items()] + list(HARMLESS.items())


def fits(said: str, expected: str) -> bool:
    """Return whether the text is the expected one; "…" stands for any text."""
    parts = expected.split("…")
    if len(parts) == 1:
        return said == expected
    position = 0
    for part in parts:
        found = said.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return said.startswith(parts[0]) and said.endswith(parts[-1])


def as_expected(said: list[str], expected: list[str]) -> bool:
    left = list(said)
    for text in expected:
        match = next((one for one in left if fits(one, text.removeprefix("?"))), None)
        if match is not None:
            left.remove(match)
        elif not text.startswith("?"):
            return False
    return not left


def wrong(results: dict[str, tuple[list[str], list[str]]]) -> dict[str, list[str]]:
    return {name: said for name, (said, expected) in results.items() if not as_expected(said, expected)}

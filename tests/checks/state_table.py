"""The tables of what a case may leave behind and what it may not, and how what is said of a row is compared with it.

The rows are in the modules `state_rows_*`, by what they are about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Scene = Callable[[], object]

#: By name: what a case does, and the texts that say so; in them "…" stands for any text.
CONTAMINATIONS: dict[str, tuple[Scene, list[str]]] = {}
INNOCENTS: dict[str, Scene] = {}
#: Rows that cannot be put back, or that take seconds: left out where one process runs all rows.
ONCE: set[str] = set()
KEPT: list[object] = []
#: What some releases of torch change as well. A text that begins with "?" may be there or not.
OF_INDUCTOR = "?left torch._inductor.config.deterministic at True (was False)"


def contaminates(*texts: str, once: bool = False) -> Callable[[Scene], Scene]:
    def enter(scene: Scene) -> Scene:
        CONTAMINATIONS[scene.__name__] = (scene, list(texts))
        if once:
            ONCE.add(scene.__name__)
        return scene

    return enter


def innocent(scene: Scene) -> Scene:
    INNOCENTS[scene.__name__] = scene
    return scene


def slow_innocent(scene: Scene) -> Scene:
    ONCE.add(scene.__name__)
    return innocent(scene)


def passing_modes() -> tuple[Any, Any]:
    """Modes of __torch_dispatch__ and of __torch_function__ that change nothing, as values without types."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Dispatch, Function


def scenes() -> list[tuple[str, Scene]]:
    return [(name, scene) for name, (scene, _) in CONTAMINATIONS.items()] + list(INNOCENTS.items())


def fits(said: str, expected: str) -> bool:
    """Whether the text is the expected one; "…" stands for any text."""
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

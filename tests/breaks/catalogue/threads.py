"""Settings of one thread that are those of another, and the reverse."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.breaks.breaks import Theme, replace

broken = Theme()
_SETTINGS = "suites/threads/test_settings.py"


def _elsewhere(read: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(read()))
    thread.start()
    thread.join()
    return found


def _autocast() -> object:
    import torch

    with torch.autocast("cpu"):
        return _elsewhere(lambda: torch.is_autocast_enabled("cpu"))


@broken("Autocast is on in each thread while one is in its block.", _SETTINGS, shows=_autocast)
def autocast_is_on_in_all_threads() -> None:
    import torch

    inside: list[None] = []

    def enter(original: Any) -> Any:
        def entered(self: Any) -> Any:
            inside.append(None)
            return original(self)

        return entered

    def leave(original: Any) -> Any:
        def left(self: Any, *error: Any) -> Any:
            inside.pop()
            return original(self, *error)

        return left

    replace(torch.autocast, "__enter__", enter)
    replace(torch.autocast, "__exit__", leave)
    replace(torch, "is_autocast_enabled", lambda original: lambda *kind: bool(inside) or original(*kind))


def _anomaly() -> object:
    import torch

    with torch.autograd.set_detect_anomaly(True):
        return _elsewhere(torch.is_anomaly_enabled)


@broken("The detection of anomalies is on only in the thread that set it.", _SETTINGS, shows=_anomaly)
def anomaly_detection_is_of_a_thread() -> None:
    import torch

    own = threading.local()

    def set_enabled(original: Any) -> Any:
        def changed(mode: bool, check_nan: bool = True) -> None:
            own.mode = mode
            original(mode, check_nan)

        return changed

    replace(torch, "set_anomaly_enabled", set_enabled)
    replace(torch, "is_anomaly_enabled", lambda original: lambda: getattr(own, "mode", False))

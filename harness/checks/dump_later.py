"""Tells whether ``faulthandler.dump_traceback_later`` will fire.

Python does not report that, so this module replaces the functions of faulthandler.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from typing import Any

from harness.core import clock


class DumpLater:
    """Records whether ``faulthandler.dump_traceback_later`` will fire.

    With ``exit=True``, it would end the process of a later case.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._cancel: Callable[[], None] = faulthandler.cancel_dump_traceback_later

    def install(self) -> None:
        """Replace the functions of faulthandler by ones that do the same and record the call."""
        later, cancel = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later

        def dump_traceback_later(timeout: float, repeat: bool = False, *more: Any, **named: Any) -> None:
            later(timeout, repeat, *more, **named)
            self._until = float("inf") if repeat else clock.monotonic() + timeout

        def cancel_dump_traceback_later() -> None:
            cancel()
            self._until = 0.0

        faulthandler.dump_traceback_later = dump_traceback_later
        faulthandler.cancel_dump_traceback_later = cancel_dump_traceback_later

    @property
    def is_pending(self) -> bool:
        """Whether the dump will fire."""
        return self._until > 0.0 and clock.monotonic() < self._until

    def disarm(self) -> None:
        """Cancel the dump."""
        self._until = 0.0
        self._cancel()


DUMP_LATER = DumpLater()

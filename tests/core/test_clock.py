from __future__ import annotations

import sys
import time

import pytest

from harness.core import clock


def test_they_are_the_clocks_of_python() -> None:
    assert time.monotonic() <= clock.monotonic() <= time.monotonic()
    assert time.time() - 1 < clock.now() < time.time() + 1


def test_replaced_names_change_nothing() -> None:
    """freezegun does so, too: in `time`, and in each module that has one of its functions as a global."""
    real = {id(getattr(time, name)) for name in ("time", "monotonic", "clock_gettime", "perf_counter")}
    before = clock.monotonic(), clock.now()
    with pytest.MonkeyPatch.context() as replaced:  # ends here, since pytest measures the time of the tear-down
        for module in [time, *list(sys.modules.values())]:
            for name, value in list(vars(module).items()) if hasattr(module, "__dict__") else ():
                if id(value) in real:
                    replaced.setattr(module, name, lambda *_: -1.0)
        after = clock.monotonic(), clock.now()
    assert all(0 <= later - earlier < 100 for earlier, later in zip(before, after, strict=True))

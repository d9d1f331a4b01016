"""The time of the machine, even if the code under test replaces Python's clocks.

Libraries that freeze the time for tests replace the functions of `time` in every module that has them as a global
(freezegun), or the implementation of the functions for the time of day (time-machine). Neither may change a duration or
a deadline here.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable


class _Moment(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))
    seconds: int
    nanoseconds: int


# From the C library, because time-machine replaces the implementation of Python's functions.
_clock_gettime, _address = ctypes.CDLL(None).clock_gettime, ctypes.byref


def monotonic(_read: Callable[[], float] = time.monotonic) -> float:
    """Return the seconds of the clock of `time.monotonic`, which is never set."""
    return _read()  # not a global of this module, which freezegun would replace


def now(_clock: int = time.CLOCK_REALTIME) -> float:
    """Return the seconds since 1970-01-01 UTC."""
    moment = _Moment()
    _clock_gettime(_clock, _address(moment))
    return moment.seconds + moment.nanoseconds * 1e-9

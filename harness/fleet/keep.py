"""The duration of ``--keep``: ``400d``, ``12w``, ``2y``."""

from __future__ import annotations

import re
from datetime import timedelta

from harness.core.errors import HarnessError

_DAYS = {"d": 1, "w": 7, "y": 365}
_FORM = re.compile(r"([1-9][0-9]{0,4})([dwy])")


class KeepError(HarnessError):
    """A duration is not valid."""


def parse_keep(text: str) -> timedelta:
    """Return the duration. Raise KeepError."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise KeepError(f"--keep={text!r} is no duration: expected days, weeks or years, such as 400d, 12w or 2y")
    return timedelta(days=int(match[1]) * _DAYS[match[2]])

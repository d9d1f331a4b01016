"""The limits of captured texts that JUnit, JSON and the page share. The journal has the whole texts."""

from __future__ import annotations

#: Maximum characters of one captured text or traceback of a red case.
MOST_TEXT = 32_768
#: The limit of a case that is not red is smaller by this factor.
GREEN_SHARE = 8

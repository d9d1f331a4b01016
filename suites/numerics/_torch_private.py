"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from suites.reaching import reach


def get_sdp_priority_order() -> list[int]:
    """Return the order in which torch tries the attention backends. No documented function reads it."""
    found: list[int] = list(reach("torch._C._get_sdp_priority_order")())
    return found

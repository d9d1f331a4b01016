"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from typing import Any

from suites.reaching import reach


def scaled_mm(*args: Any, **kwargs: Any) -> Any:
    """Return the product of two matrices of an 8-bit type with scales."""
    return reach("torch._scaled_mm")(*args, **kwargs)

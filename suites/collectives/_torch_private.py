"""The undocumented names of torch that this suite uses. No other module of the suite looks one up."""

from __future__ import annotations

from typing import Any

from suites.reaching import reach


def coalescing_manager() -> Any:
    """The context that makes one call of several collectives."""
    return reach("torch.distributed._coalescing_manager")

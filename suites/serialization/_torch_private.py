"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from typing import Any

from suites.reaching import below, reach


def package_registry() -> list[Any]:
    """What `register_package` adds to: nothing takes it out again."""
    found: list[Any] = reach("torch.serialization._package_registry")
    return found


def checkpoint_offset(tensor: Any) -> int:
    """Where in its file the bytes of a tensor on the meta device begin, which was loaded from there."""
    found: int = below(tensor.untyped_storage(), "_checkpoint_offset")
    return found

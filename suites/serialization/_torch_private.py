"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from typing import Any

from suites.reaching import below, reach


def package_registry() -> list[Any]:
    """Return the list to which `register_package` adds. Nothing removes its entries."""
    found: list[Any] = reach("torch.serialization._package_registry")
    return found


def checkpoint_offset(tensor: Any) -> int:
    """Return the offset, in the loaded file, of the bytes of a tensor on the meta device."""
    found: int = below(tensor.untyped_storage(), "_checkpoint_offset")
    return found

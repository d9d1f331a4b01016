"""The result of detecting one capability."""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]
Value = str | bool | int | Version


@dataclass(frozen=True, slots=True)
class Detected:
    """A value, or None for absent. `detail` says why the value is absent or False, or gives further information."""

    value: Value | None
    detail: str = ""

    @property
    def present(self) -> bool:
        """Whether the value is neither absent nor False."""
        return self.value is not None and self.value is not False

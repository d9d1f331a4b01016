"""The result of detecting one capability."""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]
Value = str | bool | int | Version


@dataclass(frozen=True, slots=True)
class Detected:
    """A value, or None for absent. `detail` says why it is absent or False, or what else a reader should know."""

    value: Value | None
    detail: str = ""

    @property
    def present(self) -> bool:
        """Whether it is neither absent nor False."""
        return self.value is not None and self.value is not False

"""What looking for one fact gave."""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]
Value = str | bool | int | Version


@dataclass(frozen=True, slots=True)
class Detected:
    """A value, or None for absent. `detail` says why it is absent or False, or else what the value alone would hide."""

    value: Value | None
    detail: str = ""

    @property
    def present(self) -> bool:
        """Whether there is such a thing: neither absent nor False."""
        return self.value is not None and self.value is not False

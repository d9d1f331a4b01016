"""Changes to pytest's session by code in an executor, where the session is a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: The attributes of a session that end it after the current test.
SESSION_ENDS = ("shouldfail", "shouldstop")


@dataclass(frozen=True, slots=True)
class SessionNews:
    """Changes that pytest's own session must adopt.

    `ends`: reasons to fail or to stop, by the attribute of the session. `failed`: the change of
    ``session.testsfailed``, which may be negative. `properties`: those of ``record_testsuite_property``.
    """

    ends: Mapping[str, str] = field(default_factory=dict)
    failed: int = 0
    properties: Sequence[tuple[str, str]] = ()

    def __bool__(self) -> bool:
        return bool(self.ends or self.failed or self.properties)

    @property
    def fields(self) -> dict[str, Any]:
        """The news as a part of a message of an executor; empty if there are none."""
        news = {"ends": dict(self.ends), "failed": self.failed, "properties": list(self.properties)}
        return {"session": news} if self else {}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> SessionNews:
        """Return the news in a message. Raise AttributeError, KeyError, TypeError or ValueError if they are invalid."""
        data = message.get("session")
        if data is None:
            return cls()
        return cls(
            {name: str(reason) for name, reason in data["ends"].items() if name in SESSION_ENDS},
            int(data["failed"]),
            [(str(name), str(value)) for name, value in data["properties"]],
        )

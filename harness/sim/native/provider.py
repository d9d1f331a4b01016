"""The interface of a software device to the rest of the harness: its build for a run, and its use in a process.

Each kind has a module with the functions of `DeviceProvider`; `Backend.provider` names it. Packages on higher floors
need no other module.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from harness.backends.backend import Backend


@dataclass(frozen=True, slots=True)
class ProvidedDevice:
    """The parts of a software device that a run needs.

    `library`: the library that executors load; None for a device that they have anyway. `facts`: facts about the build,
    for reports. `variables`: the environment variables that every process that runs cases must have from its start on.
    """

    library: str | None
    facts: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)


class DeviceProvider(Protocol):
    """The functions of the module of one kind."""

    def provide(self) -> ProvidedDevice:
        """Build the libraries unless the cache has them. Raise HarnessError."""

    def enter(self, library: str) -> None:
        """Prepare this executor, forked or fresh, for cases. Any exception means that the device cannot be used."""

    def enter_inline(self, library: str) -> None:
        """Prepare a pytest process that runs cases itself. Called before each case. Raise HarnessError."""

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Apply the variables to this process, which was started without them. Raise HarnessError."""


def provider_of(backend: Backend) -> DeviceProvider:
    """Return the provider of a software device."""
    return cast(DeviceProvider, importlib.import_module(backend.provider))

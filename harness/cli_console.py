"""The console on which commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make() -> Console:
    """A console that prints texts as they are."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)

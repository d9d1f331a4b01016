"""The console that commands print to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 100_000  # columns


def make_console() -> Console:
    """Return a console that prints text unchanged.

    In a file or a pipe, each table row is one line of any length. ``$COLUMNS`` sets another width, in columns.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNLIMITED
    return console

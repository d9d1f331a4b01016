"""The console on which commands print."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 100_000  # columns


def make() -> Console:
    """A console that prints texts as they are. In a file or a pipe, a row of a table stays one line, whatever its length.

    ``$COLUMNS`` sets the width of both.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNLIMITED
    return console

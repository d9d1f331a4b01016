"""The catalogue of breaks: one file per theme. Its import does not import torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from tests.breaks.breaks import Break, Theme, by_name


def catalogue() -> Mapping[str, Break]:
    """Return every break by name, in the order of files and of their lines."""
    found: list[Break] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        theme = importlib.import_module(f"{__name__}.{module.name}").broken
        assert isinstance(theme, Theme)
        found += theme.breaks
    return by_name(found)

"""Sources of breaks: the catalogue, or a file of the user; and the pytest plugin that makes one.

Loaded with ``-p tests.breaks.source``, it breaks torch in the processes that import test files: the zygote, and so
executors. The variable `VARIABLE` names the break, preceded by the file and a colon if it is not in the catalogue.
"""

from __future__ import annotations

import importlib.util
import os
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.breaks.breaks import Break, BreakError, Theme, by_name
from tests.breaks.catalogue import catalogue

VARIABLE = "HARNESS_BREAK"


def read_source(path: Path | None) -> Mapping[str, Break]:
    """Return the breaks of the catalogue, or of a file with a `Theme` named ``broken``. Raise BreakError."""
    if path is None:
        return catalogue()
    spec = importlib.util.spec_from_file_location("harness_user_breaks", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BreakError(f"--catalogue={str(path)!r}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - the code of a user may raise anything
        raise BreakError(
            f"--catalogue={str(path)!r} cannot be imported{_line(error, path)}: {type(error).__name__}: {error}"
        ) from None
    theme = getattr(module, "broken", None)
    if not isinstance(theme, Theme):
        raise BreakError(f"--catalogue={str(path)!r}: expected 'broken = Theme()' in it, and breaks added to that")
    return by_name(theme.breaks)


def _line(error: Exception, path: Path) -> str:
    """Return the line of the file that an error comes from. A syntax error has no frame, but names its line itself."""
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [frame.lineno for frame in frames if frame.filename == str(path.absolute())]
    return f" (line {numbers[-1]})" if numbers else ""


def chosen(words: str) -> Break:
    """Return the break that a text ``FILE:NAME`` names; without FILE, one of the catalogue. Raise BreakError."""
    file, _, name = words.rpartition(":")
    breaks = read_source(Path(file) if file else None)
    if name not in breaks:
        raise BreakError(f"there is no break named {name!r}: see 'python -m tests.breaks list'")
    return breaks[name]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Break torch before the first test file is imported. Supervisors import no test file, and must stay intact."""
    plugins = session.config.pluginmanager.get_plugins()
    if not any(getattr(plugin, "is_harness_zygote", False) for plugin in plugins):
        return
    apply = chosen(os.environ[VARIABLE]).apply
    assert apply is not None
    apply()

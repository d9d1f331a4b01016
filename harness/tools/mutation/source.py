"""Where breaks come from: the harness's own catalogue, or a file of the user's."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Mapping
from pathlib import Path

from harness.tools.mutation.breaks import Break, BreakError, Theme, by_name
from harness.tools.mutation.catalogue import catalogue


def read_source(path: Path | None) -> Mapping[str, Break]:
    """The breaks of the harness's catalogue, or of a Python file with a `Theme` named ``broken``. Raises BreakError."""
    if path is None:
        return catalogue()
    spec = importlib.util.spec_from_file_location("harness_user_breaks", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BreakError(f"--catalogue={str(path)!r}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - it is the code of a user
        raise BreakError(
            f"--catalogue={str(path)!r} cannot be imported{_line(error, path)}: {type(error).__name__}: {error}"
        ) from None
    theme = getattr(module, "broken", None)
    if not isinstance(theme, Theme):
        raise BreakError(f"--catalogue={str(path)!r}: expected 'broken = Theme()' in it, and breaks added to that")
    return by_name(theme.breaks)


def _line(error: Exception, path: Path) -> str:
    """Where in the file an error comes from. A syntax error has its line in its own text, and no frame in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [frame.lineno for frame in frames if frame.filename == str(path.absolute())]
    return f" (line {numbers[-1]})" if numbers else ""


def chosen(words: str) -> Break:
    """The break that a text ``FILE:NAME`` names; without FILE, one of the harness's own. Raises BreakError."""
    file, _, name = words.rpartition(":")
    found = read_source(Path(file) if file else None)
    if name not in found:
        raise BreakError(f"there is no break named {name!r}: see 'harness mutate list'")
    return found[name]

"""The overloads of aten that cases call: the table, how it is recorded, and the additions of the installed torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.text import format_count
from tests.breaks.calls import overload_recorder, uncalled

#: The table.
FILE = Path(__file__).with_name("overloads.txt")
_ROOT = Path(__file__).parents[3]

_HEADER = """\
# Overload of aten; dispatch keys with a kernel of its own; number of cases that call it; one of them, or the reason why
# none does. Written by `python -m tests.breaks overloads PATH...` with torch {}.
"""


class OverloadsError(HarnessError):
    """The table of overloads cannot be read."""


@dataclass(frozen=True, slots=True)
class Overload:
    """An overload of aten, such as ``aten::add.out``.

    `keys`: the dispatch keys for which torch registers a kernel. `cases`: how many cases call the overload. `text`: the
    id of one of them, or why none does; empty if there is no reason.
    """

    name: str
    keys: tuple[str, ...]
    cases: int
    text: str

    @property
    def missing(self) -> bool:
        """Whether no case calls the overload, and there is no reason."""
        return not self.cases and not self.text


def read_overloads(path: Path) -> Iterator[Overload]:
    """Yield the lines of a table. Raise OverloadsError if the table cannot be read or a line is invalid."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OverloadsError(f"{path}: the table of overloads cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            yield _overload(line, f"{path}:{number}")


def _overload(line: str, where: str) -> Overload:
    parts = line.split("\t")
    if len(parts) != 4 or not parts[0] or not parts[2].isdigit():
        raise OverloadsError(f"{where}: {line[:80]!r} is not 'overload, keys, number of cases, case or reason'")
    return Overload(parts[0], tuple(parts[1].split(",")), int(parts[2]), parts[3])


def write_overloads(path: Path, overloads: Iterable[Overload], torch: str) -> None:
    """Write a table. `torch`: the release whose overloads the table has."""
    lines = [
        f"{overload.name}\t{','.join(overload.keys)}\t{overload.cases}\t{overload.text}\n" for overload in overloads
    ]
    path.write_text(_HEADER.format(torch) + "".join(lines), encoding="utf-8")


def record(paths: Sequence[str], recorded: Path | None) -> None:
    """Write the table from a run of these cases, or from what such a run left in `recorded`."""
    import torch

    kept = list(read_overloads(FILE)) if FILE.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        if recorded is None:
            _run(paths, Path(folder))
        called = overload_recorder.read(recorded or Path(folder))
    write_overloads(FILE, _rows(called, kept), torch.__version__.partition("+")[0])


def _run(paths: Sequence[str], folder: Path) -> None:
    """Run the cases on the CPU. A case that fails because it is recorded counts up to its failure."""
    command = [sys.executable, "-m", "pytest", *paths, "-n", "auto", "--extended", "-p", overload_recorder.__name__]
    environment = {**os.environ, overload_recorder.VARIABLE: str(folder), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as results:
        command += ["--leak-check=off", f"--results-dir={results}/run"]
        subprocess.run(command, cwd=_ROOT, env=environment, check=False)


def _rows(called: Mapping[str, Sequence[str]], kept: Iterable[Overload]) -> list[Overload]:
    """Return the lines for the overloads that this build of torch registers, and the `kept` lines of other builds."""
    import torch

    here = registered_overloads()
    others = {each.name: each.keys for each in kept if "CUDA" in each.keys and torch.version.cuda is None}
    found = []
    for name in sorted({*here, *others}):
        keys = tuple(sorted({*here.get(name, ()), *others.get(name, ())}))
        cases = called.get(name, [])
        first = min(cases, key=lambda case: (len(case), case)) if cases else ""
        found.append(Overload(name, keys, len(cases), first or uncalled.reason(name)))
    return found


def registered_overloads(keys: Sequence[str] = ("CPU", "CUDA")) -> dict[str, tuple[str, ...]]:
    """Return the overloads of aten for which the installed torch has a kernel under one of the dispatch keys."""
    import torch

    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    kernels = {name: tuple(key for key in keys if has(name, key)) for name in sorted(names)}
    return {name: where for name, where in kernels.items() if where}


def with_installed(table: Iterable[Overload], registered: dict[str, tuple[str, ...]]) -> list[Overload]:
    """Return the table, followed by the overloads of the installed torch that it lacks."""
    rows = list(table)
    listed = {row.name for row in rows}
    return [*rows, *(Overload(name, keys, 0, "") for name, keys in registered.items() if name not in listed)]


def overloads_summary(overloads: Sequence[Overload]) -> str:
    """Return one sentence with the numbers of overloads: all, called by a case, with a reason, and without."""
    called = sum(overload.cases > 0 for overload in overloads)
    missing = sum(overload.missing for overload in overloads)
    total = format_count(len(overloads), "overload")
    return f"{total}: cases call {called}, {len(overloads) - called - missing} have a reason, {missing} have neither"


def overloads_page(overloads: Sequence[Overload]) -> str:
    """Return the table as Markdown."""
    lines = ["| overload | kernels | cases | one of them, or why there is none |", "| --- | --- | --- | --- |"]
    for overload in overloads:
        words = overload.text.replace("|", "\\|")
        text = f"`{words}`" if overload.cases else words or "**no case**"
        lines.append(f"| `{overload.name}` | {', '.join(overload.keys)} | {overload.cases} | {text} |")
    return "\n".join([*lines, "", overloads_summary(overloads)]) + "\n"

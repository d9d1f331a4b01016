"""``harness catalog --renamed``, which finds what was renamed, and ``harness renamed``, which lets files follow it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_RED
from harness.core.text import clean, counted

if TYPE_CHECKING:
    from harness.catalog.catalog import Entry
    from harness.gating.renamed import Renamed

_RECORD = Path("configs/renamed.json")
_MOST_BYTES = 64 << 20


class TextError(HarnessError):
    """A file that should follow a renaming is no text, or cannot be read."""


def show(entries: Sequence[Entry], old: Path, out: Path | None) -> None:
    """Print what was renamed between the catalogue `old` and `entries`, and add it to the file `out`.

    Exit status 1 if old cases are gone.
    """
    from harness.catalog import catalog_file
    from harness.core.atomic import write_atomically
    from harness.gating.renamed import Renamed, split
    from harness.reporting import renaming

    found = renaming.match(catalog_file.read(old), entries)
    for was, now in found.tests.items():
        same = was.partition("::")[0] == now.partition("::")[0]
        print(clean(f"{was} -> {now.partition('::')[2] if same else now}"))
    for case in found.gone:
        print(clean(f"gone: {case}"))
    for case in found.added:
        print(clean(f"new: {case}"))
    numbers = f"{len(found.gone)} old cases are gone, {len(found.added)} cases are new"
    print(f"{counted(len(found.tests), 'test')} renamed; {numbers}")
    if out is not None:
        existing = {split(entry.id)[0] for entry in entries}
        record = Renamed.read(out).followed_by(found.tests, existing)
        write_atomically(out, record.to_bytes())
        print(f"wrote {out}: {counted(len(record.tests), 'old name')}. Files follow with: harness renamed FILE...")
    if found.gone:
        raise typer.Exit(EXIT_RED)


def renamed(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Must-pass lists, waivers, scripts, texts.")],
    record: Annotated[Path, typer.Option(metavar="FILE", help="What was renamed.")] = _RECORD,
) -> None:
    """Write the new names of renamed cases into files.

    A must-pass list gets its new ids and their hash. In any other text, each old name with its file in front is
    replaced, and each old name alone (pytest -k test_old) that had one meaning.

    Exit status 1 if a pattern with wildcards matched tests by their old names and does not match them now: write such
    a pattern anew by hand. Exit status 4 if a file cannot be read or written. Files before it are already written.
    """
    from harness.gating.renamed import Renamed

    known = Renamed.read(record)
    if not known.tests:
        raise TextError(f"{str(record)!r} names no renamed case: write it with harness catalog --renamed OLD.json -o")
    doubts = sum(_follow(path, known) for path in files)
    if doubts:
        raise typer.Exit(EXIT_RED)


def _follow(path: Path, known: Renamed) -> int:
    """Write new names into a file. Returns the number of its doubtful patterns."""
    from harness.core.atomic import write_atomically
    from harness.gating import mustpass

    text = _text(path)
    if text.startswith(mustpass.HEADING):
        listed = mustpass.read(path)
        ids = [known.now(case) for case in listed.ids]
        changed = sum(old != new for old, new in zip(listed.ids, ids, strict=True))
        if changed:
            mustpass.write(path, ids, listed.description)
        print(f"{path}: {counted(changed, 'id')} of {len(ids)} renamed")
        return 0
    written = known.rewrite(text)
    for number, doubt in written.doubts:
        print(clean(f"{path}:{number}: {doubt}"))
    if written.names:
        write_atomically(path, written.text.encode())
    print(f"{path}: {counted(written.names, 'name')} renamed")
    return len(written.doubts)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TextError(f"cannot read {str(path)!r}") from error
    if len(data) > _MOST_BYTES:
        raise TextError(f"{str(path)!r} has more than {_MOST_BYTES} bytes: this is no text with names of cases")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TextError(f"{str(path)!r} is not UTF-8 at byte {error.start}: this is no text") from None

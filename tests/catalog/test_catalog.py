"""The page of suites: files, helpers, and the names that helpers offer."""

from __future__ import annotations

from pathlib import Path

from harness.catalog.catalog import CatalogEntry, suites_page

HELPER = '''"""Work for streams.

More of it."""

NOT_SHOWN = "the case shows nothing | yet"
POISON = -1
NAME = "word"


def ever(attempt):
    """Whether it ever succeeds.

    Details."""


def undocumented(): ...


def _own():
    """Not offered."""


class Relay:
    """A writer and a reader."""
'''


def test_helpers_are_listed_with_what_they_offer(tmp_path: Path) -> None:
    folder = tmp_path / "suites" / "streams"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('"""Streams."""\n')
    (folder / "test_a.py").write_text('"""Events."""\n')
    (folder / "busy.py").write_text(HELPER)
    (folder / "_torch_private.py").write_text('"""Private names."""\n\ndef reach():\n    """Not offered."""\n')
    (tmp_path / "suites" / "children.py").write_text('"""Children."""\n\ndef told():\n    """What a child told."""\n')
    file = "suites/streams/test_a.py"
    lines = suites_page([CatalogEntry(f"{file}::test_a", "streams", file, 1, "", (), (), None)], tmp_path).splitlines()
    assert lines[lines.index("| helper | what it is |") + 2 :] == [
        "| `_torch_private.py` | Private names. |",
        "| `busy.py` | Work for streams. |",
        "| `busy.NOT_SHOWN` | “the case shows nothing \\| yet” |",
        "| `busy.ever` | Whether it ever succeeds. |",
        "| `busy.Relay` | A writer and a reader. |",
        "",
        "## Helpers of several suites",
        "",
        "| helper | what it is |",
        "| --- | --- |",
        "| `children.py` | Children. |",
        "| `children.told` | What a child told. |",
    ]

"""What MkDocs builds the site from (`mkdocs.yml`): the Markdown of the tree where it stands, and pages made by code.

The site has the folders of the tree, so that one relative link serves the site and a checkout. MkDocs itself would only
read the pages below `docs/`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from generated import commands_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

PATTERNS = ("*.md", "docs/**/*.md", "ci/**/*.md", ".ci/*.md", "benchmarks/*.md", "changes/README.md")
_LINK = re.compile(r"\]\(([^)#\s:]+)")


def _suites() -> str:
    """Return the page of the suites, which takes a collection of all cases."""
    command = [sys.executable, "-m", "harness", "catalog", "--format", "markdown"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


#: The pages that repeat what a command prints. They are built if the navigation names them.
MADE: dict[str, Callable[[], str]] = {"docs/commands.md": commands_page, "docs/suites.md": _suites}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files below `docs/` by those of the tree."""
    root = Path(config.config_file_path).parent
    for file in [file for file in files if Path(file.abs_src_path or "").is_relative_to(config.docs_dir)]:
        files.remove(file)
    pages = {path for pattern in PATTERNS for path in root.glob(pattern)}
    for path in sorted(pages | {*_linked(pages, root)}):
        name = path.relative_to(root).as_posix()
        files.append(_file(config, name, abs_src_path=str(path)))
    for name in sorted({*_named(config.nav)} & {*MADE}):
        files.append(_file(config, name, content=MADE[name]()))
    return files


def _file(config: MkDocsConfig, name: str, **source: str) -> File:
    return File.generated(config, name, inclusion=InclusionLevel.INCLUDED, **source)


def _linked(pages: Iterable[Path], root: Path) -> Iterator[Path]:
    """Yield the pictures and sources that pages link."""
    for page in pages:
        for target in _LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            if path.suffix != ".md" and path.is_file() and path.is_relative_to(root):
                yield path


def _named(nav: object) -> Iterator[str]:
    """Yield the pages of a navigation: a list of pages, and of titles with a page or a list."""
    match nav:
        case str():
            yield nav
        case list():
            for entry in nav:
                yield from _named(entry)
        case dict():
            yield from _named([*nav.values()])

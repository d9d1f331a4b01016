"""Paths in the pages of docs, and the tables of docs/dev/overview.md: they match the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_layers import FLOORS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "dev").glob("*.md"))
FOR_USERS = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "measurements").glob("*.md")])
OVERVIEW = (ROOT / "docs" / "dev" / "overview.md").read_text(encoding="utf-8")
#: The maximum number of lines of a page.
LONGEST = {"overview.md": 200}
LONG = 150
_FOLDERS = (r"\.ci", "benchmarks", "changes", "ci", "configs", "docs", "harness", "suites", "tests")
#: Folders of a run directory.
OF_A_RUN = ("compiler-caches/", "files/")
#: In code: a path of the tree, without options or placeholders.
_PATH = re.compile(rf"^(?:{'|'.join(_FOLDERS)})/[^\s<*]*$")
#: In code: a file or a folder relative to the package, such as `supervisor/worker.py`.
_IN_PACKAGE = re.compile(r"^[a-z_]+(?:/[\w.]+)*(?:\.(?:py|cpp|h)|/)$")


def _code(page: Path) -> list[str]:
    """Return the first word of each inline code of a page: `module.py: Class` names `module.py`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [code.split()[0].rstrip(":") for code in re.findall(r"`([^`\n]+)`", text) if code.strip()]


def _named(page: Path) -> list[tuple[str, list[Path]]]:
    """Return each path that a page names, with its possible places: from the root, or below a folder named before."""
    found: list[tuple[str, list[Path]]] = []
    folders: list[Path] = []
    for word in _code(page):
        if _PATH.match(word):
            path = ROOT / word
            found.append((word, [path]))
            folders.append(path.parent)
        elif _IN_PACKAGE.match(word):
            found.append((word, [ROOT / "harness" / word, *(folder / word for folder in folders)]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_exists(page: Path) -> None:
    missing = [
        word
        for word, places in _named(page)
        if not word.startswith(OF_A_RUN) and not any(place.exists() for place in places)
    ]
    assert not missing, f"{page.name}: {', '.join(missing)}"


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_each_path_of_a_page_for_users_exists(page: Path) -> None:
    """This includes commands. Paths in examples are in suites/ and configs/."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"(?<![\w/.-])(?:harness|tests|benchmarks|ci|\.ci|changes)/[\w./-]*\w", text)
    assert not [path for path in found if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_name_is_in_the_module_that_the_page_names(page: Path) -> None:
    """For example: `decide` in `harness/journal/verdicts.py`, and `supervisor/hooks.py: WorkerHooks`."""
    text = page.read_text(encoding="utf-8")
    named = [(path, name) for name, path in re.findall(r"`(\w+)` in `(harness/[\w/]+\.py)`", text)]
    named += [(f"harness/{path}", name) for path, name in re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)]
    for path, name in named:
        code = (ROOT / path).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"^\s*(?:class |def )?{part}\b", code, re.MULTILINE), f"{page.name}: {name} in {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LONGEST.get(page.name, LONG)


def test_the_overview_leads_to_each_page() -> None:
    others = {page.name for page in PAGES} - {"overview.md"}
    assert set(re.findall(r"^\| \[([\w-]+\.md)\]\(\1\) ", OVERVIEW, re.MULTILINE)) == others


def test_the_page_of_measurements_is_short_and_leads_to_each_dated_file() -> None:
    page = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 120
    dated = {path.name for path in (ROOT / "docs" / "measurements").iterdir()}
    assert dated
    assert set(re.findall(r"\]\(measurements/([^)#]+)", page)) == dated
    assert all(re.match(r"20\d\d-\d\d-\d\d-[a-z0-9-]+\.md$", name) for name in dated)


def _shown(name: str) -> str:
    return f"`{name}/`" if (ROOT / "harness" / name).is_dir() else f"`{name}.py`"


def test_the_overview_has_the_floors_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (`\S+`) \| \S.* \|$", OVERVIEW, re.MULTILINE)
    floors = [(str(floor), _shown(name)) for floor, names in enumerate(FLOORS, start=1) for name in names]
    assert sorted(rows) == sorted(floor for floor in floors if floor[1] != "`__init__.py`")
    assert [int(floor) for floor, _ in rows] == sorted((int(floor) for floor, _ in rows), reverse=True)

"""The front page: the commands that CI runs, working links, and small pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / ".ci/README.md", ROOT / "ci/README.md")
)
#: The maximum size of a picture on the front page, in bytes.
LARGEST = 150_000


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_commands_of_the_readme_are_those_that_run_in_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for installed, tested in re.findall(r"^    pip install (.*) && (pytest .*)$", README, re.MULTILINE):
        assert f"pip install -q {installed}" in script
        assert tested in script
    assert "    pip install -c constraints.txt -e '.[test]' && pytest tests/ -n auto --dist worksteal\n" in README


def test_the_cpu_build_of_torch_is_the_pinned_release() -> None:
    (named,) = re.findall(r"pip install (torch==\S+) --index-url https://download.pytorch.org/whl/cpu\n", README)
    assert named in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()


def test_the_pictures_of_the_readme_are_small() -> None:
    pictures = [ROOT / name for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)]
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    assert all(0 < path.stat().st_size < LARGEST for path in pictures)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and GitLab generate them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    text = re.sub(r"^(```.*?^```|    .*?$)", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            broken.append(target)
    assert not broken, f"{page}: {', '.join(broken)}"

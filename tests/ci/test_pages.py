"""`.ci/pages.py` and `mkdocs.yml`: the site of a small tree, and a build that fails on what is dead or left out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.ci.checkout import ROOT

pytestmark = pytest.mark.acceptance

README = "# Harness\n\n[a page](docs/run.md#how-to-run), [a script](ci/job.sh)\n"
PAGES = {
    "README.md": README,
    "docs/run.md": "# Run\n\n## How to run\n\n[back](../README.md), [all commands](commands.md#harness-diff)\n",
    "ci/job.sh": "true\n",
}
NAVIGATION = [{"Start": ["README.md", "docs/run.md", "docs/commands.md"]}]


def build(folder: Path, pages: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Build the site of a tree with the project's own configuration and this navigation."""
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / ".ci").mkdir()
    for name in ("generated.py", "pages.py"):
        shutil.copy(ROOT / ".ci" / name, folder / ".ci")
    settings, separator, _ = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    assert separator
    (folder / "mkdocs.yml").write_text(f"{settings}\n{yaml.safe_dump({'nav': NAVIGATION})}")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_site_has_pages_of_the_tree_the_files_they_link_and_what_code_prints(tmp_path: Path) -> None:
    done = build(tmp_path, PAGES)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "build" / "site"
    assert 'href="docs/run/#how-to-run"' in (site / "index.html").read_text()
    assert (site / "ci" / "job.sh").exists()
    assert 'id="harness-diff"' in (site / "docs" / "commands" / "index.html").read_text()
    assert (site / "search" / "search_index.json").exists()


@pytest.mark.parametrize(
    ("page", "text", "said"),
    [
        ("README.md", README.replace("run.md", "missing.md"), "docs/missing.md"),
        ("README.md", README.replace("#how-to-run", "#how"), "does not contain an anchor '#how'"),
        ("README.md", README.replace("job.sh", "gone.sh"), "ci/gone.sh"),
        ("docs/left-out.md", "# Left out\n", "docs/left-out.md"),
    ],
    ids=["page", "anchor", "file", "not in the navigation"],
)
def test_a_dead_link_or_a_page_that_the_navigation_leaves_out_fails(
    tmp_path: Path, page: str, text: str, said: str
) -> None:
    done = build(tmp_path, PAGES | {page: text})
    assert done.returncode == 1
    assert said in done.stderr
    assert "Aborted with 1 warnings in strict mode!" in done.stdout


def test_the_navigation_of_the_project_has_each_page_once() -> None:
    """The build itself needs a minute, since it collects all cases: `.ci/run` has it."""
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"(\S+\.md)$", text, re.MULTILINE)
    tree = {path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
    assert tree <= {*named}
    assert len(named) == len({*named})

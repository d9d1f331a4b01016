"""The lists of CONTRIBUTING.md: each path exists, each test that a list relies on exists, and each command runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.backends.table import own_kinds
from harness.checks.state.section import StateSection
from harness.configuration.options import OPTIONS
from harness.journal.identity import FREE

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: Texts in code that look like paths of the tree: with a slash, without spaces, options or placeholders.
PATHS = sorted(set(re.findall(r"`((?:harness|suites|configs|tests|docs|benchmarks|changes|ci|\.ci)/[^\s`<*]*)`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_each_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_a_bare_file_of_a_list_is_in_the_folder_named_before_it() -> None:
    folder, missing = ROOT, []
    for word in re.findall(r"`([\w./]+\.(?:py|yaml))`", TEXT):
        if "/" in word:
            folder = (ROOT / word).parent
        elif not (folder / word).exists():
            missing.append(word)
    assert not missing


@pytest.mark.parametrize(
    "addition", ["case", "suite", "check of state", "meter of leaks", "backend", "format of reports"]
)
def test_each_addition_has_a_list(addition: str) -> None:
    (section,) = re.findall(rf"^### An? {addition}$(.*?)^##", TEXT, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^(\d+)\. ", section, re.MULTILINE)[:2] == ["1", "2"]


@pytest.mark.parametrize("kind", own_kinds())
def test_the_list_of_a_backend_leads_to_each_backend(kind: str) -> None:
    """The test follows the list: registration, hardware file and row of the page."""
    registered = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = (ROOT / "harness/backends/table.py").read_text(encoding="utf-8")
    known = (f'\n{kind} = "harness.' in registered, f"{kind}.BACKEND" in table, f'kind="{kind}"' in table)
    assert any(known)
    if kind in ("rocm", "xpu"):
        return  # never run: the requirements are known once such a device has been seen
    if kind != "cuda":  # its hardware files are those of the GPUs
        assert (ROOT / "configs/hardware" / f"{kind}.yaml").exists()
        assert f"| `{kind}` |" in (ROOT / "docs/profiles.md").read_text(encoding="utf-8")


def test_the_names_of_the_lists_are_those_of_the_code() -> None:
    assert "`.ci/regenerate`" in TEXT
    assert set(OPTIONS) >= FREE
    assert StateSection.__module__ == "harness.checks.state.section"


def test_the_set_up_is_the_one_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (torch,) = re.findall(r"pip install torch==\S+ --index-url \S+", readme)
    assert f"    {torch}" in TEXT
    assert "    pip install --no-compile -c constraints.txt -e '.[test]'\n" in TEXT

"""`.ci/generated.py`: its files match the code, and its pages have each option, command and capability."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.configuration.options import INI_VALUES, OPTIONS
from harness.devices.capabilities import VOCABULARY
from tests.ci.checkout import ROOT

DOCS = ROOT / "docs"
PROGRAM = ROOT / ".ci" / "generated.py"


@pytest.fixture(scope="module")
def generated() -> dict[str, Any]:
    """Return the names of the program."""
    return runpy.run_path(str(PROGRAM))


def test_each_file_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_check_names_a_file_that_differs_and_a_call_without_it_writes_the_file(
    generated: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = generated["main"]
    main.__globals__.update(ROOT=tmp_path, FILES={"page.md": lambda: "new\n"})
    page = tmp_path / "page.md"
    page.write_text("old\n")
    assert main(check=True) == 1
    assert (page.read_text(), capsys.readouterr().out.partition(" ")[0]) == ("old\n", "page.md")
    assert main(check=False) == 0
    assert page.read_text() == "new\n"
    assert main(check=True) == 0


def test_each_option_has_a_row_with_its_sources(generated: dict[str, Any]) -> None:
    page = generated["options_page"]()
    for option in OPTIONS.values():
        (row,) = re.findall(rf"^\| `{option.flag}[=`].*\n", page, re.MULTILINE)[:1]
        assert row.count(" | ") == 3, row
        assert f"| `{option.flag}` | `{option.variable}` | `{option.dest}` |" in page
    assert all(f"| `{value.name}` |" in page for value in INI_VALUES)


def test_links_of_options_lead_to_headings_that_exist(generated: dict[str, Any]) -> None:
    assert set(generated["PAGES"]) <= set(OPTIONS)
    for target in re.findall(r"\]\(([^)]+)\)", generated["options_page"]()):
        page, _, anchor = target.partition("#")
        headings = re.findall(r"^#+ (.*)", (DOCS / page).read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings}, (
            target
        )


@pytest.mark.parametrize("command", ["diff", "report show", "report merge", "cluster run", "run", "waivers lint"])
def test_each_command_has_a_section_and_a_row(generated: dict[str, Any], command: str) -> None:
    page = generated["commands_page"]()
    assert f"\n## harness {command}\n\n    harness {command}" in page
    assert f"| [`harness {command}`](#harness-{command.replace(' ', '-')}) | " in page


def test_the_page_of_capabilities_has_a_row_of_four_cells_for_each(generated: dict[str, Any]) -> None:
    rows = [line for line in generated["capabilities_page"]().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(VOCABULARY)
    for row in rows:
        assert row.count(" | ") == 3, row


@pytest.mark.parametrize("page", ["options_page", "commands_page", "capabilities_page", "steps_page"])
def test_no_row_of_a_page_is_torn(generated: dict[str, Any], page: str) -> None:
    for row in generated[page]().splitlines():
        assert not row.startswith("|") or row.endswith("|"), row

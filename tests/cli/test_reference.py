"""The page of options matches the code, and the page of commands has each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cli import reference
from harness.cli.reference import PAGES, REGENERATE, commands_page, options_page
from harness.configuration.options import INI_VALUES, OPTIONS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_options_is_up_to_date() -> None:
    assert (DOCS / "options.md").read_text() == options_page(), f"run {REGENERATE}"


def test_each_option_has_a_row_with_its_sources() -> None:
    page = options_page()
    for option in OPTIONS.values():
        (row,) = re.findall(rf"^\| `{option.flag}[=`].*\n", page, re.MULTILINE)[:1]
        assert row.count(" | ") == 3, row
        assert f"| `{option.flag}` | `{option.variable}` | `{option.dest}` |" in page
    assert all(f"| `{value.name}` |" in page for value in INI_VALUES)


def test_links_of_options_lead_to_headings_that_exist() -> None:
    assert set(PAGES) <= set(OPTIONS)
    for target in re.findall(r"\]\(([^)]+)\)", options_page()):
        page, _, anchor = target.partition("#")
        headings = re.findall(r"^#+ (.*)", (DOCS / page).read_text(), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings}, (
            target
        )


@pytest.mark.parametrize("command", ["diff", "report show", "report merge", "cluster run", "run", "waivers lint"])
def test_each_command_has_a_section_and_a_row(command: str) -> None:
    page = commands_page()
    assert f"\n## harness {command}\n\n    harness {command}" in page
    assert f"| [`harness {command}`](#harness-{command.replace(' ', '-')}) | " in page


def test_no_row_of_a_page_is_torn() -> None:
    for page in (options_page(), commands_page()):
        for row in page.splitlines():
            assert not row.startswith("|") or row.endswith("|"), row


def test_the_command_that_regenerates_names_the_module() -> None:
    assert reference.__name__ in REGENERATE

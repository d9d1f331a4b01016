"""The plugins that the benchmark tries are those that the documentation lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plugin_table import PLUGINS

DOCUMENT = Path(__file__).parents[2] / "docs" / "foreign-suites.md"


@pytest.mark.parametrize("name", PLUGINS)
def test_each_is_in_the_table(name: str) -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert any(name.partition(" ")[0] in row.split("|")[1] for row in rows)


@pytest.mark.parametrize("name", PLUGINS)
def test_its_suite_is_python(name: str) -> None:
    compile(PLUGINS[name].suite, name, "exec")

"""Each fixture suite under every isolation mode, without xdist and with two workers: the whole summary compared."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected

MODES = ("batch", "case")
SPREADS = (("-n0",), ("-n2", "--dist=loadfile"))
TOPICS = (
    ("deaths",),
    ("hangs",),
    ("leftovers",),
    ("noise",),
    ("damage",),
    ("company", "poison"),
    ("fixtures", "verdicts"),
)


@pytest.mark.parametrize("spread", SPREADS, ids=" ".join)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("topics", TOPICS, ids="+".join)
def test_whole_summary(make_project: MakeProject, topics: tuple[str, ...], mode: str, spread: tuple[str, ...]) -> None:
    project = make_project(*topics)
    result = project.run(f"--isolation={mode}", *spread)
    compare(result, expected(project, mode), alone=mode == "case")

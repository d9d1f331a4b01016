"""Levels of conformance: which cases belong to one, and the lists that are shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.gating import levels
from harness.gating.configfile import ConfigError
from harness.gating.levels import Level
from harness.gating.mustpass import MustPassError

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def a_level(**changed: Any) -> Level:
    return Level(**{"description": "what it shows", "cases": ("suites/streams/*",), **changed})


@pytest.mark.parametrize(
    ("case", "requires", "belongs"),
    [
        ("suites/streams/test_a.py::test_one", [{"accelerator": True}], True),
        ("suites/streams/test_a.py::test_one", [{"accelerator": True, "devices": 2}], True),
        ("suites/streams/test_a.py::test_one", [{"accelerator_graphs": True}], True),
        ("suites/streams/test_a.py::test_one", [], False),
        ("suites/streams/test_a.py::test_one", [{"device": "cuda"}], False),
        ("suites/streams/test_a.py::test_one", [{"accelerator": True}, {"any": [{"bf16": True}]}], False),
        ("suites/streams/test_b.py::test_left_out", [{"accelerator": True}], False),
        ("suites/amp/test_a.py::test_one", [{"accelerator": True}], False),
    ],
)
def test_what_belongs_to_a_level(case: str, requires: list[dict[str, Any]], belongs: bool) -> None:
    assert a_level(exclude=("suites/streams/test_b.py::*",)).has(case, requires) is belongs


def test_a_level_may_have_cases_of_any_device() -> None:
    level = a_level(marked=False)
    assert level.has("suites/streams/test_a.py::test_one", [])
    assert not level.has("suites/streams/test_a.py::test_one", [{"device": "cuda"}])


def test_the_hash_follows_the_definition() -> None:
    assert a_level().hash == a_level().hash
    assert a_level().hash != a_level(may_lack=("devices",)).hash


def test_an_unknown_level_and_a_missing_list(tmp_path: Path) -> None:
    folder = tmp_path / levels.FOLDER
    folder.mkdir()
    (folder / "core.yaml").write_text("description: x\ncases: ['suites/a/*']\n")
    with pytest.raises(ConfigError, match="there is no level 'cor': expected one of core"):
        levels.load_levels(tmp_path, ["cor"])
    with pytest.raises(MustPassError, match=r"core\.txt"):
        levels.load_levels(tmp_path)
    (folder / "core.yaml").write_text("description: x\ncases: ['suites/a/*']\nmay_lack: [memroy]\n")
    with pytest.raises(ConfigError, match="'memroy' is not a capability"):
        levels.load_levels(tmp_path)


def test_levels_are_in_the_order_of_their_names() -> None:
    """The order of the request does not matter: the run's statement is proven in this order."""
    found = levels.load_levels(CONFIGS, ["streams", "core", "streams"])
    assert [each.name for each in found] == ["core", "streams"]


@pytest.mark.acceptance
def test_the_shipped_lists_are_up_to_date(cases: list[dict[str, Any]]) -> None:
    entries = {each["id"]: each["requires"] for each in cases if not each["extended"]}
    for each in levels.load_levels(CONFIGS):
        wanted = sorted(case for case, requires in entries.items() if each.level.has(case, requires))
        assert list(each.listed.ids) == wanted, f"{each.name}: run harness conformance --update-lists"

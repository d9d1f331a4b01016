"""The values that must be equal in runs that are merged."""

from __future__ import annotations

from typing import Any

import pytest

from harness.devices.device import CPU, Inventory
from harness.journal import identity
from harness.journal.events import RunStarted
from tests.reporting import build


def facts(**changes: Any) -> dict[str, str]:
    (run,) = build.events(build.run(**changes))
    assert isinstance(run, RunStarted)
    return identity.identity_facts(run)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, []),
        ({"run_id": "x", "host": "y", "pid": 3, "argv": ["pytest", "-n4"], "t": 1.0}, []),
        ({"settings": {"grace": 3.0, "progress": 1.0, "health": False, "slots": 4, "junit_flavour": "gitlab"}}, []),
        ({"settings": {"until_fail": False, "under": None}}, []),
        ({"seed": 8}, ["--seed was '7' and is '8'"]),
        ({"settings": {"timeout_multiplier": 2.0}}, ["--timeout-multiplier was not set and is '2.0'"]),
        (
            {"isolation": "case", "profile": "p"},
            ["--isolation was 'batch' and is 'case'", "--profile was not set and is 'p'"],
        ),
        (
            {"identity": {"torch": "2", "suite files": f"sha256:{'a' * 64}"}},
            ["torch", "suite files was not set and is sha256:aaaaaaaaaaaa"],
        ),
    ],
)
def test_differences(changes: dict[str, Any], texts: list[str]) -> None:
    found = [each.text for each in identity.differences(facts(), facts(**changes))]
    assert [text[: len(start)] for text, start in zip(found, texts, strict=True)] == texts


def test_the_identity_of_a_run_on_the_processor() -> None:
    files = identity.files_identity(suites="sha256:0", waivers=[], lists=[])
    first = identity.run_identity(Inventory((CPU,)), files)
    assert (first["driver"], first["waivers"], first["suite files"]) == ("none", "none", "sha256:0")
    lists = [("core", f"sha256:{'a' * 64}")]
    others = identity.files_identity(suites="sha256:0", waivers=[{"case": "*"}], lists=lists)
    waived = identity.run_identity(Inventory((CPU,), driver="550.1"), others)
    assert [each.name for each in identity.differences(first, waived)] == ["waivers", "must-pass lists", "driver"]


def test_a_commit_is_shown_by_its_first_digits() -> None:
    found = identity.FactDifference("commit", "8e" * 20, "")
    assert found.text == "commit was 8e8e8e8e8e8e and is not set"

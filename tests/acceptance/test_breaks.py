"""`python -m tests.breaks run` as a whole: breaks of torch by hand, and faults of the software device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from harness.journal import reader
from harness.journal.events import Finish
from harness.sim.softdevice import build
from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import PATIENCE, Project
from tests.breaks.table import RECORD
from tests.cli.commands import ROOT

_KEPT = ("HARNESS_CACHE_DIR",)  # the built software device


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    """Build the software device now: a build within a run may exceed the limit of these tests."""
    build.build_softdevice()


def breaks(project: Project, *arguments: str, results: str = "out", **variables: str) -> tuple[int, str]:
    """Run breaks in a project. Return the exit status and the output."""
    kept = {n: v for n, v in os.environ.items() if n in _KEPT or not n.startswith(("PYTEST_", "HARNESS_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.breaks", "run", "--case-timeout=60", f"--results-dir={results}", *arguments],
        cwd=project.folder,
        env={**kept, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout


CASES = '''
import torch

def test_a_product_is_right():
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]

def test_a_product_is_a_product():
    """Blind: compared with itself."""
    a = torch.ones(2, 2)
    assert torch.equal(a @ a, a @ a)
'''

BREAKS = """
from tests.breaks.breaks import Theme, replace_kernel

broken = Theme()

def product():
    import torch
    return (torch.ones(2, 2) @ torch.ones(2, 2)).tolist()

def negative():
    import torch
    return torch.ones(2).neg().tolist()

@broken("A product is one too large.", "suites/products", shows=product)
def product_is_off():
    replace_kernel("mm", lambda kernel, a, b: kernel(a, b) + 1)

@broken("A negative number is positive.", "suites/products", shows=negative)
def neg_does_nothing():
    replace_kernel("neg", lambda kernel, x: x.clone())

@broken("Nothing is broken.", "suites/products", shows=product)
def nothing():
    pass
"""


@pytest.mark.nightly
def test_breaks_are_noticed_missed_and_refused(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/products/test_products.py", CASES)
    project.write("breaks.py", BREAKS)
    status, said = breaks(project, "--catalogue=breaks.py")
    assert status == 1, said
    values = json.loads((project.folder / "out" / RECORD).read_text())
    right, blind = (f"suites/products/test_products.py::test_a_product_is_{word}" for word in ("right", "a_product"))
    rows = {row["name"]: row for row in values["breaks"]}
    assert rows["product_is_off"]["noticed_by"] == {right: "failed"}
    assert rows["neg_does_nothing"]["noticed_by"] == {}
    assert rows["neg_does_nothing"]["ran"] == 2
    assert "shows nothing" in rows["nothing"]["unusable"]
    assert values["missed"] == ["neg_does_nothing"]
    assert values["noticed_alone"] == {"product_is_off": right}
    assert values["noticed_nothing"] == [blind]
    assert "1 of 2 breaks noticed (50%)" in said
    assert (project.folder / "out" / "clean-cpu" / "journal.ndjson").exists()


_EVENTS = """
import pytest
import torch

@pytest.mark.requires(accelerator=True)
def test_an_event_waits_for_its_stream(device):
    stream = torch.Stream(device)
    torch.soft.sleep(300, stream)
    event = stream.record_event()
    assert not event.query()
    stream.synchronize()
    assert event.query()

@pytest.mark.requires(accelerator=True)
def test_a_sum(device):
    assert torch.ones(8, device=device).sum().item() == 8
"""


@pytest.mark.nightly
def test_faults_are_noticed_and_missed(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/events/test_events.py", _EVENTS)
    status, said = breaks(project, "--faults=soft", "--only=event_early", "--only=peak_not_reset")
    assert status == 1, said
    assert "soft without a break: 2 passed, 0 red" in said
    assert "event_early     soft             1  test_events.py::test_an_event_waits_for_its_stream (failed)" in said
    assert "1 of 2 breaks noticed (50%)\nmissed: peak_not_reset\n" in said
    record = json.loads((project.folder / "out" / RECORD).read_text())
    assert record["breaks"][0]["struck"] >= 1
    assert (project.folder / "out" / "event_early" / "journal.ndjson").exists()
    first = ("--first", "--only=event_early", "--suites=suites/events", "--", "-n0", "-k", "event")
    status, said = breaks(project, "--faults=soft", *first, results="again")
    assert status == 0, said
    assert "1 of 1 break noticed" in said


_OTHERS = """
import os
from pathlib import Path

import pytest

@pytest.mark.requires(accelerator=True)
def test_that_is_red_by_chance(device):
    times = Path(os.environ["TIMES"])
    with times.open("a") as file:
        file.write(".")
    assert len(times.read_text()) != 2

@pytest.mark.requires(accelerator=True)
def test_that_notices_the_fault_elsewhere(device):
    assert "SOFT_INJECT" not in os.environ
"""


@pytest.mark.nightly
def test_no_case_counts_that_is_red_by_chance(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/others/test_others.py", _OTHERS)
    times = str(project.folder / "times")
    _, said = breaks(project, "--faults=soft", "--only=event_early", "--suites=suites/others", TIMES=times)
    assert "soft without a break: 2 passed, 0 red" in said
    assert "event_early  soft             1  test_others.py::test_that_notices_the_fault_elsewhere (failed)" in said
    line = "not counted for event_early: 1 case in which it did not occur, green alone: suites/others/test_others.py"
    assert f"{line}::test_that_is_red_by_chance\n" in said
    alone = reader.read_journal(project.folder / "out" / "event_early-alone" / "journal.ndjson")
    assert {event.case for event in alone.events if isinstance(event, Finish)} == {
        f"suites/others/test_others.py::test_that_{name}"
        for name in ("is_red_by_chance", "notices_the_fault_elsewhere")
    }


def test_a_call_that_cannot_be(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/plain/test_plain.py", "def test_plain():\n    pass\n")
    assert breaks(project, "--faults=soft", "--only=event_erly")[1].endswith("did you mean 'event_early'?\n")
    status, said = breaks(project, "--faults=soft", "--only=slow")
    assert (status, "no suite in suites has cases that require an accelerator" in said) == (4, True), said

"""`harness mutate` as a user runs it: a break that a case detects, one that none does, and one without effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.acceptance.conftest import MakeProject

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
from harness.tools.mutation.breaks import Theme, replace_kernel

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
def test_breaks_are_caught_missed_and_refused(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/products/test_products.py", CASES)
    project.write("breaks.py", BREAKS)
    command = [sys.executable, "-m", "harness.cli", "mutate", "run", "--catalogue=breaks.py", "--json=table.json"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HARNESS_"))}
    done = subprocess.run(
        [*command, "--results-dir=mutated"],
        cwd=project.folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    values = json.loads((project.folder / "table.json").read_text())
    right, blind = (f"suites/products/test_products.py::test_a_product_is_{word}" for word in ("right", "a_product"))
    rows = {row["name"]: row for row in values["breaks"]}
    assert rows["product_is_off"]["caught_by"] == {right: "failed"}
    assert rows["neg_does_nothing"]["caught_by"] == {}
    assert rows["neg_does_nothing"]["ran"] == 2
    assert "shows nothing" in rows["nothing"]["unusable"]
    assert values["missed"] == ["neg_does_nothing"]
    assert values["caught_alone"] == {"product_is_off": right}
    assert values["caught_nothing"] == [blind]
    assert "1 of 2 breaks caught (50%)" in done.stdout
    assert (project.folder / "mutated" / "clean-cpu" / "journal.ndjson").exists()

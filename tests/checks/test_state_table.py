"""What a case may leave behind and what it may not, each done for real.

The table is run in children of one process that has imported torch and nothing more of it, so that every row starts
from the same state; then again, row after row, in one process and in an order drawn by seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks import state_rows_innocent, state_rows_process, state_rows_torch
from tests.checks.state_table import CONTAMINATIONS, ONCE, scenes, wrong

ROOT = Path(__file__).parents[2]


def in_children() -> Iterator[tuple[str, list[str]]]:
    """Every row in a child process of its own."""
    from harness.checks.state.guard import StateGuard

    guard = StateGuard()
    guard.capture()
    for name, scene in scenes():
        read_end, write_end = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                scene()
                said = [problem.text for problem in guard.compare()]
            except BaseException as error:  # noqa: BLE001 - told to the parent
                said = [f"raised {error!r}"]
            os.write(write_end, json.dumps(said).encode())
            os._exit(0)
        os.close(write_end)
        with open(read_end, "rb") as told:
            yield name, json.loads(told.read() or b'["died"]')
        os.waitpid(pid, 0)


def in_one_process(seed: int) -> Iterator[tuple[str, list[str]]]:
    """Every quick row in this process, in an order drawn by `seed`; what is left behind is put back after each."""
    from harness.checks.state.guard import StateGuard

    guard = StateGuard()
    guard.capture()
    chosen = [(name, scene) for name, scene in scenes() if name not in ONCE]
    random.Random(seed).shuffle(chosen)
    for name, scene in chosen:
        scene()
        said = [problem.text for problem in guard.compare()]
        yield name, said + guard.restore()


def set_environment() -> None:
    """What some rows change or take away."""
    os.environ["STATE_KEPT"] = "before"
    os.environ["STATE_GONE"] = "before"


def main(how: str) -> None:
    """Run the table in this process, which pytest has nothing to do with; one line of JSON a row."""
    import colorsys  # noqa: F401 - a module that nobody needs

    import torch

    torch.set_num_threads(2)
    os.umask(0o022)
    sys.setrecursionlimit(1000)
    set_environment()
    for module in (state_rows_torch, state_rows_process, state_rows_innocent):
        module.enter_rows()
    for name, said in in_children() if how == "children" else in_one_process(int(how)):
        expected = CONTAMINATIONS[name][1] if name in CONTAMINATIONS else []
        print("ROW", json.dumps([name, said, expected]), flush=True)


def run_table(how: str) -> dict[str, tuple[list[str], list[str]]]:
    code = f"from tests.checks import test_state_table as table; table.main({how!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return {name: (said, expected) for name, said, expected in lines}


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[str], list[str]]]:
    return run_table("children")


def test_each_contamination_is_told_with_new_and_old_value(alone: dict[str, tuple[list[str], list[str]]]) -> None:
    contaminations = {name: result for name, result in alone.items() if result[1]}
    assert len(contaminations) >= 60
    assert wrong(contaminations) == {}


def test_no_innocent_is_accused(alone: dict[str, tuple[list[str], list[str]]]) -> None:
    innocents = {name: result for name, result in alone.items() if not result[1]}
    assert len(innocents) >= 28
    assert wrong(innocents) == {}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_verdicts_are_the_same_in_any_order_once_state_is_put_back(seed: int) -> None:
    results = run_table(str(seed))
    assert len(results) >= 60
    assert wrong(results) == {}

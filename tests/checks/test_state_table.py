"""Changes that a case must restore, and harmless ones. Each row makes a real change.

The table runs in children of one process that has only imported torch, so each row starts from the same state. Then it
runs again, row after row, in one process and in an order drawn by seed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator

import pytest

from tests.checks import state_rows_harmless, state_rows_interpreter, state_rows_process, state_rows_torch
from tests.checks.state_table import CONTAMINATIONS, ONCE, actions, wrong
from tests.preloaded import run_script

pytestmark = [pytest.mark.acceptance, pytest.mark.long]


def in_children() -> Iterator[tuple[str, list[str]]]:
    """Run each row in its own child process."""
    import torch

    from harness.checks.state.guard import StateGuard

    guard = StateGuard()
    guard.capture()
    for name, action in actions():
        read_end, write_end = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                # The parent has set it. Otherwise threads of autograd may renew torch's pool at the same time, and
                # crash the process (https://github.com/pytorch/pytorch/issues/178535).
                torch.set_num_threads(torch.get_num_threads())
                action()
                messages = [problem.text for problem in guard.compare()]
            except BaseException as error:  # noqa: BLE001 - sent to the parent
                messages = [f"raised {error!r}"]
            os.write(write_end, json.dumps(messages).encode())
            os._exit(0)
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            answer = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        yield name, json.loads(answer) if answer else [f"died with status {status}"]


def in_one_process(seed: int) -> Iterator[tuple[str, list[str]]]:
    """Run each quick row in this process, in an order drawn by `seed`; restore the changes after each."""
    from harness.checks.state.guard import StateGuard

    guard = StateGuard()
    guard.capture()
    chosen = [(name, action) for name, action in actions() if name not in ONCE]
    random.Random(seed).shuffle(chosen)
    for name, action in chosen:
        action()
        messages = [problem.text for problem in guard.compare()]
        yield name, messages + guard.restore()


def set_environment() -> None:
    """Set variables that some rows change or remove."""
    os.environ["STATE_KEPT"] = "before"
    os.environ["STATE_GONE"] = "before"


def main(how: str) -> None:
    """Run the table in this process, without pytest. Print one line of JSON per row."""
    import colorsys  # noqa: F401 - a module that no other code needs

    import torch

    torch.set_num_threads(2)
    os.umask(0o022)
    sys.setrecursionlimit(1000)
    set_environment()
    for module in (state_rows_torch, state_rows_process, state_rows_interpreter, state_rows_harmless):
        module.enter_rows()
    for name, messages in in_children() if how == "children" else in_one_process(int(how)):
        expected = CONTAMINATIONS[name][1] if name in CONTAMINATIONS else []
        print("ROW", json.dumps([name, messages, expected]), flush=True)


def run_table(how: str) -> dict[str, tuple[list[str], list[str]]]:
    code = f"from tests.checks import test_state_table as table; table.main({how!r})"
    done = run_script(code, timeout=600.0)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return {name: (messages, expected) for name, messages, expected in lines}


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[str], list[str]]]:
    return run_table("children")


@pytest.mark.nightly
def test_each_contamination_is_reported_with_new_and_old_value(alone: dict[str, tuple[list[str], list[str]]]) -> None:
    contaminations = {name: result for name, result in alone.items() if result[1]}
    assert len(contaminations) >= 60
    assert wrong(contaminations) == {}


@pytest.mark.nightly
def test_no_harmless_change_is_reported(alone: dict[str, tuple[list[str], list[str]]]) -> None:
    harmless = {name: result for name, result in alone.items() if not result[1]}
    assert len(harmless) >= 28
    assert wrong(harmless) == {}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_verdicts_are_the_same_in_any_order_once_state_is_restored(seed: int) -> None:
    results = run_table(str(seed))
    assert len(results) >= 60
    assert wrong(results) == {}

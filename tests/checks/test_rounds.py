"""Rounds of cases in their own process: the growth of each case, and what torch.jit keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.checks.growth import COUNTED_ROUNDS, WARMUP_ROUNDS, CountedRounds, leaks_of_case, leaks_together
from tests.preloaded import run_script

pytestmark = pytest.mark.acceptance

_PROGRAM = """
import importlib, json, sys, tempfile
from harness.checks.origins import GrowthRounds
from harness.checks.keeping import Keeps

tempfile.tempdir = sys.argv[1]
history = sys.argv[2].split()
sys.path.insert(0, sys.argv[3])
cases = [value for name, value in vars(importlib.import_module("cases")).items() if name.startswith("case_")]
rounds, found, origins = GrowthRounds(), [], {}
for number in range(WARMUP + COUNTED):
    rounds.begin(counts=number >= WARMUP, history=history)
    found.append([])
    for case in cases:
        rounds.before_case()
        case()
        found[-1].append(rounds.after_case(keeps=Keeps("", {}) if hasattr(case, "keeps") else None))
print(json.dumps({"rounds": found, "origins": {name: list(lines) for name, lines in rounds.origins().items()}}))
"""


def run(folder: Path, source: str, *history: str) -> tuple[CountedRounds, dict[str, list[str]]]:
    """Return the rounds of the functions ``case_…`` of a program, and the origins of their growth."""
    path = folder / "cases.py"
    path.write_text(source)
    (folder / "tmp").mkdir()
    program = _PROGRAM.replace("WARMUP", str(WARMUP_ROUNDS)).replace("COUNTED", str(COUNTED_ROUNDS))
    ran = run_script(program, str(folder / "tmp"), " ".join(history), str(folder))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert found["rounds"][:WARMUP_ROUNDS] == [[{}] * len(found["rounds"][0])] * WARMUP_ROUNDS
    return found["rounds"][WARMUP_ROUNDS:], found["origins"]


def test_growth_is_reported_for_the_case_that_causes_it(tmp_path: Path) -> None:
    rounds, origins = run(
        tmp_path,
        """
KEPT, CYCLES = [], []

def case_keeps():
    KEPT.append(bytearray(100 << 10))

def case_leaves_garbage():
    cycle = [bytearray(300 << 10)]
    cycle.append(cycle)

def case_does_nothing():
    pass
""",
    )
    assert len(rounds) == COUNTED_ROUNDS
    assert [[leak.meter for leak in leaks_of_case(rounds, position, range(3))] for position in range(3)] == [
        ["heap_bytes"],
        [],
        [],
    ]
    assert 100 << 10 <= leaks_together(rounds, range(3))[0].amount < 101 << 10
    assert origins == {}


def test_origins_are_reported_on_demand(tmp_path: Path) -> None:
    source = "KEPT = []\n\ndef case_keeps():\n    KEPT.append(bytearray(100 << 10))\n"
    rounds, origins = run(tmp_path, source, "heap_bytes")
    assert leaks_of_case(rounds, 0, [0])
    assert any("cases.py:4" in line for line in origins["heap_bytes"]), origins


_TRACE = """
import warnings
import torch

warnings.simplefilter("ignore")

def case_traces():
    torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), torch.ones(2, 3))

def case_scripts():
    torch.jit.script(lambda_of())

def lambda_of():
    def double(x):
        # type: (torch.Tensor) -> torch.Tensor
        return x * 2
    return double
"""


def test_what_torch_jit_keeps_is_no_leak(tmp_path: Path) -> None:
    rounds, _ = run(tmp_path, _TRACE)
    assert [leaks_of_case(rounds, position, range(2)) for position in range(2)] == [[], []]


@pytest.mark.parametrize("size", [300, 1000])
def test_a_leak_of_a_traced_case_is_found(tmp_path: Path, size: int) -> None:
    source = _TRACE + f"\nKEPT = []\n\ndef case_leaks():\n    case_traces()\n    KEPT.append(bytearray({size} << 10))\n"
    rounds, _ = run(tmp_path, source)
    assert [leak.meter for leak in leaks_of_case(rounds, 2, range(3))] == ["heap_bytes"]


def test_a_case_that_keeps_and_empties_a_cache_does_not_make_the_next_one_leak(tmp_path: Path) -> None:
    """The next case fills the cache again in each round, which is no leak."""
    rounds, _ = run(
        tmp_path,
        """
CACHE = []

def case_fills_the_cache():
    if not CACHE:
        CACHE.append(bytearray(100 << 10))

def case_empties_it():
    CACHE.clear()

case_empties_it.keeps = True
""",
    )
    least = 99 << 10  # with torch imported, malloc counts up to 800 bytes less (measured)
    assert all(growths[0].get("heap_bytes", 0) >= least for growths in rounds)
    assert all(growths[1].get("heap_bytes", 0) <= -least for growths in rounds)
    assert leaks_of_case(rounds, 0, range(2)) == leaks_together(rounds, range(2)) == []


_PINNING = """
import mmap
KEPT, MAPPED = [], []

def case_pins_arenas():
    objects = [[number] for number in range(500_000)]
    KEPT.extend(objects[20_000::160_000])

def case_maps():
    MAPPED.append(mmap.mmap(-1, 8 << 20))
"""


def test_arenas_of_python_that_have_room_are_no_growth(tmp_path: Path) -> None:
    """A case with many small objects, three of which stay after each run, pins arenas that are otherwise empty."""
    rounds, _ = run(tmp_path, _PINNING)
    assert [leak.meter for leak in leaks_of_case(rounds, 1, range(2))] == ["mapped_bytes"]
    assert "mapped_bytes" not in [leak.meter for leak in leaks_of_case(rounds, 0, range(2))]

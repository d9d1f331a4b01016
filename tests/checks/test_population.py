"""Readings of a process with many objects: they are frozen, so that the next readings need not look at them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.checks.meters.table import Meters
from tests.checks.test_meters import examine

_ROOT = Path(__file__).parents[2]

_HEAD = """
import gc, json, sys, weakref
import torch
from harness.checks.meters.table import Meters, growths

gc.collect()
gc.freeze()
meters = Meters(sys.argv[1])
before = meters.read()


class Node:
    def __init__(self):
        self.itself = self
        self.values = torch.zeros(25)

"""


def run(code: str, tier: str) -> Any:
    command = [sys.executable, "-c", _HEAD + code, tier]
    ran = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("tier", ["fast", "full"])
def test_many_objects_are_looked_at_once(tier: str) -> None:
    """What is new beside them is seen all the same, and what they hold stays counted."""
    code = """if True:
        many, node = [[] for _ in range(2 * Meters.POPULATION)], Node()
        first = meters.read()
        left = len(gc.get_objects())
        kept = [torch.zeros(50)]
        second = meters.read()
        found = [
            {name: growth for name, growth in growths(*pair).items() if name.startswith("tensor")}
            for pair in ((before, first), (first, second))
        ]
        print(json.dumps([left, found]))
    """
    left, found = run(code, tier)
    assert left < Meters.POPULATION / 2
    assert found == [{"tensors": 1, "tensor_bytes": 100}, {"tensors": 1, "tensor_bytes": 200}]


@pytest.mark.parametrize("tier", ["fast", "full"])
def test_garbage_among_them_is_collected_before_more_are_frozen(tier: str) -> None:
    code = """if True:
        node = Node()
        gone = weakref.ref(node)
        many = [[] for _ in range(2 * Meters.POPULATION)]
        meters.read()
        del node
        gc.collect()
        said = [gone() is None]
        many += [[] for _ in range(2 * Meters.POPULATION)]
        meters.read()
        said.append(gone() is None)
        said.append(len(gc.get_objects()) < Meters.POPULATION)
        many += [[] for _ in range(Meters.POPULATION)]  # ever more rarely
        meters.read()
        said.append(len(gc.get_objects()) < Meters.POPULATION)
        print(json.dumps(said))
    """
    assert run(code, tier) == [False, True, True, False]


def test_nothing_is_frozen_where_others_look_for_what_is_new() -> None:
    code = """if True:
        meters, count = Meters("full", freeze=False), gc.get_freeze_count()
        many = [[] for _ in range(2 * Meters.POPULATION)]
        meters.read()
        print(json.dumps(gc.get_freeze_count() - count))
    """
    assert run(code, "full") == 0


_CASES = """
import torch

CACHE = {}
KEPT = []


class Node:
    def __init__(self):
        self.itself = self


def test_large_cycles_that_are_overwritten():
    CACHE["last"] = [Node() for _ in range(15_000)]


def test_a_leak_beside_many_objects():
    CACHE.setdefault("made once", [[] for _ in range(50_000)])
    KEPT.append(torch.zeros(10))
"""


def test_what_is_frozen_makes_nobody_leak_and_hides_no_leak(tmp_path: Path) -> None:
    found = examine(tmp_path, _CASES)
    assert found["test_large_cycles_that_are_overwritten"].leaks == {}
    leaks = found["test_a_leak_beside_many_objects"].leaks
    assert list(leaks) == ["tensors", "tensor_bytes"]
    assert "1 more after each of 4 repetitions" in leaks["tensors"]

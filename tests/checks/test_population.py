"""Readings of a process with many objects, which are frozen so that later readings do not examine them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.checks.meters import MeterReader
from tests.checks.examined import examine
from tests.preloaded import run_script

pytestmark = pytest.mark.acceptance

_HEAD = """
import gc, json, sys, weakref
import torch
from harness.checks.meters import MeterReader, meter_growths

gc.collect()
gc.freeze()
meters = MeterReader(sys.argv[1])
before = meters.read()


class Node:
    def __init__(self):
        self.itself = self
        self.values = torch.zeros(25)

"""


def run(code: str, tier: str) -> Any:
    ran = run_script(_HEAD + code, tier)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("tier", ["fast", "full"])
def test_many_objects_are_examined_once(tier: str) -> None:
    """New objects are still found, and the objects that frozen ones refer to are still counted."""
    code = """if True:
        many, node = [[] for _ in range(2 * MeterReader.FREEZE_ABOVE)], Node()
        first = meters.read()
        left = len(gc.get_objects())
        kept = [torch.zeros(50)]
        second = meters.read()
        found = [
            {name: growth for name, growth in meter_growths(*pair).items() if name.startswith("tensor")}
            for pair in ((before, first), (first, second))
        ]
        print(json.dumps([left, found]))
    """
    left, found = run(code, tier)
    assert left < MeterReader.FREEZE_ABOVE / 2
    assert found == [{"tensors": 1, "tensor_bytes": 100}, {"tensors": 1, "tensor_bytes": 200}]


_GARBAGE = """if True:
    node = Node()
    gone = weakref.ref(node)
    many = [[] for _ in range(2 * MeterReader.FREEZE_ABOVE)]
    meters.read()
    del node
    seen = []
    for number in NUMBERS:
        gc.collect()
        seen.append(gone() is None)
        many += [[] for _ in range(number)]
        meters.read()
        seen.append(len(gc.get_objects()) < MeterReader.FREEZE_ABOVE)
    print(json.dumps([*seen, gone() is None]))
"""


def test_garbage_among_them_is_collected_once_many_are_frozen() -> None:
    code = _GARBAGE.replace("NUMBERS", "(2 * MeterReader.FREEZE_ABOVE, MeterReader.EXAMINE_ALL_AFTER)")
    assert run(code, "fast") == [False, True, False, True, True]


def test_garbage_among_them_is_collected_again_once_their_number_has_doubled() -> None:
    code = """if True:
        many, seen = [], []
        for share in (1.1, 0.9, 0.2):
            node = Node()
            gone = weakref.ref(node)
            frozen = max(MeterReader.EXAMINE_ALL_AFTER, gc.get_freeze_count())
            many += [[] for _ in range(2 * MeterReader.FREEZE_ABOVE)]
            meters.read()
            del node
            many += [[] for _ in range(int(share * frozen))]
            meters.read()
            seen.append(gone() is None)
        print(json.dumps(seen))
    """
    assert run(code, "fast") == [True, False, True]


def test_garbage_among_them_is_collected_before_more_are_frozen_where_leaks_are_decided() -> None:
    """Such readings freeze less and less often."""
    code = _GARBAGE.replace("NUMBERS", "(2 * MeterReader.FREEZE_ABOVE, MeterReader.FREEZE_ABOVE)")
    assert run(code, "full") == [False, True, True, False, True]


@pytest.mark.parametrize("tier", ["fast", "full"])
def test_all_garbage_is_collected_when_asked_for(tier: str) -> None:
    code = """if True:
        node = Node()
        gone = weakref.ref(node)
        many = [[] for _ in range(2 * MeterReader.FREEZE_ABOVE)]
        meters.read()
        del node
        meters.collect_all()
        print(json.dumps([gone() is None, len(gc.get_objects()) < MeterReader.FREEZE_ABOVE]))
    """
    assert run(code, tier) == [True, True]


@pytest.mark.parametrize(("size", "examined"), [(100, False), (20_000, True)], ids=["unsuspicious", "suspicious"])
def test_a_batch_is_examined_for_garbage_among_them_if_its_growth_is_suspicious(size: int, examined: bool) -> None:
    """Memory that only such garbage holds is then no growth of the batch."""
    code = f"""if True:
        from harness.checks.inspector import StateInspector
        from harness.checks.state.guard import StateGuard
        read = MeterReader.read
        def read_without_mappings(self):
            # In some processes Python's allocator needs new arenas in the first rounds.
            reading = read(self)
            reading.pop("mapped_bytes")
            return reading
        MeterReader.read = read_without_mappings
        inspector = StateInspector(StateGuard(), "fast")
        inspector.begin()
        node = Node()
        node.many, node.blocks = [[] for _ in range(2 * MeterReader.FREEZE_ABOVE)], []
        gone = weakref.ref(node)
        for number in range(30):
            inspector.end(str(number))
            node.blocks.append(bytearray({size}))
        del node
        inspector.collect()
        print(json.dumps([gone() is None, inspector.finish()[2]]))
    """
    assert run(code, "fast") == [examined, {}]


def test_nothing_is_frozen_where_other_code_looks_for_new_objects() -> None:
    code = """if True:
        meters, count = MeterReader("full", freeze=False), gc.get_freeze_count()
        many = [[] for _ in range(2 * MeterReader.FREEZE_ABOVE)]
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


def test_frozen_objects_are_no_leak_and_hide_none(tmp_path: Path) -> None:
    found = examine(tmp_path, _CASES)
    assert found["test_large_cycles_that_are_overwritten"].leaks == {}
    leaks = found["test_a_leak_beside_many_objects"].leaks
    assert list(leaks) == ["tensors", "tensor_bytes"]
    assert "1 more torch tensor after each of 4 repetitions" in leaks["tensors"]

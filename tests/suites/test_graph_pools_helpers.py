"""The graph pools suite's helpers: differences between states of pools, and the effect of a name missing in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from suites.graph_pools import _torch_private as private
from suites.graph_pools.pools import changes

Segments = list[dict[str, Any]]

BEFORE: Segments = [
    {
        "device": 0,
        "address": 4096 * number,
        "total_size": 1024,
        "allocated_size": 512,
        "active_size": 512,
        "segment_type": "small",
        "segment_pool_id": (0, 3),
        "blocks": [
            {"size": 512, "state": "active_allocated", "requested_size": 9},
            {"size": 512, "state": "inactive", "requested_size": 0},
        ],
    }
    for number in (1, 2)
]


def changed(**fields: Any) -> Segments:
    after = copy.deepcopy(BEFORE)
    after[1].update(fields)
    return after


@pytest.mark.parametrize(
    ("after", "reported"),
    [
        (BEFORE, []),
        (list(reversed(BEFORE)), []),
        ([*BEFORE, dict(BEFORE[0], address=9)], []),
        (BEFORE[:1], ["gone"]),
        ([], ["gone", "gone"]),
        (changed(total_size=2048), ["total_size was 1024, is 2048"]),
        (changed(segment_pool_id=(0, 4)), ["segment_pool_id"]),
        (changed(allocated_size=0, active_size=0), ["allocated_size", "active_size"]),
        (changed(blocks=BEFORE[0]["blocks"][::-1]), ["blocks were"]),
        (changed(blocks=BEFORE[0]["blocks"][:1]), ["blocks were"]),
        (changed(blocks=[dict(each, requested_size=1) for each in BEFORE[0]["blocks"]]), []),
    ],
)
def test_changes(after: Segments, reported: list[str]) -> None:
    found = changes(BEFORE, after)

    assert len(found) == len(reported)
    assert all(word in line for word, line in zip(reported, found, strict=True))


CALLS: dict[str, Callable[[], object]] = {
    "_cuda_getCheckpointState": lambda: private.checkpoint(0, (0, 1)),
    "_cuda_setCheckpointPoolState": lambda: private.restore(0, None),
    "_cuda_checkPoolLiveAllocations": lambda: private.holds_exactly(0, (0, 1), []),
    "_cuda_cudaCachingAllocator_raw_delete": lambda: private.give_back(0),
    "_construct_storage_from_data_pointer": lambda: private.storage_at(0, torch.device("cpu"), 0),
    "_has_Standard_Deleter": lambda: private.owns_its_memory(torch.ones(1).untyped_storage()),
    "_cuda_endAllocateToPool": lambda: private.this_threads_allocations(0, (0, 1)).__enter__(),
}


@pytest.mark.parametrize(("name", "call"), CALLS.items(), ids=CALLS.keys())
def test_a_name_that_torch_lacks_skips_the_case_and_is_reported(
    monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], object]
) -> None:
    monkeypatch.delattr(torch._C, name, raising=False)

    with pytest.raises(pytest.skip.Exception, match=rf"^torch \S+ has no torch\._C\.{name}$"):
        call()


def test_what_is_passed_on_is_what_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[tuple[object, ...]] = []
    for name in ("setCheckpointPoolState", "beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"):
        monkeypatch.setattr(
            torch._C, f"_cuda_{name}", lambda *each, name=name: passed.append((name, *each)), raising=False
        )
    one, two = torch.ones(1).untyped_storage(), torch.ones(2).untyped_storage()

    private.restore(3, "state", stale=[one], adopt=[two])
    with pytest.raises(LookupError), private.this_threads_allocations(3, (0, 7)):
        raise LookupError

    assert passed == [
        ("setCheckpointPoolState", 3, "state", [one._cdata], [two._cdata]),
        ("beginAllocateCurrentThreadToPool", 3, (0, 7)),
        ("endAllocateToPool", 3, (0, 7)),
        ("releasePool", 3, (0, 7)),
    ]

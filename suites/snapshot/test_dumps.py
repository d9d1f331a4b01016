"""Snapshots as values and as files.

Without a GPU, a fixed snapshot replaces the allocator's, so that torch's processing can be tested; `test_history` tests
the recordings themselves.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from suites.reaching import reach

from . import _torch_private as private
from . import builder, plain
from .builder import Snapshot

Asked = list[object]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> tuple[Snapshot, Asked]:
    """Return the snapshot that the replaced allocator function returns, and the arguments of its calls."""
    snapshot, asked = builder.ordinary(), []

    def give(pool: object) -> Snapshot:
        asked.append(pool)
        return snapshot

    monkeypatch.setattr(private.module("torch._C"), "_cuda_memorySnapshot", give, raising=False)
    return snapshot, asked


def test_dump_snapshot_writes_a_plain_pickle(given: tuple[Snapshot, Asked], tmp_path: Path) -> None:
    """The file is a pickle of plain values, equal to the snapshot, and replaces the file's earlier content."""
    path = tmp_path / "dump.pickle"
    path.write_bytes(b"x" * 1_000_000)

    private.dump_snapshot(str(path))

    assert plain.load(path.read_bytes()) == given[0] == builder.ordinary()


def test_dump_snapshot_that_cannot_be_written_is_an_error(given: tuple[Snapshot, Asked], tmp_path: Path) -> None:
    """A missing directory raises instead of losing the dump silently."""
    assert given
    with pytest.raises(FileNotFoundError):
        private.dump_snapshot(str(tmp_path / "absent" / "dump.pickle"))


def test_snapshot_is_of_all_pools(given: tuple[Snapshot, Asked]) -> None:
    """A snapshot requests all pools from the allocator."""
    snapshot, asked = given

    assert private.snapshot() is snapshot
    assert asked == [None]


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("pool", [None, (3, 4)])
def test_memory_snapshot_is_of_the_requested_pool(
    given: tuple[Snapshot, Asked], pool: tuple[int, int] | None, include: bool
) -> None:
    """`torch.cuda.memory_snapshot` returns the segments of one pool or all, and passes `include_traces` on."""
    snapshot, asked = given

    found = torch.cuda.memory_snapshot(pool, include_traces=include)

    assert found == snapshot["segments"]
    assert asked == [(*(pool or (0, 0)), include)]


def test_augment_with_fx_traces_marks_frames_of_generated_code(
    given: tuple[Snapshot, Asked], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With `augment_with_fx_traces`, snapshots and dumps have graph nodes in their frames, and none without it."""
    file = "fx_generated_none.py"
    metadata = {
        "lineno_map": {2: 0},
        "prologue_start": 1,
        "node_metadata": {0: {"name": "n", "op": "o", "target": "t"}},
    }
    monkeypatch.setitem(reach("torch.fx.traceback._FX_METADATA_REGISTRY"), file, metadata)
    frames = given[0]["segments"][0]["blocks"][0]["frames"]
    dump = tmp_path / "dump"

    def frame_in(snapshot: Snapshot) -> dict[str, Any]:
        (found,) = snapshot["segments"][0]["blocks"][0]["frames"]
        return dict(found)

    def dumped(**options: bool) -> Snapshot:
        reach(f"{private.MEMORY}._dump_snapshot")(str(dump), **options)
        written: Snapshot = plain.load(dump.read_bytes())
        return written

    for take in (private.snapshot, dumped):
        frames[:] = [builder.frame("forward", 3, file)]
        assert set(frame_in(take())) == {"filename", "line", "name"}
        marked = frame_in(take(augment_with_fx_traces=True))
        assert (marked["fx_node_name"], marked["fx_node_op"], marked["fx_node_target"]) == ("n", "o", "t")


# The arguments of recording

#: The defaults that `_record_memory_history` passes on, in order.
DEFAULTS = {
    "enabled": "all",
    "context": "all",
    "stacks": "all",
    "max_entries": sys.maxsize,
    "clear_history": False,
    "compile_context": False,
    "global_record_annotations": False,
    "skip_actions": [],
}
if torch.__version__ >= (2, 14):  # pinned memory history, and host only
    DEFAULTS |= {"record_pinned_host_memory": False, "record_cuda": True}

CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "nothing": ((), {}, {}),
    "off": ((None,), {}, {"enabled": None}),
    "state": (("state",), {}, {"enabled": "state"}),
    "stacks": ((), {"stacks": "python"}, {"stacks": "python"}),
    "no_context": ((), {"context": None}, {"context": None}),
    "by_place": (("all", "alloc", "python", 17), {}, {"context": "alloc", "stacks": "python", "max_entries": 17}),
    "the_rest": (
        (),
        {"clear_history": True, "compile_context": True, "skip_actions": ["alloc", "oom"]},
        {"clear_history": True, "compile_context": True, "skip_actions": ["alloc", "oom"]},
    ),
    "clear": ((), {"clear_history": True}, {"clear_history": True}),
    "annotations": ((), {"global_record_annotations": True}, {"global_record_annotations": True}),
    "a_device": ((), {"device": "cuda:3"}, {}),
    "nothing_skipped": ((), {"skip_actions": None}, {}),
}


@pytest.mark.parametrize(("arguments", "options", "changed"), CALLS.values(), ids=CALLS.keys())
def test_record_memory_history_passes_each_option_on(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], options: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Each option of `_record_memory_history` is passed to the allocator in its position.

    The defaults are as documented: record everything, with stacks of both languages, without a limit.
    """
    passed: list[tuple[Any, ...]] = []

    def recording(*each: object) -> None:
        passed.append(each)

    monkeypatch.setattr(private.module("torch._C"), "_cuda_record_memory_history", recording, raising=False)

    reach(f"{private.MEMORY}._record_memory_history")(*arguments, **options)

    assert passed == [tuple((DEFAULTS | changed).values())]


#: The name of each option in the error message, and its values.
KNOWN = {
    "enabled": ("state", {"state", "all", "None"}),
    "context": ("context", {"state", "alloc", "all", "None"}),
    "stacks": ("stacks", {"python", "all"}),
}


@pytest.mark.requires(cuda=True)
@pytest.mark.parametrize("option", ["enabled", "context", "stacks"])
def test_record_memory_history_refuses_an_unknown_option(option: str) -> None:
    """An unknown value of an option raises with the valid values before recording starts.

    A build for CUDA is sufficient.
    """
    name, words = KNOWN[option]
    try:
        with pytest.raises(RuntimeError, match=rf"expected {name} to be ") as refused:
            private.record(**{option: "sometimes"})
        if torch.cuda.is_available():
            assert torch.ones(4, device="cuda").tolist() == [1] * 4
            assert all(trace == [] for trace in private.snapshot()["device_traces"])
    finally:
        if torch.cuda.is_available():  # without a GPU, even this call would fail for lack of a driver
            private.record(None)

    listed = str(refused.value).splitlines()[0].partition(" to be ")[2]
    assert set(re.findall(r"\w+", listed)) - {"or"} == words

"""What a profile leaves in the process: threads, tracers, objects, memory, observers."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ExecutionTraceObserver

from . import workloads
from .trees import profiler, quiet_collector, read, warm_up

OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"with_stack": True}, id="stack"),
    pytest.param({"profile_memory": True, "with_stack": True, "record_shapes": True}, id="everything"),
]


def profile_of(work: Callable[[], object], **options: Any) -> object:
    """A profile of one call of `work`, its tree read once, with all that it holds. With stacks, two calls before it."""
    if options.get("with_stack"):
        warm_up(work, **options)
    with quiet_collector(), profiler(**options) as prof:
        work()
    read(prof)
    return prof


def test_with_stack_traces_no_thread_after_the_profile() -> None:
    """Contract: Python's tracer is taken from all threads at the end, also from those that were running at the start.

    The thread's reading within the profile is the control: it must be traced there.
    """
    readings: dict[str, object] = {}
    started, ended, read_once = threading.Event(), threading.Event(), threading.Event()

    def watch() -> None:
        started.wait()
        readings["during"] = sys.getprofile()
        read_once.set()
        ended.wait()
        readings["after"] = sys.getprofile()

    thread = threading.Thread(target=watch)
    thread.start()
    with profiler(with_stack=True):
        started.set()
        read_once.wait()
    ended.set()
    thread.join()

    assert readings["during"] is not None
    assert readings["after"] is None


@pytest.mark.parametrize("options", OPTIONS)
def test_profile_leaves_no_thread(options: dict[str, Any]) -> None:
    """Contract: once a first profile has started what it keeps for good, the next has no thread of its own after it."""
    profile_of(lambda: torch.ones(1), **options)
    before = set(os.listdir("/proc/self/task"))

    profile_of(lambda: torch.ones(1), **options)

    assert set(os.listdir("/proc/self/task")) <= before


@pytest.mark.parametrize("options", OPTIONS)
def test_profile_keeps_nothing_alive_that_was_profiled(options: dict[str, Any]) -> None:
    """Contract: neither the profiler nor its results keep alive a module, optimiser, tensor or function that ran."""

    def profiled() -> tuple[object, dict[str, weakref.ref[object]]]:
        chain, x = workloads.Chain(), torch.ones(3)
        optimiser = torch.optim.SGD(chain.parameters(), lr=0.1, foreach=False)
        result: list[torch.Tensor] = []

        def work() -> None:
            result.append(chain(x))
            result[-1].sum().backward()
            optimiser.step()

        prof = profile_of(work, **options)
        subjects = {"module": chain, "optimiser": optimiser, "input": x, "output": result[0], "function": work}
        return prof, {name: weakref.ref(subject) for name, subject in subjects.items()}

    prof, watched = profiled()
    gc.collect()

    assert prof
    assert len(watched) == 5
    assert [name for name, reference in watched.items() if reference() is not None] == []


@pytest.mark.parametrize("options", OPTIONS)
def test_memory_of_profiles_does_not_add_up(options: dict[str, Any]) -> None:
    """Contract: a profile that is dropped gives its memory back: eight more take less than a quarter of what eight
    that are kept take.

    The kept ones are the control, which shows that the reading sees a profile at all. Read is what malloc has handed
    out and not got back, so that neither its caches nor other processes matter.
    """
    x = torch.ones(4)

    def work() -> None:
        for _ in range(50):
            torch.sin(x)

    def profiles(kept: int) -> int:
        """Bytes that eight profiles added, of which the last `kept` are alive at the reading."""
        before = handed_out()
        held: list[object] = []
        for _ in range(8):
            held.append(profile_of(work, **options))
            del held[: len(held) - kept]
        gc.collect()
        return handed_out() - before

    profiles(kept=0)
    dropped, kept = profiles(kept=0), profiles(kept=8)

    assert dropped < kept / 4, f"eight profiles took {dropped} bytes and eight kept ones {kept}"


class _MallInfo(ctypes.Structure):
    """glibc's account of its heap (mallinfo2(3), since glibc 2.33): all figures in bytes but the four counts."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def handed_out() -> int:
    """The bytes that malloc has handed out and not got back; skips the case where libc does not say."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("libc has no mallinfo2, which glibc has since 2.33: nothing tells the memory in use")
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def test_executiontraceobserver_ends_with_the_profile(tmp_path: Path) -> None:
    """Contract: the execution trace of an observer has the profile's operators, none that ran later, and is complete
    when the profile has ended."""
    file = tmp_path / "execution.json"
    observer = ExecutionTraceObserver()
    observer.register_callback(str(file))
    x = torch.ones(2)

    with profiler(execution_trace_observer=observer):
        torch.sin(x)
    text = file.read_text(encoding="utf-8")
    torch.cos(x)

    operators = [node["name"] for node in json.loads(text)["nodes"] if node["name"].startswith("aten::")]
    assert operators == ["aten::sin"]
    assert file.read_text(encoding="utf-8") == text

"""Leftovers of a profile in the process: threads, tracers, objects, memory, observers."""

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
    """Return a profile of one call of `work`, read once. With stacks, two warm-up calls precede it."""
    if options.get("with_stack"):
        warm_up(work, **options)
    with quiet_collector(), profiler(**options) as prof:
        work()
    read(prof)
    return prof


def test_with_stack_traces_no_thread_after_the_profile() -> None:
    """Python's tracer is removed from all threads at the end, including those that were running at the start.

    As a control, the thread must be traced within the profile.
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
    """After the first profile has started its permanent threads, further profiles leave no thread."""
    profile_of(lambda: torch.ones(1), **options)
    before = set(os.listdir("/proc/self/task"))

    profile_of(lambda: torch.ones(1), **options)

    assert set(os.listdir("/proc/self/task")) <= before


@pytest.mark.parametrize("options", OPTIONS)
def test_profile_keeps_no_profiled_object_alive(options: dict[str, Any]) -> None:
    """Neither the profiler nor its results keep a module, optimizer, tensor or function of the work alive."""

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
def test_memory_of_dropped_profiles_is_freed(options: dict[str, Any]) -> None:
    """A dropped profile frees its memory: eight dropped ones take less than a quarter of the memory of eight kept ones.

    The kept ones are the control, which shows that the measurement registers a profile. It counts the bytes that malloc
    has handed out and that were not freed, so that neither caches nor other processes matter.
    """
    x = torch.ones(4)

    def work() -> None:
        for _ in range(50):
            torch.sin(x)

    def profiles(kept: int) -> int:
        """Return the bytes added by eight profiles, the last `kept` of which are alive at the measurement."""
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
    """glibc's heap statistics (mallinfo2(3), since glibc 2.33), in bytes except for the four counts."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def handed_out() -> int:
    """Return the bytes allocated by malloc and not freed. Skip the case if libc does not report them."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("libc has no mallinfo2 (glibc has it since 2.33), so the memory in use is unknown")
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


def test_executiontraceobserver_ends_with_the_profile(tmp_path: Path) -> None:
    """An execution trace has the profile's operators and no later ones, and is complete when the profile has ended."""
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


def test_executiontraceobserver_tells_its_file_and_whether_it_records(tmp_path: Path) -> None:
    """`get_output_file_path` returns the registered file or None; `is_running` is True between start and stop.

    With `set_extra_resource_collection`, a folder beside the file exists, which `get_resources_dir_for_et_path` finds.
    """
    file, folder = tmp_path / "execution.json", tmp_path / "execution_resources"
    observer = ExecutionTraceObserver()
    assert observer.get_output_file_path() is None
    observer.register_callback(str(file))
    try:
        assert observer.get_output_file_path() == str(file)
        assert not observer.is_running()
        observer.start()
        assert observer.is_running()
        observer.stop()
        assert not observer.is_running()

        assert observer.get_resources_dir() is None
        assert ExecutionTraceObserver.get_resources_dir_for_et_path(str(file)) is None
        observer.set_extra_resource_collection(True)
        assert folder.is_dir()
        assert observer.get_resources_dir() == str(folder)
        assert ExecutionTraceObserver.get_resources_dir_for_et_path(str(file)) == str(folder)
        observer.set_extra_resource_collection(False)
        assert observer.get_resources_dir() is None
    finally:
        observer.unregister_callback()
    assert not observer.is_running()

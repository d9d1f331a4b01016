"""Readings of a process, and their results for repeated cases."""

from __future__ import annotations

import gc
import json
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.backends.cuda import CudaBackend, CudaCounters, count_private_pools
from harness.backends.nvml_memory import NvmlProcess, memory_of_process
from harness.checks import meters, process_meters
from harness.checks.meters import (
    METERS,
    MeterReader,
    format_quantity,
    meter_growths,
    meter_of,
    suspicious_growths,
)
from harness.checks.process_meters import FileMeters, resident_bytes
from harness.checks.torch_memory import count_torch_objects
from tests.checks.examined import Examined, examine
from tests.preloaded import run_script

pytestmark = pytest.mark.acceptance

_ROOT = Path(__file__).parents[2]

_NO_LEAKS = """
import concurrent.futures, functools, gc, logging, re, sys, threading
import numpy as np
import pytest
import torch

CONSTANT = torch.zeros(1000)
MADE = []
CACHE = {}
EXECUTOR = concurrent.futures.ThreadPoolExecutor(2)


def test_nothing():
    pass


def test_matmul():
    torch.randn(500, 500) @ torch.randn(500, 500)


def test_backward():
    layer = torch.nn.Linear(100, 100)
    layer(torch.randn(5, 100)).sum().backward()


def test_compiled():
    torch.compile(lambda x: (x * 2 + 1).sin(), backend="eager")(torch.zeros(10))


def test_compiled_anew_each_time():
    torch._dynamo.reset()
    torch.compile(lambda x: (x * 2 + 1).sin(), backend="eager")(torch.zeros(10))


def test_thread_pool_of_the_module():
    assert EXECUTOR.submit(int, "3").result() == 3


def test_threads_that_end():
    threads = [threading.Thread(target=np.zeros, args=(1000,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_constant():
    if not MADE:
        MADE.append(torch.zeros(1000))
    CONSTANT.add_(1)


@functools.lru_cache
def memoised(size):
    return torch.zeros(size)


def test_memoised():
    memoised(10_000)


class Holder:
    @functools.cached_property
    def value(self):
        return torch.zeros(10_000)


HOLDER = Holder()


def test_cached_property():
    HOLDER.value.add_(1)


def test_cache_that_is_overwritten():
    CACHE["last"] = torch.zeros(10_000)


@pytest.fixture(scope="session")
def model():
    return torch.nn.Linear(100, 100)


def test_session_fixture(model):
    model(torch.zeros(1, 100)).sum().backward()


def test_what_pytest_keeps(tmp_path, caplog, capsys, monkeypatch, request):
    (tmp_path / "file").write_text("x" * 100_000)
    monkeypatch.setenv("A", "b")
    logging.getLogger("a").warning("text %s", "x" * 1000)
    print("y" * 1000)
    request.node.user_properties.clear()


def test_that_fails_with_a_tensor_in_hand():
    values = torch.zeros(1000)
    assert values.sum() == 1


def test_caught_exception_that_is_kept_for_a_debugger():
    values = torch.zeros(1000)
    try:
        values.reshape(3)
    except RuntimeError as error:
        sys.last_value = error


def test_strings_and_regexes():
    sys.intern("word" * 20)
    assert re.compile("a(b|c)*d").match("abcd")


def test_graph_in_a_cycle():
    class Node:
        pass

    node = Node()
    node.itself = node
    node.loss = torch.nn.Linear(300, 300)(torch.zeros(1, 300)).sum()


def test_hook_that_closes_over_its_tensor():
    values = torch.zeros(1000, requires_grad=True)
    values.register_hook(lambda grad: grad + values)
    (values * 2).sum().backward()


def test_profiled():
    with torch.profiler.profile():
        torch.zeros(3) + 1


def test_scripted_twice():
    CACHE.setdefault("scripted", torch.jit.script(torch.nn.Linear(3, 3)))(torch.zeros(1, 3))

"""


@pytest.fixture(scope="module")
def without_leaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examined]:
    return examine(tmp_path_factory.mktemp("without_leaks"), _NO_LEAKS)


def _cases(source: str) -> list[str]:
    return [line.split()[1].partition("(")[0] for line in source.splitlines() if line.startswith("def test_")]


@pytest.mark.parametrize("case", _cases(_NO_LEAKS))
def test_cases_without_a_leak_have_none(without_leaks: Mapping[str, Examined], case: str) -> None:
    assert without_leaks[case].leaks == {}, without_leaks[case].origins


@pytest.mark.parametrize(
    "case",
    [
        "test_nothing",
        "test_what_pytest_keeps",
        "test_that_fails_with_a_tensor_in_hand",
        "test_caught_exception_that_is_kept_for_a_debugger",
        "test_strings_and_regexes",
    ],
)
def test_ordinary_cases_are_not_suspected(without_leaks: Mapping[str, Examined], case: str) -> None:
    assert without_leaks[case].first == {}


def test_lazy_initialisation_is_suspected_once(without_leaks: Mapping[str, Examined]) -> None:
    assert without_leaks["test_memoised"].first == {"tensors": 1, "tensor_bytes": 40_000}
    assert without_leaks["test_thread_pool_of_the_module"].first["threads"] == 1
    assert without_leaks["test_matmul"].first["heap_bytes"] > 1 << 18


# Pure functions


@pytest.mark.parametrize(
    ("before", "after", "changed", "suspected"),
    [
        ({"tensors": 1}, {"tensors": 1}, {}, {}),
        ({"tensors": 1}, {"tensors": 2}, {"tensors": 1}, {"tensors": 1}),
        ({"tensors": 2}, {"tensors": 1}, {"tensors": -1}, {}),
        ({"heap_bytes": 0}, {"heap_bytes": 256 << 10}, {"heap_bytes": 256 << 10}, {}),
        ({"heap_bytes": 0}, {"heap_bytes": 257 << 10}, {"heap_bytes": 257 << 10}, {"heap_bytes": 257 << 10}),
        # The case initialised CUDA: all CUDA memory is its own, but the driver's memory is the context.
        ({}, {"cuda_allocated[1]": 512}, {"cuda_allocated[1]": 512}, {"cuda_allocated[1]": 512}),
        ({}, {"cuda_driver[1]": 512 << 20}, {}, {}),
        ({"cuda_driver[1]": 0}, {"cuda_driver[1]": 1 << 30}, {"cuda_driver[1]": 1 << 30}, {"cuda_driver[1]": 1 << 30}),
        # The allocator's reserved memory is not suspicious by itself.
        ({}, {"cuda_reserved[0]": 2 << 20}, {"cuda_reserved[0]": 2 << 20}, {}),
        # Meters that can no longer be read are not compared.
        ({"heap_bytes": 9 << 20}, {}, {}, {}),
    ],
)
def test_growths_and_suspicions(
    before: dict[str, int], after: dict[str, int], changed: dict[str, int], suspected: dict[str, int]
) -> None:
    assert meter_growths(before, after) == changed
    assert suspicious_growths(meter_growths(before, after)) == suspected


def test_every_meter_is_in_the_table_once_with_its_reason() -> None:
    names = [meter.name for meter in METERS]
    assert len(set(names)) == len(names)
    assert all(meter.noun and meter.why for meter in METERS)
    for meter in METERS:
        assert meter.unit == "bytes" or not meter.covered_by
        assert all(meter_of(name).unit == "bytes" for name in meter.covered_by)
    with pytest.raises(KeyError):
        meter_of("nonsense[0]")


_READ = """
import json, sys
from harness.checks.meters import MeterReader
print(json.dumps(MeterReader(sys.argv[1]).read()), "torch" in sys.modules)
"""


@pytest.mark.parametrize("tier", ["fast", "full"])
def test_a_reading_has_every_meter_that_needs_no_cuda_and_loads_no_torch(tier: str) -> None:
    command = [sys.executable, "-c", _READ, tier]
    ran = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    text, _, loaded = ran.stdout.strip().rpartition(" ")
    read = json.loads(text)
    due = {meter.name for meter in METERS if tier == "full" or meter.tier == "fast"}
    assert set(read) == {name for name in due if not name.startswith(("cuda", "device", "pinned"))}
    assert (read["tensors"], loaded) == (0, "False")


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [(3, "count", "3"), (640, "bytes", "640 bytes"), (1 << 10, "bytes", "1.0 KiB"), (-(3 << 29), "bytes", "-1.5 GiB")],
)
def test_amounts_as_text(amount: int, unit: Any, text: str) -> None:
    assert format_quantity(amount, unit) == text


@pytest.mark.parametrize(
    ("listed", "used"),
    [
        ([NvmlProcess(7, 5), NvmlProcess(9, 6)], 5),
        ([NvmlProcess(700, 5), NvmlProcess(9, 6)], 5),
        ([NvmlProcess(1, 5)], 5),
        (
            [NvmlProcess(1, 5), NvmlProcess(2, 6)],
            "nvml lists 2 processes, but not pid 7: it uses another pid namespace",
        ),
        ([], "nvml lists 0 processes, but not pid 7: it uses another pid namespace"),
        ([NvmlProcess(7, None)], "the driver does not report the memory of single processes"),
    ],
)
def test_memory_of_one_process_among_those_that_nvml_lists(listed: list[NvmlProcess], used: int | str) -> None:
    assert memory_of_process([7, 700], listed) == used


def test_private_pools_are_counted_by_device() -> None:
    segments: list[dict[str, Any]] = [
        {"device": 0, "segment_pool_id": (0, 0)},
        {"device": 0, "segment_pool_id": (0, 1)},
        {"device": 0, "segment_pool_id": (0, 1)},
        {"device": 1, "segment_pool_id": (2, 0)},
        {"device": 1},
    ]
    assert count_private_pools(segments) == {"cuda_pools[0]": 1, "cuda_pools[1]": 1}


def test_caches_are_released_before_a_reading_unless_a_graph_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Graph(torch.cuda.CUDAGraph):
        """A graph that needs no device."""

        def __new__(cls) -> Graph:
            return object.__new__(cls)

        def __init__(self) -> None:
            pass

    released: list[object] = []

    class Busy(CudaBackend):
        """GPUs in use, without memory to count."""

        def is_initialized(self, torch: ModuleType) -> bool:
            return bool(torch)

        def counters(self) -> _NoCounters:
            return _NoCounters()

        def release_caches(self, torch: ModuleType) -> None:
            released.append(torch)

    monkeypatch.setattr(meters, "BACKENDS", {"cuda": Busy("cuda")})
    reader = MeterReader("full", freeze=False)
    reader.read()
    assert released == [torch]
    graph = Graph()
    reader.read()
    assert released == [torch], "a graph was alive"
    del graph
    reader.read()
    assert released == [torch, torch]


class _NoCounters:
    def read(self, *_: object, **__: object) -> dict[str, int]:
        return {}


# Real readings in this process


def test_storages_are_counted_once_and_only_on_the_cpu() -> None:
    import torch

    class Strange(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError("a reading ran code of the case")

    whole = torch.zeros(1000)
    things: list[object] = [
        whole,
        whole[:1],
        whole.untyped_storage(),
        torch.zeros(10, device="meta"),
        torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (5,), check_invariants=True),
        torch.nn.Parameter(torch.zeros(2)),
        torch.zeros(3).as_subclass(Strange),
        "text",
    ]
    found = count_torch_objects(things, torch)
    assert (found.tensors, found.tensor_bytes) == (6, 4000 + 8 + 12)


def test_streams_that_dynamo_keeps_of_its_last_graph_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch._dynamo import graph_bytecode_inputs

    class Stream:
        pass

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    streams, tensor = [Stream(), Stream(), Stream()], torch.zeros(2)
    monkeypatch.setattr(graph_bytecode_inputs, "keep_alive", [streams[0], tensor])
    found = count_torch_objects([*streams, tensor], torch)
    assert (found.streams, found.tensors) == (2, 1)


def test_a_copy_on_write_storage_is_not_copied_by_being_counted() -> None:
    import torch

    lazy = torch._lazy_clone(torch.zeros(10))
    assert count_torch_objects([lazy], torch).tensor_bytes == 40
    assert torch._C._is_cow_tensor(lazy)  # type: ignore[attr-defined]


class _FakeCuda:
    """The counters of torch.cuda on a machine with one device; torch without CUDA has none."""

    def device_count(self) -> int:
        return 1

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        assert index == 0
        return {name: {"all": {"current": 7}} for name in ("allocated_bytes", "reserved_bytes", "active")}

    def host_memory_stats_as_nested_dict(self) -> dict[str, Any]:
        return {"active_bytes": {"current": 8}, "allocated_bytes": {"current": 16}}

    def memory_snapshot(self) -> list[dict[str, Any]]:
        return [{"device": 0, "segment_pool_id": (1, 0)}]


class _FakeTorch:
    cuda = _FakeCuda()

    def __init__(self, version: str) -> None:
        from torch.torch_version import TorchVersion

        self.__version__ = TorchVersion(version)


def test_the_counters_of_the_allocators_and_those_that_are_missing() -> None:
    unreadable: dict[str, str] = {}
    read = CudaCounters().read(_FakeTorch("2.13.0+cu130"), unreadable, full=True)  # type: ignore[arg-type]
    driver = unreadable.pop("cuda_driver")
    assert read == {
        "cuda_allocated[0]": 7,
        "cuda_reserved[0]": 7,
        "cuda_active_blocks[0]": 7,
        "pinned_bytes": 8,
        "pinned_reserved": 16,
        "cuda_pools[0]": 1,
    }
    assert driver.startswith("nvml cannot find the device: ")
    assert unreadable == {"cuda_segments[0]": "this torch has no counter segment.all.current"}


class _CudaWithPools(_FakeCuda):
    """Has a number of private pools, each with a segment of 7 bytes."""

    def __init__(self) -> None:
        self.pools = self.snapshots = 0

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        return {**super().memory_stats_as_nested_dict(index), "reserved_bytes": {"all": {"current": 7 * self.pools}}}

    def memory_snapshot(self) -> list[dict[str, Any]]:
        self.snapshots += 1
        return [{"device": 0, "segment_pool_id": (number, 0)} for number in range(1, self.pools + 1)]


def test_private_pools_are_counted_after_each_case_if_the_segments_have_changed() -> None:
    torch, counters = _FakeTorch("2.13.0+cu130"), CudaCounters()
    torch.cuda = cuda = _CudaWithPools()

    def read(*, full: bool = False) -> tuple[int, int]:
        values = counters.read(torch, {}, full=full)  # type: ignore[arg-type]
        return values["cuda_pools[0]"], cuda.snapshots

    assert [read(), read()] == [(0, 1), (0, 1)]
    cuda.pools = 2
    assert [read(), read()] == [(2, 2), (2, 2)]
    cuda.pools = 1
    assert read() == (1, 3)
    assert read(full=True) == (1, 4)


@pytest.mark.parametrize(("version", "readable"), [("2.11.0+cu130", False), ("2.12.1", False), ("2.14.0a0+git1", True)])
def test_pinned_memory_in_use_is_read_only_where_torch_counts_what_is_freed(version: str, readable: bool) -> None:
    unreadable: dict[str, str] = {}
    read = CudaCounters().read(_FakeTorch(version), unreadable, full=False)  # type: ignore[arg-type]
    assert ("pinned_bytes" in read, "pinned_bytes" in unreadable) == (readable, not readable)
    assert read["pinned_reserved"] == 16


def test_a_folder_of_joblib_counts_once_it_holds_something(tmp_path: Path) -> None:
    files = FileMeters(tmp_path / "none", tmp_path)
    folder = tmp_path / f"joblib_memmapping_folder_{os.getpid()}_of_a_call"
    folder.mkdir()
    assert files.read()["shm_files"] == 0
    (folder / "array").write_text("four")
    assert files.read()["shm_files"] == 1


def test_temporary_files_are_counted_at_any_depth_but_pytests_and_inductors_link(tmp_path: Path) -> None:
    files = FileMeters(tmp_path, tmp_path / "none")
    assert files.read() == {"shm_files": 0, "shm_bytes": 0, "temp_files": 0, "temp_bytes": 0}
    (tmp_path / "pytest-of-me" / "x").mkdir(parents=True)
    (tmp_path / "torchinductor_me").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("four")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    read = files.read()
    assert (read["temp_files"], read["temp_bytes"]) == (4, 4)


_SIDE_BY_SIDE = """
import os, subprocess, sys
from pathlib import Path
from harness.checks.process_meters import FileMeters
folder, name = Path(sys.argv[1]), sys.argv[2]
files = FileMeters(folder / "none", folder)
print("ready", flush=True)
input()
both = (folder / "held-by-both").open("w")
held = (folder / f"held-by-{name}").open("w")
(folder / f"torch_{os.getpid()}_{name}_0").touch()  # closed again, as a leak is
code = "import sys; file = open(sys.argv[1], 'w'); print(flush=True); input()"
command = [sys.executable, "-c", code, str(folder / f"held-by-the-child-of-{name}")]
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
(folder / f"torch_{child.pid}_child-of-{name}_0").touch()
print("made", flush=True)
input()
def tell():
    names = files.shared_memory()
    names = [each.replace(str(os.getpid()), "PID").replace(str(child.pid), "CHILD") for each in names]
    print(*sorted(names), flush=True)
    input()
tell()
both.close()
held.close()
child.communicate()
(folder / f"left-by-{name}").touch()
print("closed", flush=True)
input()
tell()
"""


def test_a_file_that_the_driver_makes_for_a_process_is_not_counted(tmp_path: Path) -> None:
    files = FileMeters(tmp_path / "none", tmp_path)
    (tmp_path / "cuda.shm.0.1c3f.1").write_bytes(bytes(81920))
    (tmp_path / "cuda.shm").touch()
    assert files.shared_memory() == ["cuda.shm"]


def test_two_processes_side_by_side_count_what_they_and_their_children_made(tmp_path: Path) -> None:
    """Files that another process holds open, or that have its name, are not counted, and are not inherited from it.

    Files that no process holds open, and whose names do not tell, cannot be attributed.
    """
    (tmp_path / "old").write_text("x")
    command = [sys.executable, "-c", _SIDE_BY_SIDE, str(tmp_path)]
    with (
        subprocess.Popen([*command, "one"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen([*command, "two"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as two,
    ):
        both = (one, two)
        assert _next_lines(both) == ["ready", "ready"]
        assert _next_lines(both) == ["made", "made"]
        expected = {
            name: {
                "held-by-both",
                f"held-by-{name}",
                f"held-by-the-child-of-{name}",
                f"torch_CHILD_child-of-{name}_0",
                f"torch_PID_{name}_0",
            }
            for name in ("one", "two")
        }
        assert [set(line.split()) for line in _next_lines(both)] == list(expected.values())
        assert _next_lines(both) == ["closed", "closed"]
        for line, names in zip(_next_lines(both), expected.values(), strict=True):
            assert set(line.split()) == names | {"left-by-one", "left-by-two"}


def _next_lines(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Return the next line of each process; after all of them have written it, let them continue."""
    heard = []
    for process in processes:
        assert process.stdout is not None
        heard.append(process.stdout.readline().strip())
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return heard


@pytest.mark.parametrize("at_once", [True, False], ids=["in-the-same-step-of-the-clock", "later"])
@pytest.mark.parametrize("kind", ["shm", "temp"])
def test_a_folder_is_listed_anew_when_there_may_be_more(tmp_path: Path, kind: str, at_once: bool) -> None:
    (tmp_path / ("theirs" if kind == "shm" else "pytest-of-somebody")).mkdir()
    if not at_once:
        os.utime(tmp_path, (0, 0))
    files = FileMeters(tmp_path / "none", tmp_path) if kind == "shm" else FileMeters(tmp_path, tmp_path / "none")

    def counted() -> int:
        return files.read()[f"{kind}_files"]

    assert counted() == counted() == 0
    changed = tmp_path.stat().st_mtime_ns
    (tmp_path / "ours").write_text("x")
    if at_once:
        os.utime(tmp_path, ns=(changed, changed))
    assert counted() == 1
    (tmp_path / "ours").write_text("longer")
    assert files.read()[f"{kind}_bytes"] == 6
    (tmp_path / "ours").unlink()
    assert counted() == 0


def test_resident_memory_is_what_was_touched() -> None:
    before = resident_bytes()
    reserved = mmap.mmap(-1, 64 << 20)
    assert resident_bytes() - before < 16 << 20
    reserved.write(bytes(32 << 20))
    grown = resident_bytes() - before
    reserved.close()
    assert 24 << 20 < grown < 48 << 20
    assert resident_bytes() - before < 16 << 20


_COLLECTED = """
import gc, sys
from harness.checks.meters import collect_garbage
try:
    1 / 0
except ZeroDivisionError as error:
    sys.last_value, sys.last_traceback = error, error.__traceback__
collect_garbage()
assert not hasattr(sys, "last_value") and not hasattr(sys, "last_traceback")
assert gc.collect() == 0
"""


def test_collecting_garbage_frees_cycles_and_the_last_exception() -> None:
    subprocess.run([sys.executable, "-c", _COLLECTED], cwd=_ROOT, check=True)


_WITHOUT_GARBAGE = """
import gc
import torch
from harness.backends import simulation
from harness.checks.meters import MeterReader, collect_garbage
meters = MeterReader("fast")
meters.read()
collect_garbage()
gc.disable()
meters.read()
simulation.faults_struck()
assert gc.collect() == 0
"""


def test_a_reading_makes_no_garbage() -> None:
    """After a suspicion, readings are repeated while the last garbage collection has found something."""
    ran = run_script(_WITHOUT_GARBAGE)
    assert ran.returncode == 0, ran.stderr


_MANY = """
import gc
from harness.checks.meters import MeterReader, meter_growths, suspicious_growths
import torch
gc.collect(); gc.freeze()
meters = MeterReader("fast")
before = meters.read()
many = [[] for _ in range(MeterReader.FREEZE_ABOVE)]
kept = [torch.zeros(10)]
after = meters.read()
assert suspicious_growths(meter_growths(before, after))["tensors"] == 1, meter_growths(before, after)
assert len(gc.get_objects()) < MeterReader.FREEZE_ABOVE
again = meters.read()
assert "tensors" not in suspicious_growths(meter_growths(after, again))
kept.append(torch.zeros(10))
assert suspicious_growths(meter_growths(again, meters.read()))["tensors"] == 1
"""


def test_many_objects_are_frozen_and_nothing_is_lost_or_counted_twice() -> None:
    ran = run_script(_MANY)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("cheap", [True, False])
def test_descriptors_and_threads_are_counted_with_and_without_a_listing(
    cheap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("_THREADS_BY_LINKS", "_DESCRIPTORS_BY_SIZE"):
        if cheap and not getattr(process_meters, way):
            pytest.skip("this kernel does not tell the numbers")
        monkeypatch.setattr(process_meters, way, cheap)
    gc.collect()  # threads of other tests may end with their owners
    before = process_meters.read_process_meters({})
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    with open(os.devnull), open(os.devnull):
        thread.start()
        after = process_meters.read_process_meters({})
    release.set()
    thread.join()
    assert after["descriptors"] - before["descriptors"] == 2
    assert after["threads"] - before["threads"] == 1

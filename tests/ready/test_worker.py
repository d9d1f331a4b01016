"""The process with the quick tests, for real: what its forks do, and how those end that crash, hang or stay."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from harness.core import linux
from harness.devices.device import CPU
from harness.ready import quick_tests, worker
from harness.ready.active import run_active
from harness.ready.quick_tests import Gpu, Line, Order
from tests.ready.test_judge_node import judged

GPUS = ("a", "b")
#: Replaces the tests of the worker, and its import of torch.
_SCRIPT = """
import os, signal, subprocess, sys, time, types
from pathlib import Path
from harness.core import disposable
from harness.devices.health import HealthError
from harness.ready import quick_tests, worker
from harness.ready.bench import CannotTestError, LacksError
torch = types.SimpleNamespace(get_num_threads=lambda: 2, device=lambda *names: names)
class Backend:
    torch_type, accelerator = "cpu", False
    def import_torch(self): return torch
worker.BACKENDS = types.SimpleNamespace(add=lambda kind: Backend())
def mine(): return os.environ["ME"]
class Entry:
    def __init__(self, function, after=()): self.function, self.after, self.group = function, after, False
    def load(self): return self.function
BODY
quick_tests.ENTRIES.clear()
for name, value in list(globals().items()):
    if name.startswith("test_"): quick_tests.ENTRIES[name[5:]] = Entry(value)
sys.exit(worker.main(sys.argv[1:]))
"""


def ran(
    folder: Path,
    body: str,
    solo: Sequence[str] = (),
    group: Sequence[str] = (),
    *,
    hang: float = 60.0,
    end: float = 120.0,
    start_until: float = 100.0,
    gpus: Sequence[str] = GPUS,
) -> list[Line]:
    """Run the tests of a body; return the lines of the worker."""
    order = Order(
        kind="cpu",
        gpus=tuple(Gpu(gpu, f"GPU {gpu}", {"ME": gpu}) for gpu in gpus),
        solo=tuple(solo),
        group=tuple(group),
        folder=str(folder),
        start_until=start_until,
        hang=hang,
        end=end,
        seed=0,
        full=False,
        whole_exit=False,
    )
    (folder / "order").write_bytes(msgspec.json.encode(order))
    script = _SCRIPT.replace("BODY", textwrap.dedent(body))
    command = [sys.executable, "-c", script, str(folder / "order"), str(folder / "lines")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(quick_tests.decode((folder / "lines").read_bytes()))


def ends(lines: Sequence[Line], phase: str = "solo") -> dict[str, tuple[int | None, str, str]]:
    return {
        line.gpu: (line.status, line.state, line.name) for line in lines if line.what == "end" and line.phase == phase
    }


def results(lines: Sequence[Line]) -> dict[tuple[str, str], tuple[str, str]]:
    return {(line.gpu, line.name): (line.state, line.text) for line in lines if line.what == "done"}


def test_each_gpu_has_a_process_of_its_own_and_sees_its_own_device(tmp_path: Path) -> None:
    body = """
    def test_one(bench): bench.figures["pid"] = float(os.getpid())
    def test_two(bench): raise HealthError(f"of {mine()}")
    def test_three(bench): raise LacksError("no type")
    def test_four(bench): raise CannotTestError("busy")
    """
    lines = ran(tmp_path, body, ["one", "two", "three", "four"])

    assert results(lines) == {
        (gpu, name): expected
        for gpu in GPUS
        for name, expected in {
            "one": ("ok", ""),
            "two": ("wrong", f"of {gpu}"),
            "three": ("lacks", "no type"),
            "four": ("cannot", "busy"),
        }.items()
    }
    assert ends(lines) == dict.fromkeys(GPUS, (0, "", "process exit"))
    assert len({line.figures["pid"] for line in lines if line.figures}) == 2


def test_an_error_ends_the_tests_of_its_gpu_only(tmp_path: Path) -> None:
    body = """
    def test_one(bench):
        if mine() == "a": raise RuntimeError("CUDA error: an illegal memory access")
    def test_two(bench): pass
    """
    lines = ran(tmp_path, body, ["one", "two"])

    assert results(lines) == {
        ("a", "one"): ("error", "RuntimeError: CUDA error: an illegal memory access"),
        ("b", "one"): ("ok", ""),
        ("b", "two"): ("ok", ""),
    }
    assert [(line.names, line.state) for line in lines if line.what == "left"] == [(("two",), "error")]


@pytest.mark.parametrize(
    "words", ["CUDA out of memory. Tried to allocate", "CUDA error: all CUDA-capable devices are busy or unavailable"]
)
def test_what_others_have_taken_says_nothing_about_a_gpu(tmp_path: Path, words: str) -> None:
    lines = ran(tmp_path, f"def test_one(bench): raise RuntimeError({words!r})", ["one"], gpus=["a"])

    assert results(lines) == {("a", "one"): ("cannot", f"RuntimeError: {words}")}


def test_a_crash_names_its_test_and_its_last_words(tmp_path: Path) -> None:
    body = """
    def test_one(bench):
        if mine() == "a":
            print("no more memory", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
    """
    lines = ran(tmp_path, body, ["one"])

    assert ends(lines) == {"a": (-11, "", "one"), "b": (0, "", "process exit")}
    assert next(line.text for line in lines if line.what == "end" and line.gpu == "a") == "no more memory"


def test_a_hang_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    """The process ignores SIGTERM, and its child is in the way too."""
    body = f"""
    def test_one(bench):
        if mine() == "a":
            child = subprocess.Popen(["sleep", "600"])
            Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True: signal.pause()
    """
    lines = ran(tmp_path, body, ["one"], hang=1.0)

    assert ends(lines) == {"a": (-9, "hang", "one"), "b": (0, "", "process exit")}
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not os.path.exists(f"/proc/{child}"))


def test_a_process_that_cannot_be_killed_is_said_and_not_waited_for(tmp_path: Path) -> None:
    """A process that waits in a driver; here a pretended kill leaves it."""
    body = f"""
    def no_kill(leaders):
        left = [pid for pid in leaders if not worker.linux.has_ended_before(pid, 0, 0.01)]
        Path({str(tmp_path / "left")!r}).write_text(" ".join(map(str, left)))
        return left
    worker.end_groups = no_kill
    def test_one(bench):
        while True: signal.pause()
    """
    lines = ran(tmp_path, body, ["one"], hang=1.0, gpus=["a"])

    assert ends(lines) == {"a": (None, "hang", "one")}
    left = int((tmp_path / "left").read_text())
    with contextlib.suppress(ProcessLookupError):  # it dies with the worker
        os.kill(left, signal.SIGKILL)


def test_the_end_of_the_budget_ends_everything(tmp_path: Path) -> None:
    body = """
    def test_one(bench):
        while True: signal.pause()
    """
    lines = ran(tmp_path, body, ["one"], end=1.0)

    assert ends(lines) == dict.fromkeys(GPUS, (-9, "budget", "one"))


def test_no_test_begins_after_its_time(tmp_path: Path) -> None:
    lines = ran(tmp_path, "def test_one(bench): pass", ["one"], ["one"], start_until=0.0)

    assert not results(lines)
    # Without tests of their own all GPUs are well, so the group's turn comes, and is too late as well.
    assert {(line.gpu, line.names) for line in lines if line.what == "left"} == {(gpu, ("one",)) for gpu in (*GPUS, "")}


def test_the_ranks_of_a_group_see_all_of_its_devices(tmp_path: Path) -> None:
    body = """
    def test_one(bench): pass
    def test_all(bench, crew):
        bench.tell(f"rank {crew.rank} of {crew.world}")
        if mine() != "a,b": raise HealthError(mine())
    """
    lines = ran(tmp_path, body, ["one"], ["all"])

    assert ends(lines, "group") == dict.fromkeys(GPUS, (0, "", "process exit"))
    assert sorted(line.text for line in lines if line.what == "place") == ["rank 0 of 2", "rank 1 of 2"]


def test_when_a_rank_fails_those_that_wait_for_it_are_ended_soon(tmp_path: Path) -> None:
    body = """
    def test_one(bench): pass
    def test_all(bench, crew):
        if crew.rank == 1: raise HealthError("wrong")
        while True: signal.pause()
    def test_more(bench, crew): pass
    """
    lines = ran(tmp_path, body, ["one"], ["all", "more"])

    assert ends(lines, "group") == {"a": (-9, "others", "all"), "b": (0, "", "process exit")}
    assert [line.names for line in lines if line.what == "left" and line.state == "others"] == [("more",)]


def test_a_gpu_that_has_failed_is_in_no_group(tmp_path: Path) -> None:
    body = """
    def test_one(bench):
        if mine() == "a": raise HealthError("wrong")
    def test_all(bench, crew): bench.figures["world"] = float(crew.world)
    """
    lines = ran(tmp_path, body, ["one"], ["all"], gpus=("a", "b", "c"))

    assert {line.gpu: line.figures for line in lines if line.phase == "group" and line.what == "done"} == {
        gpu: {"world": 2.0} for gpu in ("b", "c")
    }


def test_all_ends_with_the_process_that_has_asked(tmp_path: Path) -> None:
    """Slurm kills a HealthCheckProgram after a minute, and nothing may stay on the GPUs."""
    script = """
import os, subprocess, sys, time
from pathlib import Path
from harness.devices.device import CPU
from harness.ready import active
from harness.ready.quick_tests import Plan
order = active.make_order([CPU], 600, Plan((), {}), sys.argv[1], seed=0, full=False)
def start(command, *_, **__):
    print(subprocess.Popen([sys.executable, "-c", WAITS, *command[3:]]).pid, flush=True)
    time.sleep(600)
active.run_disposable = start
WAITS = '''
import signal, sys
from harness.ready import worker
worker.run_order = lambda order, lines: signal.pause()
worker.main(sys.argv[1:])
'''
active.carry_out(order, Path(sys.argv[1]), os.environ)
"""
    asking = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    worker = int(asking.stdout.readline())
    wait_for(lambda: (tmp_path / "lines.ndjson").exists())
    asking.kill()
    asking.wait()
    asking.stdout.close()
    wait_for(lambda: (linux.describe_process(worker) or linux.GONE).state in "ZX")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("name", "elapsed", "starved", "others", "why"),
    [
        pytest.param("copies", 9.0, 0.0, None, "", id="in time"),
        pytest.param("copies", 11.0, 0.0, None, "hang", id="over its limit"),
        pytest.param("copies", 25.0, 20.0, None, "", id="it had no processor"),
        pytest.param("copies", 31.0, 30.0, None, "hang", id="it had none for three times the limit"),
        pytest.param("context", 19.0, 0.0, None, "", id="the context takes longer"),
        pytest.param("process start", 21.0, 0.0, None, "hang", id="the start of a process"),
        pytest.param("copies", 1.0, 0.0, -1.0, "others", id="another rank has failed"),
        pytest.param("copies", 101.0, 0.0, None, "budget", id="the end of all"),
    ],
)
def test_when_a_process_must_end(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    elapsed: float,
    starved: float,
    others: float | None,
    why: str,
) -> None:
    order = msgspec.convert(
        {
            **dict.fromkeys(("kind", "folder"), ""),
            **dict.fromkeys(("gpus", "solo", "group"), ()),
            **dict.fromkeys(("full", "whole_exit"), False),
            "start_until": 60.0,
            "hang": 10.0,
            "end": 100.0,
            "seed": 0,
        },
        Order,
    )
    monkeypatch.setattr(worker, "_starved", lambda _: starved)
    crowd = worker.Crowd(order, worker.Lines(str(tmp_path / "lines")), 0.0, "solo")
    child = worker.Child(0, "a", name=name, since=0.0)

    assert crowd._objection(child, elapsed, None if others is None else elapsed + others) == why


def test_an_import_of_torch_that_raises_is_said(tmp_path: Path) -> None:
    body = """
    def broken(self): raise OSError("libtorch.so: no such file")
    Backend.import_torch = broken
    """
    lines = ran(tmp_path, body, ["one"])

    assert [(line.what, line.text) for line in lines] == [
        ("failed", "the import of torch raises OSError('libtorch.so: no such file')")
    ]


def test_the_tests_of_arithmetic_pass_on_the_cpu() -> None:
    """With torch's build for the CPU: the code of each is run. What is CUDA's own is skipped."""
    checks, problems = judged(run_active, [CPU], 60.0)

    assert problems == []
    states = {check.name: check.state for check in checks}
    assert {states[name] for name in ("context", "copies", "integers", "memory", "product_fp32", "convolution")} == {
        "ok"
    }
    assert {states[name] for name in ("waits", "pools", "errors", "pairs", "collectives")} == {"skipped"}

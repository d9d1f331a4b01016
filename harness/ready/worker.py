"""The process with the quick tests: it imports torch once, and forks one process per GPU.

A fork costs milliseconds, and an import of torch seconds of a processor: eight at once would take a minute on a busy
host. This process never uses a device, so a sick device cannot hang it; it watches the forks, ends those that hang, and
writes what happened. If it dies, the kernel kills the forks.

As a program: ``python -m harness.ready.worker ORDER LINES``, two files (`harness.ready.quick_tests`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.checks.process import read_waits
from harness.core import linux
from harness.core.disposable import end_groups
from harness.core.text import single_line
from harness.devices.health import HealthError
from harness.ready import quick_tests
from harness.ready.bench import FULL, SMALL, Bench, CannotTestError, LacksError, SlowError
from harness.ready.group import Crew
from harness.ready.quick_tests import MOST_TEXT, Gpu, Line, Order

_PAUSE = 0.01  # seconds between two looks at the forks
#: Errors of CUDA that say nothing about a GPU: other processes have its memory (`memory_accounts` tests that free
#: memory can be had), or have it alone, in an exclusive compute mode.
_TAKEN = ("out of memory", "busy or unavailable")
#: The first test creates the context, which takes long without persistence mode.
_CONTEXT_FACTOR = 2.0
#: A test hangs after this multiple of its limit, even if no processor was free.
_STARVED_FACTOR = 3.0
#: Seconds that the other processes of a group get after one of them has failed.
_OTHERS = 3.0


class Lines:
    """The file of lines. Several processes append to it, each line by one call."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._read = 0

    def write(self, line: Line) -> None:
        """Append a line."""
        os.write(self._descriptor, quick_tests.encode(line))

    def new(self) -> list[Line]:
        """Return the complete lines that were appended since the last call."""
        data = os.pread(self._descriptor, 1 << 20, self._read)
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        return list(quick_tests.decode(data))


@dataclass(slots=True)
class Child:
    """A fork as this process knows it: the test in hand, and since when."""

    pid: int
    gpu: str
    name: str = "process start"
    since: float = field(default_factory=time.monotonic)
    starved_before: float = 0.0
    starved: float = 0.0
    failed: bool = False
    complete: bool = False


def run_order(order: Order, lines: Lines) -> None:
    """Import torch, run the tests of each GPU, then those of all good GPUs together."""
    began = time.monotonic()
    backend = BACKENDS.add(order.kind)
    try:
        torch = backend.import_torch()
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        lines.write(Line(what="failed", text=single_line(f"the import of torch raises {error!r}", MOST_TEXT)))
        return
    lines.write(Line(what="imported", seconds=time.monotonic() - began))
    linux.adopt_orphans()
    if order.fabric is not None:
        _run_fabric(torch, backend, order, order.fabric, began, lines)
        return
    solo = Crowd(order, lines, began, "solo")
    for gpu in order.gpus:
        solo.fork(gpu.uuid, functools.partial(_solo, torch, backend, order, gpu, began, lines))
    good = solo.watch()
    group = [gpu for gpu in order.gpus if gpu.uuid in good]
    if len(group) < 2 or not order.group:
        return
    for number, name in enumerate(order.group):
        if time.monotonic() - began > order.start_until:
            lines.write(Line(what="left", phase="group", names=order.group[number:]))
            return
        crowd = Crowd(order, lines, began, "group")
        folder = Path(order.folder) / f"group-{number}"
        folder.mkdir()
        for rank, gpu in enumerate(group):
            crew = Crew(rank, tuple(each.label for each in group), folder, order.hang)
            member = functools.partial(_member, torch, backend, order, group, rank, crew, name, lines)
            crowd.fork(gpu.uuid, member)
        if len(crowd.watch()) < len(group):
            lines.write(Line(what="left", phase="group", names=order.group[number + 1 :], state="others"))
            return


def _run_fabric(
    torch: Any, backend: Backend, order: Order, fabric: quick_tests.Fabric, began: float, lines: Lines
) -> None:
    """Run the tests of groups with all GPUs of this node, as ranks beside those of other nodes."""
    labels = tuple(f"rank {number}" for number in range(fabric.world))
    for name in order.group:
        crowd = Crowd(order, lines, began, "group")
        for index, gpu in enumerate(order.gpus):
            rank = fabric.first + index
            crew = Crew(rank, labels, Path(order.folder), order.hang, fabric.address, fabric.port)
            member = functools.partial(_member, torch, backend, order, order.gpus, index, crew, name, lines)
            crowd.fork(gpu.uuid, member)
        crowd.watch()


class Crowd:
    """Forks that work at the same time."""

    def __init__(self, order: Order, lines: Lines, began: float, phase: quick_tests.Phase) -> None:
        self._order, self._lines, self._began, self._phase = order, lines, began, phase
        self._children: dict[str, Child] = {}

    def fork(self, gpu: str, body: Callable[[], None]) -> None:
        """Start a process that runs `body`."""
        parent = os.getpid()
        if pid := os.fork():
            self._children[gpu] = Child(pid, gpu)
            return
        _become(parent, self._order, f"{self._phase}-{gpu}", body)

    def watch(self) -> set[str]:
        """Wait for all processes, end those that hang or have no time left; return the GPUs on which all was well."""
        running = dict(self._children)
        others: float | None = None
        while running:
            self._note()
            now = time.monotonic()
            for gpu, child in [*running.items()]:
                if linux.has_ended_before(child.pid, 0.0, _PAUSE):
                    self._note()
                    end_groups([child.pid])
                    self._ended(child)
                    del running[gpu]
            if self._phase == "group" and others is None and any(c.failed for c in self._children.values()):
                others = now + _OTHERS
            hanging = {gpu: why for gpu, child in running.items() if (why := self._objection(child, now, others))}
            if hanging:
                survivors = end_groups([running[gpu].pid for gpu in hanging])
                for gpu, why in hanging.items():
                    child = running.pop(gpu)
                    self._ended(child, why, survived=child.pid in survivors)
            elif running:
                time.sleep(_PAUSE)
        return {gpu for gpu, child in self._children.items() if child.complete and not child.failed}

    def _note(self) -> None:
        for line in self._lines.new():
            child = self._children.get(line.gpu)
            if child is None or line.phase != self._phase:
                continue
            if line.what in ("test", "place"):
                child.since, child.starved_before = time.monotonic(), _starved(child.pid)
                child.name = line.name
            elif line.what == "done":
                child.since, child.starved_before = time.monotonic(), _starved(child.pid)
                child.failed |= line.state in ("wrong", "error", "slow")
            elif line.what == "complete":
                child.complete = True
                child.name = "process exit"

    def _objection(self, child: Child, now: float, others: float | None) -> str:
        """Return why a process must end now; empty if it may go on."""
        if now - self._began > self._order.end:
            return "budget"
        if others is not None and now > others:
            return "others"
        limit = self._order.hang * (_CONTEXT_FACTOR if child.name in ("process start", "context") else 1.0)
        elapsed = now - child.since
        if elapsed < limit:
            return ""
        child.starved = max(0.0, _starved(child.pid) - child.starved_before)
        return "hang" if elapsed - child.starved > limit or elapsed > _STARVED_FACTOR * limit else ""

    def _ended(self, child: Child, why: str = "", *, survived: bool = False) -> None:
        status = None
        if not survived:
            status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if why or status != 0:
            child.failed = True
        self._lines.write(
            Line(
                what="end",
                phase=self._phase,
                gpu=child.gpu,
                name=child.name,
                state=why,
                status=status,
                seconds=time.monotonic() - child.since,
                starved=child.starved,
                text=_last_line(Path(self._order.folder) / f"{self._phase}-{child.gpu}"),
            )
        )


def _starved(pid: int) -> float:
    """Return for how many seconds a process has waited for a processor: the most of its threads. 0 if unknown."""
    return max(read_waits(pid).values(), default=0.0)


def _become(parent: int, order: Order, log: str, body: Callable[[], None]) -> NoReturn:
    """Run the body in this forked process, with its output in a file, and exit."""
    status = 70
    try:
        os.setsid()
        linux.die_with_parent(parent)
        output = os.open(Path(order.folder) / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        body()
        status = 0
    except Exception as error:  # noqa: BLE001 - the parent reads it as the last line of the output
        print(single_line(repr(error), MOST_TEXT), file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if status == 0 and order.whole_exit:
            linux.interpreter_exit(0)  # drivers crash at their end, which counts
        os._exit(status)


def _solo(torch: Any, backend: Backend, order: Order, gpu: Gpu, began: float, lines: Lines) -> None:
    """Run the tests of one GPU, until one of them makes the others useless."""
    os.environ.update(gpu.masks)
    bench = _bench(torch, backend, order, 0)
    useless = False
    for number, name in enumerate(order.solo):
        if time.monotonic() - began > order.start_until:
            lines.write(Line(what="left", gpu=gpu.uuid, names=order.solo[number:]))
            break
        if useless:
            lines.write(Line(what="left", gpu=gpu.uuid, names=(name,), state="after"))
            continue
        state = _one(name, bench, lines, gpu.uuid, "solo", functools.partial(quick_tests.run_test, name, bench))
        useless |= name == quick_tests.FIRST and state not in ("ok", "lacks")
        if state == "error":  # an error of a device stays: the process cannot test more
            lines.write(Line(what="left", gpu=gpu.uuid, names=order.solo[number + 1 :], state="error"))
            break
    lines.write(Line(what="complete", gpu=gpu.uuid))


def _member(
    torch: Any, backend: Backend, order: Order, group: Sequence[Gpu], index: int, crew: Crew, name: str, lines: Lines
) -> None:
    """Run a test of a group as one of its ranks. `group`: the GPUs of this node in it, of which `index` is its own."""
    gpu = group[index]
    os.environ.update(joined_masks([each.masks for each in group]))
    bench = _bench(torch, backend, order, index)
    if backend.torch_type == "cuda":
        torch.cuda.set_device(bench.device)
    bench.tell = lambda place: lines.write(
        Line(what="place", phase="group", gpu=gpu.uuid, name=name, text=place[:MOST_TEXT])
    )
    _one(name, bench, lines, gpu.uuid, "group", functools.partial(quick_tests.run_test, name, bench, crew))
    lines.write(Line(what="complete", phase="group", gpu=gpu.uuid))


def joined_masks(masks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that show a process all of these devices, in order.

    >>> joined_masks([{"CUDA_VISIBLE_DEVICES": "GPU-a"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}])
    {'CUDA_VISIBLE_DEVICES': 'GPU-a,GPU-b'}
    """
    names = dict.fromkeys(name for each in masks for name in each)
    return {name: ",".join(filter(None, (each.get(name, "") for each in masks))) for name in names}


def _bench(torch: Any, backend: Backend, order: Order, index: int) -> Bench:
    if torch.get_num_threads() == 1:
        torch.set_num_threads(1)  # the pool of threads is lost in a fork, and two threads must not replace it at once
    device = torch.device(backend.torch_type, index) if backend.accelerator else torch.device(backend.torch_type)
    return Bench(torch, backend, device, order.seed, FULL if order.full else SMALL)


def _one(name: str, bench: Bench, lines: Lines, gpu: str, phase: quick_tests.Phase, body: Callable[[], None]) -> str:
    """Run a test, write its result, and return its state."""
    lines.write(Line(what="test", phase=phase, gpu=gpu, name=name))
    began, text = time.monotonic(), ""
    try:
        body()
        state = "ok"
    except LacksError as error:
        state, text = "lacks", str(error)
    except CannotTestError as error:
        state, text = "cannot", str(error)
    except SlowError as error:
        state, text = "slow", str(error)
    except HealthError as error:
        state, text = "wrong", str(error)
    except NotImplementedError as error:
        state, text = "lacks", f"torch has no such operator on this device: {error}"
    except Exception as error:  # noqa: BLE001 - every error of CUDA is a RuntimeError; others are just as bad
        state = "cannot" if any(words in str(error).lower() for words in _TAKEN) else "error"
        text = f"{type(error).__name__}: {error}"
    figures, bench.figures = bench.figures, {}
    lines.write(
        Line(
            what="done",
            phase=phase,
            gpu=gpu,
            name=name,
            state=state,
            text=single_line(text, MOST_TEXT),
            seconds=time.monotonic() - began,
            figures=figures,
        )
    )
    return state


def _last_line(log: Path) -> str:
    """Return the last line of a process's output that is not empty."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        written = file.read().decode("utf-8", "backslashreplace").splitlines()
        return single_line(next((line for line in reversed(written) if line.strip()), ""), MOST_TEXT)
    return ""


def main(arguments: Sequence[str]) -> int:
    """Carry out the order in a file. Return 0; what went wrong is in the lines."""
    order = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Order)
    if order.parent:
        linux.die_with_parent(order.parent)
    run_order(order, Lines(arguments[1]))
    return 0


if __name__ == "__main__":
    gc.disable()  # the import of torch takes a tenth longer with it
    sys.exit(main(sys.argv[1:]))

"""What surrounds each case in its process: seeds, the clock of phases, the muted log of torch, the peak memory."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
from collections.abc import Generator

# Imported by name: a case may have replaced the attributes of the modules.
from os import O_WRONLY, close
from os import open as open_file
from os import write as write_to
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from sys import modules

import pytest

from harness.backends.backend import Backend
from harness.core.clock import monotonic, now
from harness.protocol.phase_page import PHASES
from harness.protocol.reports import PhaseTimes


def seed_everything(seed: int, backend: Backend) -> None:
    """Seed the global generators of Python, and of NumPy and torch if they are imported.

    The generators of the `backend`'s devices are seeded too; those of CUDA only once it is initialised. Other device
    kinds are not seeded, since torch would store a stack trace at each call for a device that the process lacks.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        backend.seed(torch, seed)


class PhaseClock:
    """A plugin that writes the times of each phase into pytest's report. Other plugins may change them there."""

    def __init__(self) -> None:
        #: The phase that runs or ran last. Below: its begin, and its duration, None while it runs.
        self.when = PHASES[0]
        self._start = now()
        self._begun = monotonic()
        self._duration: float | None = None

    @property
    def times(self) -> PhaseTimes:
        """The times of the phase that ran last; up to now, if it still runs."""
        duration = monotonic() - self._begun if self._duration is None else self._duration
        return PhaseTimes(duration, self._start, self._start + duration)

    def _measured(self, when: str) -> Generator[None, object, object]:
        self.when, self._duration = when, None
        self._start, self._begun = now(), monotonic()
        try:
            return (yield)
        finally:
            self._duration = monotonic() - self._begun

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        return (yield from self._measured("setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._measured("call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        return (yield from self._measured("teardown"))

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside all other wrappers, which see these times and may change them
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
        report = yield
        if not isinstance(report, pytest.TestReport):
            return report
        times = self.times
        # Only pytest measures a part of a phase, such as a subtest. The part is limited to the time of the phase so
        # far.
        is_part = self._duration is None or call.when != self.when
        if not is_part or not 0.0 <= report.duration <= times.duration:
            report.duration, report.start, report.stop = times
        return report


#: Torch's trace logger, which does not propagate to its parent loggers.
TRACE_LOGGER = "torch.__trace"


class TraceLogMuted:
    """A plugin that removes pytest's log handlers from the trace logger while a case runs.

    pytest (observed with 9.2) attaches handlers to all loggers that do not propagate. Torch writes the trace as soon as
    a handler is attached, whatever the level. The trace takes a fifth of the time of cases that compile, and puts
    hundreds of useless lines into the report of each failure. Handlers of torch itself (`TORCH_TRACE`) or of a case
    stay.
    """

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's wrappers, which attach the handlers
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        remove_pytest_handlers()
        return (yield)

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def remove_pytest_handlers() -> None:
    """Remove pytest's handlers from the trace logger. pytest also removes them at the end of the phase."""
    logger = logging.Logger.manager.loggerDict.get(TRACE_LOGGER)
    if isinstance(logger, logging.Logger):
        for handler in logger.handlers[:]:
            if type(handler).__module__.startswith("_pytest."):
                logger.removeHandler(handler)


#: Writing 5 to this file makes the kernel reset the peak of the process (man 5 proc_pid_clear_refs). It takes 15 µs;
#: reading the peak takes 1 µs.
_RESET = "/proc/self/clear_refs"


class PeakMemory:
    """Measures one case at a time.

    The host's figure is the rise of the process's resident memory above its size at the begin of the case, as the
    kernel counts it: on machines with many cores it may be some MiB too low. The devices' figure is the peak of the
    memory that tensors used in torch's allocator on one device, including memory from before the case. Both are 0 if
    unknown.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before: int | None = None

    def begin(self) -> None:
        """Begin to measure a case."""
        self._before = None
        with contextlib.suppress(OSError):  # a sandbox may forbid it, and a case may have used up all descriptors
            descriptor = open_file(_RESET, O_WRONLY)
            try:
                write_to(descriptor, b"5")
            finally:
                close(descriptor)
            self._before = getrusage(RUSAGE_SELF).ru_maxrss
        torch = modules.get("torch")
        if torch is not None and self._backend.accelerator:
            with contextlib.suppress(Exception):  # an allocator without statistics, or one that a case has replaced
                if self._backend.is_initialized(torch):
                    for index in range(self._backend.device_count(torch)):
                        torch.accelerator.reset_peak_memory_stats(index)

    def host(self) -> int:
        """Return the host's figure so far, in bytes."""
        return 0 if self._before is None else max(0, getrusage(RUSAGE_SELF).ru_maxrss - self._before) * 1024

    def device(self) -> int:
        """Return the devices' figure so far, in bytes."""
        torch = modules.get("torch")
        if torch is None or not self._backend.accelerator:
            return 0
        with contextlib.suppress(Exception):
            if self._backend.is_initialized(torch):
                devices = range(self._backend.device_count(torch))
                return max((int(torch.accelerator.max_memory_allocated(index)) for index in devices), default=0)
        return 0


#: The most snapshots of one executor.
MOST_SNAPSHOTS = 10


def write_allocator_snapshot(folder: Path, number: int) -> None:
    """Write a snapshot into `folder`, or a text that says why there is none. Write nothing if no GPU is in use."""
    path = folder / f"allocator-snapshot-{number}.pickle"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # https://docs.pytorch.org/docs/stable/torch_cuda_memory.html documents this function under its private name.
        torch.cuda.memory._dump_snapshot(str(path))
    except Exception as error:  # noqa: BLE001 - the context may be broken: the case has failed
        path.with_suffix(".txt").write_text(f"{error!r}\n", encoding="utf-8", errors="backslashreplace")

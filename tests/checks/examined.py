"""Cases repeated in forked processes, as an executor repeats them, and the results of the meters for each.

``python -m tests.checks.examined FILE`` collects FILE with pytest, freezes the objects that this creates, and runs each
case in its own child: once on suspicion, then for the counted repetitions.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from harness.checks import growth, origins, trend
from harness.checks.meters import MeterReader, meter_growths, suspicious_growths
from harness.supervisor.leak_confirmation import shared_memory_turn

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of a child for one case: suspicions of the first run, leaks by meter, and their origins."""

    first: dict[str, int]
    leaks: dict[str, str]
    origins: dict[str, list[str]] = field(default_factory=dict)


def examine(folder: Path, source: str) -> dict[str, Examined]:
    """Examine each case of a test file with this source, in its own process."""
    path = folder / "test_cases.py"
    path.write_text(source)
    command = [sys.executable, "-m", "tests.checks.examined", str(path)]
    ran = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600, check=False)
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"case"')]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = {}
    for line in lines:
        values = json.loads(line)
        name = values.pop("case")
        found[name] = Examined(**values)
    return found


class _Repeater:
    """Replaces pytest's run loop."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(name="terminalreporter")
        gc.collect()
        gc.freeze()
        for item in session.items:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                self._child(item)
            _, status = os.waitpid(pid, 0)
            assert status == 0, (item.name, status)
        return True

    def _child(self, item: pytest.Item) -> None:
        status = 1
        try:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["TMPDIR"] = folder
                tempfile.tempdir = None
                with shared_memory_turn(
                    ["shm_files"], over=lambda: False
                ):  # other tests leak shared memory at the same time
                    found = asdict(_examine_here(item, Path(folder)))
            print(json.dumps({"case": item.name, **found}), flush=True)
            status = 0
        finally:
            os._exit(status)


def _examine_here(item: pytest.Item, folder: Path) -> Examined:
    fast = MeterReader("fast", temp=folder)
    before = fast.read()
    item.ihook.pytest_runtest_protocol(item=item, nextitem=item)
    first = suspicious_growths(meter_growths(before, fast.read()))
    full = MeterReader("full", temp=folder)
    repeated = []
    last = full.read()
    for _ in range(trend.WARMUP_REPETITIONS + growth.COUNTED_REPETITIONS):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=item)
        now = full.read()
        repeated.append(meter_growths(last, now))
        last = now
    leaks = {leak.meter: leak.text for leak in growth.confirmed_leaks(first, repeated)}
    return Examined(first, leaks, _origins_here(item, folder, list(leaks)) if leaks else {})


def _origins_here(item: pytest.Item, folder: Path, meters: Sequence[str]) -> dict[str, list[str]]:
    gc.unfreeze()  # the search for holders unfreezes objects, which would then be new
    origins.record_allocation_history(meters)
    since = origins.GrowthOrigins(temp=folder)
    for _ in range(growth.COUNTED_REPETITIONS):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=item)
    return since.of(meters)


if __name__ == "__main__":
    _OFF = ["-p", "no:cacheprovider", "-p", "no:xdist", "-s", "-q", "-c", os.devnull]
    sys.exit(pytest.main([*_OFF, f"--rootdir={Path(sys.argv[1]).parent}", *sys.argv[1:]], plugins=[_Repeater()]))

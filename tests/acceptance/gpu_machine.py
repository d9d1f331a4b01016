"""A machine with fake GPUs that NVML and torch both see, and that fail on demand; and helpers for its runs' records."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness.scheduling.leases import LeaseBoard
from tests import fake_nvml
from tests.acceptance.expected import check_journal, compare_junit
from tests.acceptance.project import Project, Result, Running

#: The UUIDs of the fake GPUs.
GPU = [f"GPU-{number * 4}0000-0000-4000-8000-000000000000" for number in "0123"]
FAKE_TORCH = Path(__file__).with_name("fake_torch.py")

_INI = """\
[pytest]
harness_suites = suites
harness_preload = torch
strict_markers = true
"""

# The first lines of each suite.
_PRELUDE = '''
import os, pathlib, signal, time
import pytest, torch

def gpu():
    """The UUID of our GPU."""
    return os.environ["CUDA_VISIBLE_DEVICES"]

def fares(word, number=1):
    """From now on NVML says so of our GPU."""
    with open(os.environ["FAKE_NVML_STATE"], "a") as file:
        file.write(f"{gpu()[4]} {word} {number}\\n")

def sicken(sickness):
    """From now on our GPU is sick."""
    pathlib.Path(os.environ["FAKE_TORCH"], gpu()).write_text(sickness)

def mark(word):
    pathlib.Path(os.environ["PROBE_DIR"], word).touch()

def await_mark(word):
    while not pathlib.Path(os.environ["PROBE_DIR"], word).exists():
        time.sleep(0.01)

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def hang():
    signal.pause()

def poison():
    torch.cuda.fake_error = "CUDA error: an illegal memory access was encountered"

BREAKS = {"crashed": crash, "timeout": hang, "poisoned": poison}
on_gpu = pytest.mark.requires(device="cuda")
'''


class Machine:
    """A machine with fake GPUs, and a project whose cases run on it."""

    def __init__(self, folder: Path, library: Path, gpus: int = 2) -> None:
        self.project = Project(folder / "project")
        self.project.write("pytest.ini", _INI)
        self.state = fake_nvml.State(folder / "gpus")
        self._sick = folder / "sick"
        self._sick.mkdir()
        # All machines of a session share one folder, since warm processes are reused for the same PYTHONPATH.
        package = library.parent / "fake" / "torch"
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy(FAKE_TORCH, package / "__init__.py")
        made = fake_nvml.environment(library, gpus=gpus, state=self.state)
        self.environ: dict[str, str | None] = {
            **{name: made[name] for name in made if name == "LD_LIBRARY_PATH" or name.startswith("FAKE_NVML_")},
            "CUDA_VISIBLE_DEVICES": None,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")])),
            "FAKE_TORCH": str(self._sick),
            # A leak check could run a case again, and its effect on the device would happen twice.
            "HARNESS_LEAK_CHECK": "off",
        }

    def sicken(self, gpu: int, sickness: str) -> None:
        """Make GPU number `gpu` sick, with a word of fake_torch.py."""
        (self._sick / GPU[gpu]).write_text(sickness)

    def suite(self, source: str, name: str = "test_gpu") -> None:
        """Write a module of cases."""
        self.project.write(f"suites/gpu/{name}.py", _PRELUDE + source)

    def run(self, *arguments: str, **environ: str | None) -> Result:
        return checked(self.project.run(*arguments, env={**self.environ, **environ}))

    def start(self, *arguments: str) -> Running:
        return self.project.start(*arguments, env=self.environ)

    def await_a_waiter(self, running: Running, gpu: int) -> None:
        """Wait until a worker waits for a lease of this GPU."""

        def waits() -> bool:
            boards = self.project.temp.glob("gpu-conformance-leases-*/board.json")
            return any(
                GPU[gpu] in devices
                for path in boards
                for devices in LeaseBoard.from_json(path.read_text()).awaited().values()
            )

        running.wait_for(waits, f"a worker to wait for {GPU[gpu]}")

    def mark(self, word: str) -> None:
        """Create the file that the cases' `await_mark` waits for."""
        (self.project.folder / "probe" / word).touch()


def checked(result: Result) -> Result:
    """Check that journal and report are valid, and that no case began on a drained device; return the run."""
    check_journal(result)
    compare_junit(result, {case: (outcome, "") for case, outcome in result.verdicts.items()})
    drained: set[str] = set()
    for line in result.lines:
        if line["event"] == "device" and line["state"] == "drained":
            drained.add(line["device"])
        assert line["event"] != "start" or not drained & set(line["devices"]), f"{line}\n{result.tail()}"
    return result


def short(case: str) -> str:
    return case.split("::")[-1]


def verdicts(result: Result) -> dict[str, str]:
    return {short(case): outcome for case, outcome in result.verdicts.items()}


def looks(result: Result) -> list[tuple[str, str, str]]:
    """Return the device, the state and the occasion of each event about a device."""
    found = [line for line in result.lines if line["event"] == "device"]
    return [(line["device"], line["state"], line["moment"]) for line in found]


def sick_devices(result: Result) -> list[tuple[str, list[str]]]:
    """Return the message and the cases of each finding; fail if one is not about a sick device."""
    found = result.ledger.findings
    assert {finding.kind for finding in found} <= {"sick_device"}, found
    assert all(f"FINDING sick_device: {finding.message}" in result.terminal for finding in found), result.tail()
    return [(finding.message, [short(case) for case in finding.cases]) for finding in found]


def finishes(result: Result, name: str) -> list[dict[str, Any]]:
    """Return the lines of finished attempts at a case."""
    return [line for line in result.lines if line["event"] == "finish" and short(line["case"]) == name]


def notes(result: Result) -> dict[str, list[str]]:
    """Return the notes about devices, by case."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in result.lines:
        reported = [note for note in line.get("notes", []) if note.startswith("device ")]
        if reported:
            found[short(line["case"])] += reported
    return dict(found)


def shares(result: Result) -> dict[str, set[str]]:
    """Return the workers that ran cases on each device. Fail if two of them had a device at the same time."""
    users: dict[str, str] = {}
    shared: dict[str, set[str]] = defaultdict(set)
    for line in result.lines:
        if line["event"] != "executor":
            continue
        for device in line["devices"]:
            if line["state"] == "started":
                assert device not in users, f"{line['executor']} began beside {users[device]}"
                users[device] = line["executor"]
            else:
                assert users.pop(device) == line["executor"]
                if line["cases"]:
                    shared[device].add(line["worker"])
    assert not users
    return shared


#: Eight cases that each need one GPU.
PLAIN = """
@on_gpu
@pytest.mark.parametrize("n", range(8))
def test_plain(n, device):
    torch.zeros(1, device=device)
"""

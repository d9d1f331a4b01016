"""Run directories of fictitious machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.outcome import Outcome
from tests.journal import journals
from tests.reporting import build

CASES = ("suites/a/test_a.py::one", "suites/a/test_a.py::two", "suites/b/test_b.py::three")
PASSED = dict.fromkeys(CASES, Outcome.PASSED)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run."""

    host: str = "n1"
    device: str = "H100"
    driver: str = "570.1"
    torch: str = "2.13.0"
    uuid: str = ""

    @property
    def chip(self) -> str:
        return self.uuid or f"GPU-{self.host}"


def lines(machine: Machine, outcomes: Mapping[str, Outcome], **changes: Any) -> list[build.Line]:
    """Return the journal of a run with one attempt at each case. `changes` apply to the ``run`` line."""
    devices = [machine.chip]
    ran: list[build.Line] = []
    for case, outcome in outcomes.items():
        more: dict[str, Any] = {"devices": devices}
        if outcome is Outcome.GATED:
            more["gate"] = {"capability": "memory", "wanted": ">=40GiB", "found": "24.0GiB"}
        elif outcome is Outcome.WAIVED:
            more["ruling"] = build.ruling(Outcome.WAIVED, "waived: a known problem")
        elif outcome.is_red:
            more |= {"message": f"{outcome} happened", "reproduce": f"pytest {case} --seed=7"}
        if outcome is Outcome.LOST:
            ran.append(build.start(case, devices=devices))
        elif outcome is not Outcome.NOT_RUN:
            ended = Outcome.FAILED if outcome is Outcome.WAIVED else outcome
            ran += [build.start(case, devices=devices), build.finish(case, ended, **more)]
    identity = {"suite files": f"sha256:{'5' * 64}", **changes.pop("identity", {})}
    head = {"host": machine.host, "devices": devices, "run_id": f"run-of-{machine.host}", "identity": identity}
    red = any(outcome.is_red for outcome in outcomes.values())
    return [
        build.run(**{**head, **changes}),
        build.collected(*outcomes),
        build.executor(devices=devices),
        *ran,
        build.executor(state="ended", exit_status=0),
        build.end(exit_status=int(red)),
    ]


def write(
    folder: Path,
    written: Sequence[build.Line],
    machine: Machine | None = None,
    *,
    tail: bytes = b"",
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run directory with these lines, and with the environment of a machine or the given one."""
    if machine is not None:
        device = {"uuid": machine.chip, "name": machine.device, "kind": "cuda"}
        environment = {"schema": 1, "driver": machine.driver, "versions": {"torch": machine.torch}, "devices": [device]}
    return journals.write_bytes(folder, b"".join(journals.encoded(written)) + tail, environment)


def run(folder: Path, machine: Machine, outcomes: Mapping[str, Outcome] | None = None, **changes: Any) -> Path:
    """Write a run directory of a machine on which these cases had these outcomes; others passed."""
    named = {"run_id": f"run-of-{machine.host}-{folder.name}", **changes}
    return write(folder, lines(machine, {**PASSED, **(outcomes or {})}, **named), machine)


def fleet(folder: Path, number: int = 6, **red: str) -> Path:
    """Write runs on this many hosts, with two kinds of device and two drivers. `red`: the failed case, by host name."""
    for place in range(1, number + 1):
        machine = Machine(f"n{place}", "H100" if place % 2 else "A10", "570.1" if place <= number // 2 else "580.1")
        bad = red.get(machine.host)
        run(folder / machine.host, machine, {} if bad is None else {bad: Outcome.FAILED}, t=1_760_000_000.0 + place)
    return folder

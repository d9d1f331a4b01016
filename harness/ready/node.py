"""``harness ready`` for one node: readings, quick tests, and with a budget of minutes a run of the suites; one report.

This process imports no torch, and calls no driver: everything that may hang is in a disposable process.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness import __version__
from harness.backends import simulation
from harness.backends.table import BACKENDS
from harness.core.errors import HarnessError
from harness.devices import software
from harness.devices.device import Device, Inventory
from harness.ready.judge_node import judge_node
from harness.ready.model import MOST_TEXT, GpuReport, NodeReport, Problem, worst
from harness.ready.passive import MOST_SECONDS, NodeFacts, read_node
from harness.ready.rules import RULES, Findings, Rule, worst_first

if TYPE_CHECKING:
    from harness.gating.profiles import Hardware

#: A budget of so many seconds or more is enough for a run of the suites.
DEEP = 180.0
#: The kinds of devices that can be checked.
KINDS = ("auto", "cuda", "simcuda")
#: The part of a deep budget that the quick tests get, in seconds.
QUICK = 60.0
#: The parts of the stack that come from NVML, by name of the reading; all GPUs of a node should agree.
_FIRMWARE = ("vbios", "inforom", "gsp_firmware")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to check. `budget` is in seconds; `hardware` is a name and the content of a hardware file.

    `folder`: below which a deep check keeps its run directory. `suites`: makes all arguments of pytest from the
    options of such a run.
    """

    budget: float = 60.0
    passive: bool = False
    device: str = "auto"
    hardware: tuple[str, Hardware] | None = None
    inject: tuple[str, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)
    folder: Path = Path("results")
    suites: Callable[[Sequence[str]], list[str]] = list

    @property
    def mode(self) -> str:
        """passive, active or deep."""
        return "passive" if self.passive else "deep" if self.budget >= DEEP else "active"


class ReadyError(HarnessError):
    """The check cannot begin: an option is wrong, or the simulated devices cannot be made."""


@dataclass(frozen=True, slots=True)
class _Devices:
    """The devices to check: the inventory of a simulated machine, or None to ask NVML; variables of its processes."""

    simulated: Inventory | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def check_node(request: Request, tell: Callable[[str], object] = lambda _: None) -> NodeReport:
    """Check this node. `tell` gets a line about each part that takes seconds. Raise HarnessError."""
    began, moment = time.monotonic(), time.time()
    devices = _prepare(request, tell)
    environ = {**os.environ, **devices.variables}
    limit = min(MOST_SECONDS, request.budget)
    try:
        facts = read_node(environ=environ, limit=limit, devices=devices.simulated)
    except OSError as error:
        raise ReadyError(f"the programs that read do not start ({error.strerror or error})") from error
    hardware = None if request.hardware is None else request.hardware[1]
    found = judge_node(facts, request.rules, hardware, real=devices.simulated is None)
    gpus = _testable(facts, found.problems)

    def left() -> float:
        return request.budget - (time.monotonic() - began)

    if not request.passive:
        quick = min(left(), QUICK) if request.mode == "deep" else left()
        if gpus:
            from harness.ready.active import run_active

            tell(f"testing {len(gpus)} devices, for at most {quick:.0f} s")
            run_active(gpus, quick, found, environ=environ, hardware=hardware)
        else:
            found.add("quick_tests", state="skipped", text="no GPU can be tested")
    if request.mode == "deep":
        from harness.ready.deep import run_dcgm, run_suites

        if devices.simulated is None and gpus:
            run_dcgm(request, left(), found, tell)
        run_suites(request, gpus, left(), found, tell)
    return make_report(request, facts, found, moment, time.monotonic() - began)


def _prepare(request: Request, tell: Callable[[str], object]) -> _Devices:
    """Return the devices of the request. Simulated ones are built at their first use, which takes minutes."""
    if request.device not in KINDS:
        raise ReadyError(f"--device={request.device!r}: expected one of {', '.join(KINDS)}")
    if request.device != "simcuda" and simulation.simulated_runtime() is not None:
        raise ReadyError(
            "the CUDA of this process is simulated (harness sim): use --device=simcuda, or leave harness sim"
        )
    _check_faults(request)
    if request.passive and request.inject:
        raise ReadyError("--inject breaks what a device computes, which --passive does not look at: leave one out")
    if request.device != "simcuda" and not request.inject:
        return _Devices()
    from harness.controller import machine
    from harness.sim.interposer import front
    from harness.sim.native import provider

    backend = BACKENDS["simcuda" if request.device == "simcuda" else "cuda"]
    simulated = machine.inventory("simcuda") if request.device == "simcuda" else None
    tell("preparing the simulated devices" if simulated else "preparing the faults")
    provided = provider.provider_of(backend).provide() if backend.provider else None
    provided = front.add_interposer(provided, backend, request.inject, inline=False)
    return _Devices(simulated, provided.variables if provided else {})


def _check_faults(request: Request) -> None:
    """Raise ReadyError for a fault that the kind of device does not have."""
    if not request.inject:
        return
    from harness.sim.native import faults

    kind = "cuda" if request.device == "auto" else request.device
    for text in request.inject:
        try:
            faults.parse_injection(text, kind)
        except faults.InjectionError as error:
            raise ReadyError(f"--inject={text!r}: expected {error}") from None


def _testable(facts: NodeFacts, problems: Iterable[Problem]) -> tuple[Device, ...]:
    """Return the devices on which a test can run: the driver has them, and answered about them."""
    dead = {problem.gpu for problem in problems if problem.check == "device"}
    listed = facts.inventory.accelerators if facts.inventory is not None else ()
    return tuple(device for device in listed if (device.mig_parent or device.uuid) not in dead)


def make_report(request: Request, facts: NodeFacts, found: Findings, moment: float, seconds: float) -> NodeReport:
    """Return the report. Pure but for the names and versions of this machine."""
    problems = worst_first(found.problems)
    return NodeReport(
        host=platform.node() or socket.gethostname(),
        time=moment,
        mode=request.mode,  # type: ignore[arg-type]
        budget=0.0 if request.passive else request.budget,
        seconds=round(seconds, 3),
        verdict=worst(problem.verdict for problem in problems),
        gpus=_gpus(facts, problems),
        problems=problems,
        checks=tuple(found.checks),
        readings=tuple(found.readings),
        stack=_stack(request, facts),
    )


def _gpus(facts: NodeFacts, problems: Sequence[Problem]) -> tuple[GpuReport, ...]:
    """Return the GPUs and their MIG instances. An instance has the verdict of its GPU, if that is worse."""
    if facts.inventory is None:
        return ()
    serials = {gpu.uuid: str(gpu.answers.get("serial") or "") for gpu in facts.gpus}
    reports = []
    for device in facts.inventory.devices:
        if not device.backend.accelerator:
            continue
        uuids = {device.uuid, device.mig_parent} - {None}
        verdict = worst(problem.verdict for problem in problems if problem.gpu in uuids)
        serial = serials.get(device.mig_parent or device.uuid, "")
        reports.append(
            GpuReport(
                uuid=device.uuid,
                index=device.index,
                name=device.name,
                serial=serial,
                pci=device.pci_bus_id or "",
                mig_parent=device.mig_parent,
                verdict=verdict,
            )
        )
    return tuple(reports)


def _stack(request: Request, facts: NodeFacts) -> dict[str, str]:
    """Return versions and limits, by name. A value that is unknown or differs between GPUs is left out or joined."""
    inventory = facts.inventory
    stack = {
        "harness": __version__,
        "kernel": platform.release(),
        "system": _system(),
        "python": platform.python_version(),
        "torch": software.torch_build() or "",
        "cuda": _version(software.torch_cuda_version().value),
        "cudnn": _version(software.wheel_version("nvidia-cudnn").value),
        "nccl": _version(software.wheel_version("nvidia-nccl").value),
        "driver": (inventory.driver or "") if inventory else "",
        "cuda_driver": (inventory.cuda_driver or "") if inventory else "",
        "driver_module": facts.host["driver_module"] if isinstance(facts.host.get("driver_module"), str) else "",
        "hardware": request.hardware[0] if request.hardware else "",
    }
    for name in _FIRMWARE:
        found = {str(gpu.answers[name]) for gpu in facts.gpus if gpu.answers.get(name)}
        stack[name] = ", ".join(sorted(found))
    models = {device.name for device in inventory.accelerators} if inventory else set()
    stack["model"] = ", ".join(sorted(models))
    limits = facts.host.get("limits")
    for name, (soft, hard) in limits.items() if isinstance(limits, dict) else ():
        stack[f"limit_{name}"] = f"{_limit(soft)} (hard {_limit(hard)})"
    return {name: value[:MOST_TEXT] for name, value in stack.items() if value}


def _limit(value: int | None) -> str:
    return "none" if value is None else str(value)


def _version(value: object) -> str:
    return ".".join(map(str, value)) if isinstance(value, tuple) else ""


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""

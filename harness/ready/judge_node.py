"""From everything that was read on a node to checks, problems and readings. Pure functions over plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.devices.device import Device
from harness.devices.gpu_queries import QUERIES
from harness.ready import judge_host
from harness.ready.judge_gpu import GpuFacts, judge_gpu
from harness.ready.model import Reading
from harness.ready.passive import NodeFacts
from harness.ready.rules import Finding, Findings, Rule
from harness.ready.xids import by_gpu, open_xids

if TYPE_CHECKING:
    from harness.gating.hardware import Hardware


def judge_node(
    facts: NodeFacts, rules: Mapping[str, Rule], hardware: Hardware | None = None, *, real: bool = True
) -> Findings:
    """Judge what was read. `real`: False for simulated GPUs, about which the PCI bus and the kernel know nothing."""
    found = Findings(rules, readings=list(_readings(facts)))
    found.add("driver", _driver(facts))
    differences: list[tuple[str | None, Finding]] = []
    if hardware is not None and facts.inventory is not None:
        from harness.ready.judge_hardware import judge_hardware  # takes as long to import as everything else here

        differences = list(judge_hardware(hardware, facts.inventory))
    if hardware is not None:
        found.add("hardware", [finding for gpu, finding in differences if gpu is None])
    for gpu in _with_peers(facts):
        judge_gpu(gpu, found)
        if hardware is not None:
            found.add("hardware", [finding for uuid, finding in differences if uuid == gpu.uuid], gpu.uuid)
    if real:
        _judge_log(facts, found)
    checks = {name: check for name, check in judge_host.HOST_CHECKS.items() if real or name != "pci_bus"}
    judge_host.judge_host(facts.host, facts.host_end.text, found, checks)
    return found


def _driver(facts: NodeFacts) -> Iterator[Finding]:
    for what, end in (("gpus", facts.gpus_end), ("host", facts.host_end)):
        if not end.killable:
            yield Finding("unkillable", "processes that end when they are killed", f"{end.text} (reading the {what})")
    incomplete = facts.gpus_end.text
    if facts.hang:
        yield Finding("driver_hangs", "an answer of the driver", f"none to: {facts.hang}")
    elif incomplete and facts.gpus_end.killable:
        kind = "driver_hangs" if "did not end" in incomplete else "driver_crashes"
        yield Finding(kind, "answers of the driver", incomplete)
    status, text = facts.nvml or (None, "")
    yield from judge_host.judge_driver(status, text, facts.inventory, facts.host)


def _whole_gpus(facts: NodeFacts) -> Iterator[tuple[str, Device]]:
    """Yield the UUID of each GPU, with a device of it: itself, or its MIG instances."""
    for device in facts.inventory.devices if facts.inventory else ():
        yield device.mig_parent or device.uuid, device


def _with_peers(facts: NodeFacts) -> list[GpuFacts]:
    """Return the GPUs, each with the most active NVLinks that a GPU of its model has on this node."""
    models = {uuid: device.name for uuid, device in _whole_gpus(facts)}
    most: dict[str, int] = {}
    for gpu in facts.gpus:
        if isinstance(active := gpu.answers.get("nvlinks_active"), int):
            most[models[gpu.uuid]] = max(active, most.get(models[gpu.uuid], 0))
    return [replace(gpu, answers={**gpu.answers, "nvlinks_most": most.get(models[gpu.uuid], 0)}) for gpu in facts.gpus]


def _judge_log(facts: NodeFacts, found: Findings) -> None:
    log = facts.host.get("log")
    if not isinstance(log, dict) or "lines" not in log:
        why = judge_host.reading_error(facts.host, "log") or facts.host_end.text or "no answer"
        detail = "run as root, or give the container /dev/kmsg"
        finding = Finding("log_unreadable", "the kernel's log since the boot", why, detail)
        found.add("kernel_log", [finding], state="unknown")
        return
    addresses = {uuid: device.pci_bus_id for uuid, device in _whole_gpus(facts) if device.pci_bus_id}
    known, others = by_gpu(open_xids(log["lines"]), addresses)
    for gpu in facts.gpus:
        found.add("xids", judge_host.judge_xids(known.get(gpu.uuid, ())), gpu.uuid)
    of_others = [(xid, finding) for xid in others for finding in judge_host.judge_xids([xid])]
    found.add("kernel_log", [replace(each, found=f"{each.found} (PCI {xid.pci})") for xid, each in of_others])


def _readings(facts: NodeFacts) -> Iterable[Reading]:
    """Yield every reading of the GPUs, and those of the host that are numbers or short texts."""
    for gpu in facts.gpus:
        for query in QUERIES:
            for name in query.names:
                value = gpu.answers.get(name)
                kind, text = gpu.errors.get(query.names[0], ("", ""))
                why = "" if value is not None else text or ("" if kind else "not read")
                yield Reading(name=name, gpu=gpu.uuid, value=value, unit=query.unit(name), text=why)
    host = facts.host
    for name, value, unit in (
        ("uptime", host.get("uptime"), "s"),
        ("shared_memory_size", _part(host, "shared_memory", "size"), "bytes"),
        ("shared_memory_free", _part(host, "shared_memory", "free"), "bytes"),
        ("disk_free", _part(host, "disk", "free"), "bytes"),
        ("clock_synchronised", _part(host, "clock", "synchronised"), ""),
        ("clock_error", _part(host, "clock", "error_us"), "us"),
        ("kernel_log_begins", _part(host, "log", "begins"), "s"),
        ("gpus_on_bus", len(host["pci"]) if isinstance(host.get("pci"), list) else None, "gpus"),
    ):
        yield Reading(name=name, value=value, unit=unit, text="" if value is not None else "not read")


def _part(host: Mapping[str, Any], name: str, part: str) -> Any:
    value = host.get(name)
    return value.get(part) if isinstance(value, dict) else None

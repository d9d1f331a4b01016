"""From what was read on a node (driver, host, kernel's log) to checks, problems, readings. Pure, over plain values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.core.text import format_bytes, format_count, list_first, single_line
from harness.devices.device import Device, Inventory
from harness.devices.health_events import xid_meaning
from harness.devices.nvml import QUERIES
from harness.ready.judge_gpu import GpuFacts, judge_gpu
from harness.ready.model import Reading
from harness.ready.passive import NodeFacts
from harness.ready.rules import Finding, Findings, Rule, unkillable

if TYPE_CHECKING:
    from harness.gating.profiles import Hardware

# Xids and SXids in the kernel's log: whose, which number, and whether something later has settled it. Pure functions.
#
# The form of the lines is that of NVIDIA's catalogue
# (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): ``NVRM: Xid (PCI:0000:3b:00): 79, …``. An Xid
# is settled by a later load of the driver, and by a later line (Xid 154) that says that the driver asks for no action
# on this GPU any more: both follow a reset. SXids are those of NVLink switches; each line says whether it is fatal
# (https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html).

_XID = re.compile(r"^\[ *(?P<time>\d+\.\d+)\] .*\bXid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)\): (?P<xid>\d+)(?P<rest>.*)$")
_SXID = re.compile(
    r"^\[ *(?P<time>\d+\.\d+)\] .*\bSXid \(PCI:(?P<pci>[0-9A-Fa-f:.]+)\): (?P<xid>\d+), "
    r"(?P<rest>(?P<fatal>Fatal|Non-fatal).*)$"
)
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
_RECOVERY_CHANGED = 154
_NO_ACTION = re.compile(r"\bto 0x0\b|\(None\)\s*$")
#: Steps for fatal Xids, if not a reset of the GPU. Source: the catalogue's immediate actions.
_STEPS = {
    54: "xid_vendor",  # the auxiliary power of the board: check the mechanics
    79: "xid_reboot",  # fallen off the bus: restart the machine
    92: "xid_look",  # a high rate of corrected errors
    94: "xid_look",  # contained in one application
    63: "xid_look",  # a row is marked for remapping; `rows_pending` decides
    64: "xid_reset",
    156: "xid_look",  # a part was retired, and the rest works
    167: "xid_reboot",  # the pcie link timed out
}
_REBOOT = re.compile(r"reboot", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Xid:
    """One number that the log reports for one GPU.

    `pci`: the address without the function, lower case, ``0000:3b:00``. `first`, `last`: seconds since the boot.
    `switch`: it is a fatal SXid of an NVLink switch.
    """

    pci: str
    number: int
    count: int
    first: float
    last: float
    text: str
    switch: bool = False

    @property
    def meaning(self) -> str:
        """The number with its meaning: ``Xid 79 (the GPU has fallen off the bus), 2 times``."""
        times = f", {self.count} times" if self.count > 1 else ""
        if self.switch:
            return f"fatal SXid {self.number} of an NVLink switch{times}"
        return f"Xid {self.number} ({xid_meaning(self.number)[0]}){times}"

    @property
    def kind(self) -> str | None:
        """The kind of problem; None for an Xid that says nothing about the GPU, such as an application's error."""
        if self.switch:
            return "sxid"
        if self.number == _RECOVERY_CHANGED:
            if _NO_ACTION.search(self.text):
                return None
            return "xid_reboot" if _REBOOT.search(self.text) else "xid_reset"
        severity = xid_meaning(self.number)[1]
        if severity == "fatal":
            return _STEPS.get(self.number, "xid_reset")
        return "xid_look" if severity == "suspect" else None


def pci_slot(address: str) -> str:
    """Return a PCI address in the form of the log, ``0000:3b:00``: NVML writes ``00000000:3B:00.0``."""
    domain, _, rest = address.partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest.partition('.')[0]}".lower()


def open_xids(lines: Iterable[str]) -> tuple[Xid, ...]:
    """Return the Xids that nothing later has settled, by GPU and number, in the order of their first line."""
    found: dict[tuple[str, int, bool], Xid] = {}
    for line in lines:
        if _LOADED.search(line):
            found.clear()
            continue
        match = _XID.match(line) or _SXID.match(line)
        if match is None or match.groupdict().get("fatal") == "Non-fatal":
            continue
        pci, number, rest = pci_slot(match["pci"]), int(match["xid"]), match["rest"].lstrip(", ").strip()
        moment, switch = float(match["time"]), "fatal" in match.groupdict()
        if number == _RECOVERY_CHANGED and not switch and _NO_ACTION.search(rest):
            found = {key: xid for key, xid in found.items() if key[0] != pci}
            continue
        key = (pci, number, switch)
        before = found.get(key)
        count, first = (1, moment) if before is None else (before.count + 1, before.first)
        found[key] = Xid(pci, number, count, first, moment, rest, switch)
    return tuple(found.values())


def by_gpu(xids: Sequence[Xid], addresses: Mapping[str, str]) -> tuple[dict[str, list[Xid]], list[Xid]]:
    """Return the Xids of each GPU by UUID, and those of no known GPU. `addresses`: PCI address by UUID."""
    slots = {pci_slot(address): uuid for uuid, address in addresses.items()}
    known: dict[str, list[Xid]] = {}
    unknown = []
    for xid in xids:
        if uuid := slots.get(xid.pci):
            known.setdefault(uuid, []).append(xid)
        else:
            unknown.append(xid)
    return known, unknown


_GIB = 1 << 30
#: A worker of a DataLoader passes its tensors through /dev/shm. Docker gives a container 64 MiB.
LEAST_SHARED_MEMORY = 1 * _GIB
LEAST_SHARED_FREE = _GIB // 4
#: With fewer, a job that passes tensors between processes by file descriptors runs out of them.
LEAST_OPEN_FILES = 1024
FULL_DISK, LOW_DISK = _GIB // 4, 2 * _GIB
#: Microseconds. Journals and logs of several nodes are merged by time.
MOST_CLOCK_ERROR = 1_000_000
#: NVML's statuses, from nvml.h.
_DRIVER_NOT_LOADED, _NO_PERMISSION, _LIBRARY_NOT_FOUND, _VERSION_MISMATCH = 9, 4, 12, 18

Host = Mapping[str, Any]


class NotKnownError(Exception):
    """There is no such reading on this machine. The text has the reason."""


def judge_driver(status: int | None, text: str, inventory: Inventory | None, host: Host) -> Iterator[Finding]:
    """Yield what is wrong with the driver as a whole. `status`, `text`: NVML's error at its start; None without one."""
    bus = [gpu for gpu in _listed(host, "pci") if not isinstance(gpu, str)]
    if status == _VERSION_MISMATCH:
        detail = "reload the driver's module, or reboot; a driver was installed without it"
        yield Finding("driver_mismatch", "one version of driver and library", text, detail)
    elif status is not None:
        on_bus = f"; {format_count(len(bus), 'NVIDIA GPU')} on the PCI bus" if bus else "; no NVIDIA GPU on the PCI bus"
        detail = "install NVIDIA's driver, or load its module" if bus else "check that the node has a GPU at all"
        yield Finding("no_driver", "NVIDIA's driver", f"{text}{on_bus}", detail)
    elif inventory is not None and not gpus(inventory) and not inventory.hidden:
        yield Finding("no_gpu", "at least one GPU", inventory.nvml_error or "the driver shows none")
    elif inventory is not None and not gpus(inventory):
        yield Finding("no_gpu", "at least one GPU", f"CUDA_VISIBLE_DEVICES hides all {len(inventory.hidden)}")


def judge_bus(host: Host) -> Iterator[Finding]:
    """Yield the GPUs that are on the PCI bus and do not answer, or that no driver has, while it has others."""
    bus = [gpu for gpu in _listed(host, "pci") if not isinstance(gpu, str)]
    taken = any(gpu["driver"] == "nvidia" for gpu in bus)
    for gpu in bus:
        if not gpu["answers"]:
            yield Finding("gpu_missing", f"an answer of the GPU at {gpu['address']}", "none on the PCI bus")
        elif taken and not gpu["driver"]:
            yield Finding("gpu_missing", f"a driver for the GPU at {gpu['address']}", "none has taken it")


def judge_xids(xids: Iterable[Xid]) -> Iterator[Finding]:
    """Yield the Xids that say something about the GPU."""
    for xid in xids:
        if xid.kind is not None:
            found = f"{xid.meaning} at {xid.last:.0f} s after the boot"
            detail = single_line(xid.text, 300)
            yield Finding(xid.kind, "no Xid of a fault since the boot", found, detail, str(xid.number))


def judge_stuck(host: Host) -> Iterator[Finding]:
    """Yield the processes that do not move."""
    for process in _listed(host, "stuck"):
        where = f" in {process['where']}" if process["where"] else ""
        what = f"process {process['pid']} ({process['name']})"
        if process["killed"]:
            yield unkillable(f"{what} does not end{where}", what)
        else:
            yield Finding("stuck_process", "no process that waits without end", f"{what} waits{where}", what)


def judge_shared_memory(host: Host) -> Iterator[Finding]:
    """Yield whether /dev/shm is too small, or full."""
    space = host["shared_memory"]
    detail = "docker run --shm-size, or a memory volume at /dev/shm"
    if space["size"] < LEAST_SHARED_MEMORY:
        found = format_bytes(space["size"])
        yield Finding("shared_memory", f"/dev/shm of at least {format_bytes(LEAST_SHARED_MEMORY)}", found, detail)
    elif space["free"] < LEAST_SHARED_FREE:
        wanted = f"at least {format_bytes(LEAST_SHARED_FREE)} free in /dev/shm"
        yield Finding("shared_memory", wanted, format_bytes(space["free"]), "remove what ended jobs have left there")


def judge_open_files(host: Host) -> Iterator[Finding]:
    """Yield whether few open files are allowed."""
    soft, hard = host["limits"]["open_files"]
    if soft is not None and soft < LEAST_OPEN_FILES:
        most = "no limit" if hard is None else hard
        yield Finding("open_files", f"at least {LEAST_OPEN_FILES} open files", f"{soft} (hard: {most})", "ulimit -n")


def judge_disk(host: Host) -> Iterator[Finding]:
    """Yield whether the disk for a run's files has room."""
    space = host["disk"]
    found = f"{format_bytes(space['free'])} in {space['folder']}"
    if not space["writable"]:
        yield Finding("disk_full", "a disk that can be written", f"{space['folder']} is read-only")
    elif space["free"] < FULL_DISK:
        yield Finding("disk_full", f"at least {format_bytes(FULL_DISK)} free", found)
    elif space["free"] < LOW_DISK:
        yield Finding("disk_low", f"at least {format_bytes(LOW_DISK)} free", found)


def judge_clock(host: Host) -> Iterator[Finding]:
    """Yield whether the kernel estimates a large error of its clock. Raise NotKnownError if it has no estimate.

    That is the case with time from PTP or the host of a virtual machine. A fleet compares the clocks themselves.
    """
    if not host["clock"]["synchronised"]:
        raise NotKnownError("the kernel has no estimate: nothing tells it that its clock is synchronised")
    if (error := host["clock"]["error_us"]) > MOST_CLOCK_ERROR:
        wanted = f"a clock that is right within {MOST_CLOCK_ERROR / 1e6:g} s"
        yield Finding("clock", wanted, f"an error of {error / 1e6:g} s", "repair chrony or ntpd")


#: The checks of the host: the reading that each needs, and its rule.
HostChecks = Mapping[str, tuple[str, Callable[[Host], Iterator[Finding]]]]
HOST_CHECKS: HostChecks = {
    "pci_bus": ("pci", judge_bus),
    "stuck_processes": ("stuck", judge_stuck),
    "shared_memory": ("shared_memory", judge_shared_memory),
    "open_files": ("limits", judge_open_files),
    "disk": ("disk", judge_disk),
    "clock": ("clock", judge_clock),
}


def judge_host(host: Host, end: str, found: Findings, checks: HostChecks = HOST_CHECKS) -> None:
    """Add the checks of the host and its problems. `end`: why the program that reads has ended early, or ""."""
    for name, (reading, rule) in checks.items():
        why = reading_error(host, reading) or ("" if reading in host else end or "the program that reads has no answer")
        if why:
            unread = Finding("unreadable", f"a reading of {reading.replace('_', ' ')}", why)
            found.add(name, [unread], state="unknown")
            continue
        try:
            findings = list(rule(host))
        except NotKnownError as error:
            found.add(name, state="skipped", text=str(error))
        else:
            found.add(name, findings, text=list_first([finding.found for finding in findings]))


def gpus(inventory: Inventory) -> list[Device]:
    """Return the GPUs, usable or not."""
    return [device for device in inventory.devices if device.backend.accelerator]


def _listed(host: Host, name: str) -> list[Any]:
    value = host.get(name)
    return value if isinstance(value, list) else []


def reading_error(host: Host, name: str) -> str:
    """Return why a reading of the host failed; "" if it did not, or was not made."""
    value = host.get(name)
    return single_line(str(value["error"])) if isinstance(value, dict) and "error" in value else ""


def judge_node(
    facts: NodeFacts, rules: Mapping[str, Rule], hardware: Hardware | None = None, *, real: bool = True
) -> Findings:
    """Judge what was read. `real`: False for simulated GPUs, about which the PCI bus and the kernel know nothing."""
    found = Findings(rules, readings=list(_readings(facts)))
    found.add("driver", _driver(facts))
    differences: list[tuple[str | None, Finding]] = []
    if hardware is not None and facts.inventory is not None:
        from harness.ready.hardware import judge_hardware  # takes as long to import as everything else here

        differences = list(judge_hardware(hardware, facts.inventory))
    if hardware is not None:
        found.add("hardware", [finding for gpu, finding in differences if gpu is None])
    for gpu in _with_peers(facts):
        judge_gpu(gpu, found)
        if hardware is not None:
            found.add("hardware", [finding for uuid, finding in differences if uuid == gpu.uuid], gpu.uuid)
    if real:
        _judge_log(facts, found)
    checks = {name: check for name, check in HOST_CHECKS.items() if real or name != "pci_bus"}
    judge_host(facts.host, facts.host_end.text, found, checks)
    return found


def _driver(facts: NodeFacts) -> Iterator[Finding]:
    for what, end in (("gpus", facts.gpus_end), ("host", facts.host_end)):
        if not end.killable:
            yield unkillable(f"{end.text} (reading the {what})")
    incomplete = facts.gpus_end.text
    if facts.hang:
        yield Finding("driver_hangs", "an answer of the driver", f"none to: {facts.hang}")
    elif incomplete and facts.gpus_end.killable:
        kind = "driver_hangs" if "did not end" in incomplete else "driver_crashes"
        yield Finding(kind, "answers of the driver", incomplete)
    status, text = facts.nvml or (None, "")
    yield from judge_driver(status, text, facts.inventory, facts.host)


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
        why = reading_error(facts.host, "log") or facts.host_end.text or "no answer"
        detail = "run as root, or give the container /dev/kmsg"
        finding = Finding("log_unreadable", "the kernel's log since the boot", why, detail)
        found.add("kernel_log", [finding], state="unknown")
        return
    addresses = {uuid: device.pci_bus_id for uuid, device in _whole_gpus(facts) if device.pci_bus_id}
    known, others = by_gpu(open_xids(log["lines"]), addresses)
    for gpu in facts.gpus:
        found.add("xids", judge_xids(known.get(gpu.uuid, ())), gpu.uuid)
    of_others = [(xid, finding) for xid in others for finding in judge_xids([xid])]
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

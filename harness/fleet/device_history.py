"""The history of each device over many runs, by UUID: how often it ran cases, was red, and was the only red one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.backends.table import labels
from harness.fleet.run import RunSummary

CPU = "cpu"


@dataclass(slots=True)
class DeviceRecord:
    """One device over many runs. Times are seconds since 1970.

    `cases`: the number of cases that ran on it; `red`: how many of these were red. `only_here`: red cases that were
    green on a second device of the same kind; `on_both`: red cases that were red there too. `second`: how often it was
    the second device; `second_red`: how often the case was then red on it. `sick`, `drained`: lines about its health.
    `findings`: by kind, the number of those that name the device, or a case that ran on it.
    """

    device: str
    hosts: set[str] = field(default_factory=set)
    runs: int = 0
    first: float = 0.0
    last: float = 0.0
    cases: int = 0
    red: int = 0
    only_here: int = 0
    on_both: int = 0
    second: int = 0
    second_red: int = 0
    sick: int = 0
    drained: int = 0
    findings: Counter[str] = field(default_factory=Counter)

    @property
    def suspicion(self) -> tuple[int, ...]:
        """The sort key: the most suspicious device comes first."""
        return self.only_here, self.drained, self.sick, self.findings.total(), self.red


@dataclass(slots=True)
class DeviceHistory:
    """The devices of many runs, the most suspicious first. `findings`: findings about no device, by kind."""

    devices: tuple[DeviceRecord, ...]
    findings: Counter[str]

    def as_json(self) -> dict[str, Any]:
        """Return the whole history, as JSON values."""
        devices = [
            {**asdict(record), "hosts": sorted(record.hosts), "findings": _sorted(record.findings)}
            for record in self.devices
        ]
        return {"devices": devices, "findings": _sorted(self.findings)}


def _sorted(findings: Counter[str]) -> dict[str, int]:
    return dict(sorted(findings.items()))


def device_history(runs: Iterable[RunSummary]) -> DeviceHistory:
    """Return the devices of these runs. UUIDs of non-GPU devices are not unique, so the host is added."""
    records: dict[str, DeviceRecord] = {}
    others: Counter[str] = Counter()
    for summary in runs:
        others += _enter(summary, records)
    order = sorted(records.values(), key=lambda record: (*(-number for number in record.suspicion), record.device))
    return DeviceHistory(tuple(order), others)


def _enter(summary: RunSummary, records: dict[str, DeviceRecord]) -> Counter[str]:
    """Record a run. Return its findings that are about no device, by kind."""
    ledger, begun = summary.ledger, summary.ledger.runs
    seen: set[str] = set()

    def of(uuid: str, host: str) -> DeviceRecord:
        name = f"{uuid} on {host}" if uuid == CPU or labels([uuid]) else uuid
        record = records.setdefault(name, DeviceRecord(name, first=begun[0].t, last=begun[0].t))
        record.hosts.add(host)
        record.first, record.last = min(record.first, begun[0].t), max(record.last, begun[-1].t)
        if name not in seen:
            seen.add(name)
            record.runs += 1
        return record

    where: dict[str, str] = {}
    ran_on: dict[str, tuple[str, ...]] = {}
    for verdict in ledger.verdicts:
        decided = verdict.decided
        if decided is None or not verdict.ran:
            continue
        host = where[verdict.case] = decided.host or begun[-1].host
        ran_on[verdict.case] = verdict.devices
        for uuid in verdict.devices:
            record = of(uuid, host)
            record.cases += 1
            record.red += verdict.outcome.is_red
    for event in ledger.second_devices:
        first = of(event.first, where.get(event.case, begun[-1].host))
        first.on_both += event.outcome.is_red
        first.only_here += not event.outcome.is_red
        second = of(event.second, event.host)
        second.second += 1
        second.second_red += event.outcome.is_red
    for line in summary.health:
        record = of(line.device, line.host or begun[-1].host)
        record.sick += line.state == "sick"
        record.drained += line.state == "drained"
    others: Counter[str] = Counter()
    involved = dict.fromkeys([*begun[-1].devices, *(uuid for uuids in ran_on.values() for uuid in uuids)])
    for finding in ledger.findings:
        places = {(uuid, finding.host or begun[-1].host) for uuid in involved if _names(finding.message, uuid)}
        places |= {(uuid, where[case]) for case in finding.cases for uuid in ran_on.get(case, ())}
        for uuid, host in places:
            of(uuid, host).findings[finding.kind] += 1
        others[finding.kind] += not places
    return +others


def _names(message: str, uuid: str) -> bool:
    """Return whether a text names a device. ``cpu`` may also occur as an ordinary word."""
    return uuid != CPU and re.search(rf"(?<![\w-]){re.escape(uuid)}(?![\w-])", message) is not None

"""Xids and SXids in the kernel's log: whose, which number, and whether something later has settled it. Pure functions.

The form of the lines is that of NVIDIA's catalogue
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): ``NVRM: Xid (PCI:0000:3b:00): 79, …``. An Xid
is settled by a later load of the driver, and by a later line (Xid 154) that says that the driver asks for no action on
this GPU any more: both follow a reset. SXids are those of NVLink switches; each line says whether it is fatal
(https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.devices.health_events import xid_meaning

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

"""Xids in lines of the kernel's log: their GPU, what they mean for it, and what settles them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.ready.rules import RULES
from harness.ready.xids import Xid, by_gpu, open_xids, pci_slot


def line(xid: int, seconds: float = 5.0, pci: str = "0000:3b:00", rest: str = "pid=1, name=python") -> str:
    return f"[{seconds:12.6f}] NVRM: Xid (PCI:{pci}): {xid}, {rest}"


LOADED = "[    9.000000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15"
ASKS = line(154, 6.0, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
ASKS_REBOOT = line(154, 6.0, rest="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
SWITCH = "[    5.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, {}, Link 34 sourcetrack timeout error"
ASKS_NOTHING = line(154, 8.0, rest="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ([], []),
        ([line(13)], [None]),
        ([line(31)], [None]),
        ([line(43)], [None]),
        ([line(48)], ["xid_reset"]),
        ([line(62)], ["xid_reset"]),
        ([line(63)], ["xid_look"]),
        ([line(64)], ["xid_reset"]),
        ([line(74)], ["xid_reset"]),
        ([line(79)], ["xid_reboot"]),
        ([line(94)], ["xid_look"]),
        ([line(95)], ["xid_reset"]),
        ([line(109)], ["xid_look"]),
        ([line(119)], ["xid_reset"]),
        ([line(999)], ["xid_look"]),
        ([line(54)], ["xid_vendor"]),
        ([ASKS], ["xid_reset"]),
        ([ASKS_REBOOT], ["xid_reboot"]),
        ([line(48), ASKS, ASKS_NOTHING], []),
        ([line(48), LOADED], []),
        ([LOADED, line(48, 10.0)], ["xid_reset"]),
        ([line(48), line(79, pci="0000:5e:00"), ASKS, ASKS_NOTHING], ["xid_reboot"]),
        ([SWITCH.format("Non-fatal")], []),
        ([SWITCH.format("Fatal")], ["sxid"]),
        ([SWITCH.format("Fatal"), LOADED], []),
        (["[ 1.000000] NVRM: Xid 79 without an address", "no line of the log at all"], []),
    ],
)
def test_what_an_xid_says_about_the_gpu(lines: Sequence[str], kinds: Sequence[str | None]) -> None:
    assert [xid.kind for xid in open_xids(lines)] == kinds


def test_every_kind_has_a_row() -> None:
    kinds = {xid.kind for number in range(1, 200) for xid in open_xids([line(number)])} - {None}
    assert kinds <= {*RULES}
    assert {"xid_reset", "xid_reboot", "xid_vendor", "xid_look"} <= kinds


def test_equal_xids_are_counted() -> None:
    (xid,) = open_xids([line(48, 5.0), line(48, 7.0, rest="again")])
    assert xid == Xid("0000:3b:00", 48, 2, 5.0, 7.0, "again")
    assert xid.meaning == "Xid 48 (uncorrected memory error), 2 times"


@pytest.mark.parametrize(
    ("address", "slot"),
    [("00000000:3B:00.0", "0000:3b:00"), ("0000:3b:00", "0000:3b:00"), ("00010000:01:00.0", "0000:01:00")],
)
def test_the_address_of_nvml_in_the_form_of_the_log(address: str, slot: str) -> None:
    assert pci_slot(address) == slot


def test_xids_by_gpu() -> None:
    xids = open_xids([line(48), line(79, pci="0000:5e:00")])
    known, others = by_gpu(xids, {"GPU-a": "00000000:3B:00.0", "GPU-b": "00000000:01:00.0"})
    assert ([xid.number for xid in known["GPU-a"]], [xid.number for xid in others]) == ([48], [79])

"""The faults that ``--inject`` accepts, as breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.backends.table import BACKENDS
from harness.catalog.catalog import CatalogEntry, collect_catalog
from harness.sim.native import faults
from tests.breaks.breaks import Break, BreakError

SUITES = "suites"


def fault_breaks(device: str, names: Sequence[str], suites: Sequence[str]) -> Mapping[str, Break]:
    """Return the faults of a kind of device, by name. Raise BreakError.

    `names`: only these faults, such as ``slow:0.1``; empty for all. `suites`: their cases; empty for all suites that
    have cases for the device.
    """
    if device not in faults.injectable_kinds():
        raise BreakError(f"--faults={device!r}: expected one of {', '.join(faults.injectable_kinds())}")
    texts = faults.fault_catalogue(device)
    try:
        chosen = [faults.parse_injection(name, device) for name in names or texts]
    except faults.InjectionError as error:
        raise BreakError(f"--only: expected {error}") from None
    cases = tuple(suites or _suites(device))
    made = [Break(str(each), texts[each.name], cases, device=device, fault=str(each)) for each in chosen]
    return {entry.name: entry for entry in made}


def _suites(device: str) -> list[str]:
    """Return the folders of the suites with cases for the device. Raise BreakError if there are none."""
    folders = sorted({f"{SUITES}/{entry.suite}" for entry in collect_catalog([SUITES]) if _is_for(entry, device)})
    if not folders:
        raise BreakError(f"no suite in {SUITES} has cases that require an accelerator: name cases with --suites")
    return folders


def _is_for(entry: CatalogEntry, device: str) -> bool:
    wanted: Sequence[object] = [mark.get(name) for mark in entry.requires for name in ("accelerator", "device")]
    return True in wanted or bool({device, BACKENDS[device].torch_type} & set(wanted))

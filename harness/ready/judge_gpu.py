"""From the readings of one GPU to what is wrong with it. Pure functions over plain values.

`CHECKS` is the table: each check has the readings that it needs and a rule. A reading that failed makes its checks
unknown; a reading that the card does not have makes them skipped. `harness.ready.rules` gives verdict and next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from harness.devices.nvml import QUERY_OF, THROTTLES, Answer
from harness.ready.rules import Finding, Findings

_MIB = 1 << 20
#: Retired pages; a card can retire 64 (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html).
MOST_RETIRED_PAGES = 60
#: Replays a minute on a link that is not healthy: the limit of DCGM's health watch.
MOST_REPLAYS_PER_MINUTE = 8
#: Degrees below the temperature at which the driver slows the clocks.
NEAR_LIMIT = 5
#: Bytes in use on a GPU without a process. Drivers keep some MiB beyond what they report as reserved.
MOST_MEMORY_LEFT = 512 * _MIB
_THERMAL = 0x20 | 0x40
_FABRIC_DONE = 3
_FABRIC_STATES = {1: "it has not begun to join", 2: "it is joining", _FABRIC_DONE: "it has joined"}
#: Parts of the mask of the fabric's health: shift, and the word for the value 1, which is "true" in all of them.
_FABRIC_FAULTS = {0: "degraded bandwidth", 2: "route recovery", 4: "unhealthy route", 6: "access timeout recovery"}
_FABRIC_CONFIGURATION = (8, 0xF)  # shift and mask; 0 and 1 mean that there is none
_COMPUTE_EXCLUSIVE_THREAD, _COMPUTE_PROHIBITED, _COMPUTE_EXCLUSIVE = 1, 2, 3
_RECOVERY = {
    1: ("recovery_reset", "reset the GPU"),
    2: ("recovery_reboot", "reboot the node"),
    3: ("recovery_drain", "drain the GPU's peers"),
    4: ("recovery_drain", "drain the GPU's peers and reset the GPU"),
    5: ("recovery_imex", "recover the IMEX domain"),
    6: ("recovery_reset", "reset the GPU's PCIe bus"),
    7: ("recovery_reboot", "reboot the system"),
}


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What was read of one GPU.

    `answers`: readings by name, with some of the node that the rules compare with. `errors`: kind and text of the
    readings that failed, see `harness.devices.nvml.kind_of_error`. `fault`: why the GPU cannot be used, from
    the inventory. `hang`: the call that did not return.
    """

    uuid: str
    answers: Mapping[str, Answer] = field(default_factory=dict)
    errors: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    fault: str = ""
    hang: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def lost(self) -> tuple[str, str] | None:
        """The error after which the GPU answered no more: "lost" or "reset", and its text."""
        return next((error for error in self.errors.values() if error[0] in ("lost", "reset")), None)


@dataclass(frozen=True, slots=True)
class Check:
    """A rule about some readings. `optional`: readings that it can do without."""

    name: str
    reads: tuple[str, ...]
    rule: Callable[[Mapping[str, Answer]], Iterable[Finding]]
    optional: tuple[str, ...] = ()


Values = Mapping[str, Answer]


def _number(values: Values, name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else 0


def _recovery(values: Values) -> Iterator[Finding]:
    action = _number(values, "recovery_action")
    if action:
        kind, words = _RECOVERY.get(action, ("recovery_reboot", f"action {action}, which this program does not know"))
        yield Finding(kind, "no recovery action", f"the driver asks: {words}")


def _ecc(values: Values) -> Iterator[Finding]:
    if count := _number(values, "ecc_uncorrected"):
        yield Finding("ecc_uncorrected", "no uncorrected memory error since the last reset", f"{count}")


def _rows(values: Values) -> Iterator[Finding]:
    rows = f"{_number(values, 'rows_uncorrectable')} rows remapped after uncorrected errors"
    if values["rows_failed"]:
        yield Finding("rows_failed", "no failed row remapping", f"a row remapping failed; {rows}")
    if values["rows_pending"]:
        yield Finding("rows_pending", "no pending row remapping", f"a row remapping is pending; {rows}")


def _sram(values: Values) -> Iterator[Finding]:
    if values["sram_threshold_exceeded"]:
        count = _number(values, "sram_uncorrected")
        yield Finding("sram_threshold", "fewer uncorrected SRAM errors than the threshold", f"exceeded ({count})")


def _pages_pending(values: Values) -> Iterator[Finding]:
    if values["pages_pending"]:
        yield Finding("pages_pending", "no pending page retirement", "a page retirement is pending")


def _pages_retired(values: Values) -> Iterator[Finding]:
    if (count := _number(values, "pages_retired")) >= MOST_RETIRED_PAGES:
        yield Finding("pages_retired", f"fewer than {MOST_RETIRED_PAGES} retired pages", f"{count}")


def _ecc_mode(values: Values) -> Iterator[Finding]:
    if values["ecc_mode"] != values["ecc_mode_pending"]:
        pending = "on" if values["ecc_mode_pending"] else "off"
        yield Finding("ecc_mode", "no pending change of the ECC mode", f"ECC will be {pending} after a reset")


def _mig_mode(values: Values) -> Iterator[Finding]:
    if values["mig_mode"] != values["mig_mode_pending"]:
        pending = "on" if values["mig_mode_pending"] else "off"
        text = f"MIG mode will be {pending} after a reset"
        yield Finding("mig", "no pending change of the MIG mode", text, "reset the GPU, or undo nvidia-smi -mig")


def _pcie(values: Values) -> Iterator[Finding]:
    width, most = _number(values, "pcie_width"), _number(values, "pcie_width_max")
    if width < most:
        yield Finding("pcie_width", f"{most} PCIe lanes", f"{width}", "reseat the card or its riser")
    generation, newest = _number(values, "pcie_generation"), _number(values, "pcie_generation_max")
    # A GPU that saves power also slows its link. In the performance state P0 it does not.
    if generation < newest and values.get("performance_state") == 0:
        yield Finding("pcie_generation", f"PCIe generation {newest}", f"{generation} in performance state P0")


def _replays(values: Values) -> Iterator[Finding]:
    yield from _rate(values, "pcie_replays", "pcie_replays", "PCIe replays")


def _rate(values: Values, name: str, kind: str, words: str) -> Iterator[Finding]:
    minutes = max(1.0, float(values.get("uptime_minutes") or 0))
    count = _number(values, name)
    if count / minutes > MOST_REPLAYS_PER_MINUTE:
        found = f"{count} in {minutes:.0f} min"
        yield Finding(kind, f"at most {MOST_REPLAYS_PER_MINUTE} {words} a minute since the boot", found)


def _nvlink(values: Values) -> Iterator[Finding]:
    active, most = _number(values, "nvlinks_active"), _number(values, "nvlinks_most")
    if active < most:
        down = values.get("nvlinks_inactive")
        detail = f"links {down} are down" if down else ""
        yield Finding("nvlink_down", f"{most} active NVLinks, as other GPUs of the node have", f"{active}", detail)
    if recoveries := _number(values, "nvlink_recoveries"):
        yield Finding("nvlink_errors", "no NVLink recovery", f"{recoveries}")
    yield from _rate(values, "nvlink_replays", "nvlink_errors", "NVLink replays")


def _fabric(values: Values) -> Iterator[Finding]:
    state, status = _number(values, "fabric_state"), _number(values, "fabric_status")
    if not state:
        return  # the card has no fabric
    if state != _FABRIC_DONE or status:
        found = f"NVML status {status}" if state == _FABRIC_DONE else _FABRIC_STATES.get(state, f"state {state}")
        detail = "start or repair the fabric manager (nvidia-fabricmanager)"
        yield Finding("fabric", "the GPU has joined its NVLink fabric", found, detail)
        return
    mask = _number(values, "fabric_health")
    faults = [words for shift, words in _FABRIC_FAULTS.items() if mask >> shift & 3 == 1]
    shift, part = _FABRIC_CONFIGURATION
    if (configuration := mask >> shift & part) > 1:
        faults.append(f"incorrect configuration {configuration}")
    if faults:
        yield Finding("fabric_health", "a healthy NVLink fabric", ", ".join(faults))


def _throttling(values: Values) -> Iterator[Finding]:
    reasons = _number(values, "throttle_reasons")
    degrees = "" if values.get("temperature") is None else f" at {values['temperature']} °C"
    for kind, bits in (("thermal", _THERMAL), ("power_brake", 0x08 | 0x80)):
        if words := [word for bit, word in THROTTLES.items() if bit & bits & reasons]:
            yield Finding(kind, "clocks that no fault slows down", f"{', '.join(words)}{degrees}")


def _temperature(values: Values) -> Iterator[Finding]:
    now, limit = _number(values, "temperature"), _number(values, "temperature_limit")
    if limit and now > limit - NEAR_LIMIT:
        yield Finding("temperature", f"at most {limit - NEAR_LIMIT} °C ({NEAR_LIMIT} below the slowdown)", f"{now} °C")


def _power_limit(values: Values) -> Iterator[Finding]:
    limit, default = _number(values, "power_limit"), _number(values, "power_limit_default")
    if limit < default:
        yield Finding("power_limit", f"a power limit of {default} W", f"{limit} W", f"nvidia-smi -pl {default}")


def _application_clock(values: Values) -> Iterator[Finding]:
    clock, default = _number(values, "application_clock"), _number(values, "application_clock_default")
    if clock < default:
        yield Finding("clocks", f"an application clock of {default} MHz", f"{clock} MHz", "nvidia-smi -rac")


def _persistence(values: Values) -> Iterator[Finding]:
    if not values["persistence"]:
        yield Finding("persistence", "persistence mode", "off", "start nvidia-persistenced, or nvidia-smi -pm 1")


def _compute_mode(values: Values) -> Iterator[Finding]:
    mode = values["compute_mode"]
    if mode == _COMPUTE_PROHIBITED:
        yield Finding("compute_mode", "compute mode default", "prohibited", "nvidia-smi -c DEFAULT")
    elif mode in (_COMPUTE_EXCLUSIVE, _COMPUTE_EXCLUSIVE_THREAD):
        yield Finding("exclusive", "compute mode default", "exclusive", "nvidia-smi -c DEFAULT")


def _processes(values: Values) -> Iterator[Finding]:
    if count := _number(values, "processes"):
        yield Finding(
            "processes", "no process on the GPU", f"{count}", f"processes {values.get('process_names') or ''}"
        )


def _memory(values: Values) -> Iterator[Finding]:
    used = _number(values, "memory_used")
    # In a container, NVML may hide the processes of others.
    if used > MOST_MEMORY_LEFT and values["processes"] == 0 and values.get("all_processes"):
        found = f"{used // _MIB} MiB in use without a process"
        yield Finding("memory_left", f"at most {MOST_MEMORY_LEFT // _MIB} MiB in use", found)


#: All checks of one GPU, in the order of the report.
CHECKS: tuple[Check, ...] = (
    Check("recovery", ("recovery_action",), _recovery),
    Check("memory_errors", ("ecc_uncorrected",), _ecc),
    Check("row_remapping", ("rows_failed", "rows_pending"), _rows, ("rows_uncorrectable",)),
    Check("sram_errors", ("sram_threshold_exceeded",), _sram, ("sram_uncorrected",)),
    Check("page_retirement", ("pages_pending",), _pages_pending),
    Check("retired_pages", ("pages_retired",), _pages_retired),
    Check("ecc_mode", ("ecc_mode", "ecc_mode_pending"), _ecc_mode),
    Check("mig_mode", ("mig_mode", "mig_mode_pending"), _mig_mode),
    Check(
        "pcie_link",
        ("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"),
        _pcie,
        ("performance_state",),
    ),
    Check("pcie_replays", ("pcie_replays",), _replays),
    Check("nvlink", ("nvlinks_active",), _nvlink),
    Check("fabric", ("fabric_state", "fabric_status", "fabric_health"), _fabric),
    Check("throttling", ("throttle_reasons",), _throttling, ("temperature",)),
    Check("temperature", ("temperature", "temperature_limit"), _temperature),
    Check("power_limit", ("power_limit", "power_limit_default"), _power_limit),
    Check("application_clock", ("application_clock", "application_clock_default"), _application_clock),
    Check("persistence", ("persistence",), _persistence),
    Check("compute_mode", ("compute_mode",), _compute_mode),
    Check("processes", ("processes",), _processes),
    Check("memory_left", ("memory_used", "processes"), _memory),
)


def judge_gpu(facts: GpuFacts, found: Findings) -> None:
    """Add the checks of one GPU and its problems."""
    own = list(_device(facts))
    found.add("device", own, facts.uuid)
    values = _values(facts)
    for check in CHECKS:
        # One cause is one problem: what a lost or hanging GPU did not answer is unknown, and no problem of its own.
        _judge(check, facts, values, found, explained=bool(own))


def _device(facts: GpuFacts) -> Iterator[Finding]:
    lost = facts.lost
    if facts.hang:
        yield Finding("driver_hangs", "an answer of the driver", f"none to: {facts.hang}")
    elif lost is not None:
        kind = "reset_required" if lost[0] == "reset" else "gpu_lost"
        yield Finding(kind, "a GPU that answers", lost[1])
    elif facts.fault:
        yield Finding("mig" if "MIG" in facts.fault.split(":")[0] else "gpu_lost", "a usable GPU", facts.fault)


def _values(facts: GpuFacts) -> dict[str, Answer]:
    """Return the answers, with names for the processes."""
    pids = str(facts.answers.get("process_ids") or "").split()
    named = ", ".join(f"{pid} ({facts.names[pid]})" if facts.names.get(pid) else pid for pid in pids)
    return {**facts.answers, "process_names": named}


def _judge(check: Check, facts: GpuFacts, values: Values, found: Findings, *, explained: bool) -> None:
    failed = [(name, _why(name, facts)) for name in check.reads if values.get(name) is None]
    if open_ := [(name, text) for name, (kind, text) in failed if kind != "absent"]:
        text = "; ".join(dict.fromkeys(text for _, text in open_))
        unread = Finding("unreadable", f"a reading of {', '.join(name for name, _ in open_)}", text)
        found.add(check.name, [] if explained else [unread], facts.uuid, state="unknown", text=text)
    elif failed:
        found.add(check.name, gpu=facts.uuid, state="skipped", text="this card or driver does not have it")
    else:
        found.add(check.name, check.rule(values), facts.uuid)


def _why(name: str, facts: GpuFacts) -> tuple[str, str]:
    """Return why there is no reading: the kind of the error, and its text."""
    query = QUERY_OF.get(name)
    for sibling in query.names if query else (name,):
        if sibling in facts.errors:
            return facts.errors[sibling]
    if lost := facts.lost:
        return "failed", f"not asked: {lost[1]}"
    return "failed", f"not asked: no answer to: {facts.hang}" if facts.hang else "the program that reads has no answer"

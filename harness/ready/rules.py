"""From the kind of a problem to a verdict and one next step: the table.

The rows about errors of GPUs follow NVIDIA's documents, which each row names. Where these leave the step open, the row
takes the least step after which the GPU can be trusted. A file replaces rows, see
`harness.ready.steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from harness.core.text import single_line
from harness.ready.model import MOST_TEXT, CheckRun, Problem, Reading, Step, Verdict

XID_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
DEBUG_GUIDELINES = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html"
ROW_REMAPPING = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html"
RECOVERY_FLAGS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"
RMA_POLICY = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/rma-policy-thresholds-for-row-remapping.html"
PAGE_RETIREMENT = "https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html"
NVML = "https://docs.nvidia.com/deploy/nvml-api/"
FABRIC_MANAGER = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
PERSISTENCE = "https://docs.nvidia.com/deploy/driver-persistence/index.html"
TORCH_DATA = "https://docs.pytorch.org/docs/stable/data.html"
KERNEL_LOG = "https://docs.kernel.org/admin-guide/sysctl/kernel.html#dmesg-restrict"
PROC = "https://man7.org/linux/man-pages/man5/proc_pid_status.5.html"
ADJTIMEX = "https://man7.org/linux/man-pages/man2/adjtimex.2.html"
RUNTIME = "https://docs.nvidia.com/cuda/cuda-runtime-api/index.html"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
DCGM = "https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/errors.html"
OWN = "docs/ready.md"


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table. `text`: the problem in a few words, for the documentation."""

    verdict: Verdict
    step: Step
    text: str
    source: str


_BAD, _WORSE, _OPEN = Verdict.NOT_READY, Verdict.DEGRADED, Verdict.UNKNOWN

#: Kinds of problems by subject. The order within the table is that of the documentation.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        # the driver and the devices that it shows
        "no_driver": Rule(_BAD, Step.FIX_CONFIGURATION, "NVIDIA's driver is not loaded", DEBUG_GUIDELINES),
        "driver_mismatch": Rule(_BAD, Step.REBOOT, "driver and its library have different versions", NVML),
        "no_gpu": Rule(_BAD, Step.LOOK, "the driver shows no GPU", DEBUG_GUIDELINES),
        "gpu_missing": Rule(
            _BAD, Step.REBOOT, "fewer GPUs than the PCI bus or the hardware file has", DEBUG_GUIDELINES
        ),
        "gpu_lost": Rule(_BAD, Step.REBOOT, "the driver has lost the GPU", XID_CATALOGUE),
        "reset_required": Rule(_BAD, Step.RESET_GPU, "the driver says that the GPU needs a reset", NVML),
        "driver_hangs": Rule(_BAD, Step.REBOOT, "the driver does not answer", DEBUG_GUIDELINES),
        "driver_crashes": Rule(
            _BAD, Step.REBOOT, "the driver's library ends the process that asks it", DEBUG_GUIDELINES
        ),
        "hardware": Rule(_BAD, Step.FIX_CONFIGURATION, "not what the hardware file says", OWN),
        "mig": Rule(_BAD, Step.FIX_CONFIGURATION, "MIG instances are missing, or a change of mode is pending", NVML),
        # what the driver asks for
        "recovery_reset": Rule(_BAD, Step.RESET_GPU, "the driver asks for a reset of the GPU", RECOVERY_FLAGS),
        "recovery_reboot": Rule(_BAD, Step.REBOOT, "the driver asks for a reboot", RECOVERY_FLAGS),
        "recovery_drain": Rule(_BAD, Step.RESET_GPU, "the driver asks to drain the GPU and its peers", RECOVERY_FLAGS),
        "recovery_imex": Rule(_BAD, Step.LOOK, "the driver asks to recover the IMEX domain", RECOVERY_FLAGS),
        # memory
        "ecc_uncorrected": Rule(_BAD, Step.RESET_GPU, "uncorrected memory errors since the last reset", XID_CATALOGUE),
        "rows_failed": Rule(_BAD, Step.VENDOR_TICKET, "a row remapping failed", RMA_POLICY),
        "rows_pending": Rule(_BAD, Step.RESET_GPU, "a row remapping waits for a reset", ROW_REMAPPING),
        "sram_threshold": Rule(_BAD, Step.VENDOR_TICKET, "too many uncorrected SRAM errors", RMA_POLICY),
        "pages_pending": Rule(_BAD, Step.RESET_GPU, "a page retirement waits for a reset", PAGE_RETIREMENT),
        "pages_retired": Rule(_WORSE, Step.VENDOR_TICKET, "nearly all of 64 possible retired pages", ROW_REMAPPING),
        "ecc_mode": Rule(_WORSE, Step.RESET_GPU, "a change of the ECC mode waits for a reset", NVML),
        # Xids of the kernel's log
        "xid_reset": Rule(_BAD, Step.RESET_GPU, "an Xid after which the GPU needs a reset", XID_CATALOGUE),
        "xid_reboot": Rule(_BAD, Step.REBOOT, "an Xid after which the node needs a reboot", XID_CATALOGUE),
        "xid_vendor": Rule(_BAD, Step.VENDOR_TICKET, "an Xid of broken hardware", XID_CATALOGUE),
        "xid_look": Rule(_WORSE, Step.LOOK, "an Xid that may be harmless or not", XID_CATALOGUE),
        "sxid": Rule(_BAD, Step.REBOOT, "a fatal error of an NVLink switch", FABRIC_MANAGER),
        "log_unreadable": Rule(_OPEN, Step.FIX_CONFIGURATION, "the kernel's log cannot be read", KERNEL_LOG),
        # links
        "pcie_width": Rule(_WORSE, Step.LOOK, "the PCIe link has fewer lanes than it can have", DEBUG_GUIDELINES),
        "pcie_generation": Rule(_WORSE, Step.LOOK, "the PCIe link is slower than it can be", DEBUG_GUIDELINES),
        "pcie_replays": Rule(_WORSE, Step.LOOK, "many PCIe replays", NVML),
        "nvlink_down": Rule(_BAD, Step.RESET_GPU, "an NVLink is down, and others of the GPU are up", XID_CATALOGUE),
        "nvlink_errors": Rule(_WORSE, Step.LOOK, "an NVLink counts replays or recoveries", NVML),
        "fabric": Rule(_BAD, Step.FIX_CONFIGURATION, "the GPU has not joined its NVLink fabric", FABRIC_MANAGER),
        "fabric_health": Rule(_BAD, Step.LOOK, "the NVLink fabric reports a fault", FABRIC_MANAGER),
        # speed
        "thermal": Rule(_WORSE, Step.LOOK, "the clocks are slowed by heat", NVML),
        "power_brake": Rule(_WORSE, Step.LOOK, "the clocks are slowed by the power supply or by hardware", NVML),
        "temperature": Rule(_WORSE, Step.LOOK, "the GPU is near the temperature at which it slows down", NVML),
        "power_limit": Rule(_WORSE, Step.FIX_CONFIGURATION, "the power limit is below the default", NVML),
        "clocks": Rule(_WORSE, Step.FIX_CONFIGURATION, "the clocks are limited by a setting", NVML),
        # settings
        "persistence": Rule(_WORSE, Step.FIX_CONFIGURATION, "persistence mode is off", PERSISTENCE),
        "compute_mode": Rule(_BAD, Step.FIX_CONFIGURATION, "the compute mode forbids processes", NVML),
        "exclusive": Rule(_WORSE, Step.FIX_CONFIGURATION, "the compute mode allows one process only", NVML),
        # what others have left
        "processes": Rule(_WORSE, Step.END_PROCESSES, "processes use the GPU", OWN),
        "memory_left": Rule(_WORSE, Step.RESET_GPU, "memory is in use, and no process has it", OWN),
        "unkillable": Rule(_BAD, Step.REBOOT, "a process cannot be killed", PROC),
        "stuck_process": Rule(_WORSE, Step.LOOK, "a process waits in the kernel and does not move", PROC),
        # the host
        "shared_memory": Rule(_WORSE, Step.FIX_CONFIGURATION, "/dev/shm is small or nearly full", TORCH_DATA),
        "open_files": Rule(_WORSE, Step.FIX_CONFIGURATION, "few open files are allowed", TORCH_DATA),
        "disk_full": Rule(_BAD, Step.LOOK, "the disk for temporary files is full", OWN),
        "disk_low": Rule(_WORSE, Step.LOOK, "the disk for temporary files is nearly full", OWN),
        "clock": Rule(_WORSE, Step.FIX_CONFIGURATION, "the kernel estimates a large error of its clock", ADJTIMEX),
        # checks
        "unreadable": Rule(_OPEN, Step.LOOK, "a reading failed", OWN),
        "cannot_run": Rule(_OPEN, Step.LOOK, "a test could not run", OWN),
        "wrong_result": Rule(_BAD, Step.RESET_GPU, "a test got a wrong result", DEBUG_GUIDELINES),
        "device_error": Rule(_BAD, Step.RESET_GPU, "a test got an error of the device", DEBUG_GUIDELINES),
        "crash": Rule(_BAD, Step.LOOK, "a test's process was ended by a signal", DEBUG_GUIDELINES),
        "hang": Rule(_BAD, Step.RESET_GPU, "a test did not end in time", DEBUG_GUIDELINES),
        "driver_contract": Rule(_BAD, Step.REBOOT, "the driver breaks a promise of its interface", RUNTIME),
        "wrong_peer": Rule(_BAD, Step.LOOK, "a copy between two GPUs is wrong", DEBUG_GUIDELINES),
        "wrong_collective": Rule(_BAD, Step.LOOK, "a collective of all GPUs is wrong, or takes far too long", NCCL),
        "group_hang": Rule(_BAD, Step.LOOK, "a test of several GPUs together did not end in time", NCCL),
        "far_too_slow": Rule(_BAD, Step.RESET_GPU, "a test took longer than on any host", OWN),
        "slow": Rule(_WORSE, Step.LOOK, "a test was slower than its floor, or than the other GPUs", OWN),
        "dcgm": Rule(_BAD, Step.LOOK, "a test of NVIDIA's dcgmi diag failed", DCGM),
        "suites": Rule(_BAD, Step.LOOK, "cases of the suites are red", OWN),
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found wrong, before the table has rated it. `kind`: a key of `RULES`. `code`: of the Xid."""

    kind: str
    wanted: str
    found: str
    detail: str = ""
    code: str = ""


State = Literal["ok", "problem", "unknown", "skipped"]


@dataclass(slots=True)
class Findings:
    """The checks, problems and readings of a node, as they are collected. `rules`: the table that rates problems."""

    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES)
    checks: list[CheckRun] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    def add(
        self,
        check: str,
        findings: Iterable[Finding] = (),
        gpu: str | None = None,
        *,
        state: State | None = None,
        text: str = "",
        seconds: float = 0.0,
        **measured: Any,
    ) -> None:
        """Add a check with what it found. `state`, `text`: by default those of the findings."""
        found = [self.problem(check, finding, gpu) for finding in findings]
        text = single_line(text or "; ".join(problem.found for problem in found), MOST_TEXT)
        state = state or ("problem" if found else "ok")
        self.checks.append(CheckRun(name=check, gpu=gpu, state=state, text=text, seconds=seconds, **measured))

    def problem(self, check: str, finding: Finding, gpu: str | None = None) -> Problem:
        """Add a problem without a check of its own, with what its row of the table says. Return it."""
        rule = self.rules[finding.kind]
        made = Problem(
            check=check,
            gpu=gpu,
            verdict=rule.verdict,
            step=rule.step,
            source=rule.source,
            **{name: text[:MOST_TEXT] for name, text in asdict(finding).items()},
        )
        self.problems.append(made)
        return made


def unkillable(what: str, detail: str = "") -> Finding:
    """Return the finding about a process that does not end when it is killed."""
    return Finding("unkillable", "processes that end when they are killed", what, detail)


#: Of problems with one verdict, that with the step which costs most comes first: it makes the others superfluous.
_WEIGHT = (
    Step.VENDOR_TICKET,
    Step.REBOOT,
    Step.RESET_GPU,
    Step.END_PROCESSES,
    Step.FIX_CONFIGURATION,
    Step.LOOK,
    Step.NOTHING,
)


def worst_first(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems in the order of their verdict, and then of their step, those of the node before its GPUs."""
    return tuple(
        sorted(problems, key=lambda each: (-each.verdict.severity, _WEIGHT.index(each.step), each.gpu is not None))
    )

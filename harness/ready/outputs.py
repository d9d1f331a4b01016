"""The report in words: one line, lines for people, a line for Nagios, and Prometheus' text format. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.core.text import format_count, inert_line
from harness.ready.model import GpuReport, NodeReport, Problem, Reading, Verdict, worst

if TYPE_CHECKING:
    from harness.reporting.prometheus import Labels

#: The longest line for ``Reason=``: `sinfo -R` and logs cut longer ones.
MOST_REASON = 200
_NAGIOS = {Verdict.READY: 0, Verdict.DEGRADED: 1, Verdict.NOT_READY: 2, Verdict.UNKNOWN: 3}
_NAGIOS_WORDS = {0: "OK", 1: "WARNING", 2: "CRITICAL", 3: "UNKNOWN"}


def reason(report: NodeReport) -> str:
    """Return the verdict on one line of ASCII without double quotes, at most 200 characters.

    The worst problem comes first, then the next step: ``not ready: GPU 3: row_remapping: a row remapping failed; next:
    open a ticket with the vendor; 2 more problems``.
    """
    # A file of steps may have declared a kind of problem harmless.
    problems = [problem for problem in report.problems if problem.verdict is not Verdict.READY]
    if not problems:
        return f"{report.verdict.text}: {_counted(report)}"
    first, more = problems[0], len(problems) - 1
    tail = f"; next: {first.step.text}" + (f"; {format_count(more, 'more problem')}" if more else "")
    head = f"{report.verdict.text}: {_where(first, report)}{first.check}: {first.found}"
    plain = inert_line(f"{head}").encode("ascii", "replace").decode().replace('"', "'")
    room = MOST_REASON - len(tail)
    return (plain if len(plain) <= room else f"{plain[: room - 3]}...") + tail


def _counted(report: NodeReport) -> str:
    skipped = sum(run.state == "skipped" for run in report.checks)
    return (
        f"{format_count(len(report.gpus), 'GPU')}, {format_count(len(report.checks) - skipped, 'check')} "
        f"({report.mode}) in {report.seconds:.1f} s"
    )


def _where(problem: Problem, report: NodeReport) -> str:
    gpu = next((gpu for gpu in report.gpus if gpu.uuid == problem.gpu), None)
    if gpu is not None and gpu.index is not None:
        return f"GPU {gpu.index}: "
    return f"{problem.gpu}: " if problem.gpu else ""


def lines(report: NodeReport, *, verbose: bool) -> Iterator[tuple[str, Verdict | None]]:
    """Yield the report for people, each line with the verdict that it is about. The worst GPU comes first.

    Problems that are the same on several GPUs follow the lines of all of them.
    """
    of_node = [problem for problem in report.problems if problem.gpu not in {gpu.uuid for gpu in report.gpus}]
    if of_node or not report.gpus:
        verdict = worst(problem.verdict for problem in of_node)
        yield f"{verdict.text:9}  node {report.host}", verdict
        yield from _problems(of_node)
    of = {gpu.uuid: [problem for problem in report.problems if problem.gpu == gpu.uuid] for gpu in report.gpus}
    groups: dict[tuple[str, ...], list[GpuReport]] = {}
    for gpu in sorted(report.gpus, key=lambda each: (-each.verdict.severity, each.index or 0)):
        groups.setdefault((gpu.verdict.value, *(line for line, _ in _problems(of[gpu.uuid]))), []).append(gpu)
    for gpus in groups.values():
        for gpu in gpus:
            serial = f", serial {gpu.serial}" if gpu.serial else ""
            number = "" if gpu.index is None else f" {gpu.index}"
            yield f"{gpu.verdict.text:9}  GPU{number} ({gpu.name}, {gpu.uuid}{serial})", gpu.verdict
        yield from _problems(of[gpus[0].uuid])
    # What was not looked at within the budget is named, so that nobody takes it for good.
    if left := sorted({run.name for run in report.checks if run.left_out}):
        yield f"not tried within {report.budget:g} s: {', '.join(left)}", None
    if verbose:
        yield from ((line, None) for line in _everything(report))


def _problems(problems: Sequence[Problem]) -> Iterator[tuple[str, Verdict | None]]:
    for problem in problems:
        detail = f" ({problem.detail})" if problem.detail else ""
        text = f"{problem.check}: wanted {problem.wanted}, found {problem.found}{detail}"
        yield f"    {problem.verdict.text}: {text}", problem.verdict
    if problems:
        first = problems[0]
        source = f" ({first.source})" if first.source else ""
        yield f"    next: {first.step.text}{source}", None


def _everything(report: NodeReport) -> Iterator[str]:
    """Yield stack, checks and readings. What is equal on several GPUs is one line."""
    yield "stack"
    yield from (f"    {name}: {value}" for name, value in report.stack.items())
    yield "checks"
    checks: dict[str, list[str | None]] = {}
    for run in report.checks:
        measured = "" if run.value is None else f" {run.value:g} {run.unit}".rstrip()
        floor = "" if run.floor is None else f" (floor {run.floor:g})"
        text = f": {run.text}" if run.text else ""
        checks.setdefault(f"{run.state:8} {run.name}{measured}{floor}{text}", []).append(run.gpu)
    yield from _by_gpus(checks, report)
    yield "readings"
    readings: dict[str, list[str | None]] = {}
    for reading in report.readings:
        if reading.value not in (None, "") or reading.text:
            readings.setdefault(f"{reading.name}: {_shown(reading)}", []).append(reading.gpu)
    yield from _by_gpus(readings, report)


def _by_gpus(entries: Mapping[str, Sequence[str | None]], report: NodeReport) -> Iterator[str]:
    """Yield each line with the GPUs that it is about; "all GPUs" for all of several."""
    indices = {gpu.uuid: str(gpu.index) for gpu in report.gpus if gpu.index is not None}
    for text, uuids in entries.items():
        names = [indices.get(uuid, uuid) for uuid in uuids if uuid is not None]
        of_all = len(indices) > 1 and len({*names}) == len(indices)
        where = "  [all GPUs]" if of_all else f"  [GPU {' '.join(names)}]" if names else ""
        yield f"    {text}{where}"


def _shown(reading: Reading) -> str:
    return f"- ({reading.text})" if reading.value is None else f"{reading.value} {reading.unit}".rstrip()


def nagios(report: NodeReport, *, strict: bool) -> tuple[int, str]:
    """Return the exit status and the line of a Nagios plugin: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""
    status = _NAGIOS[report.verdict]
    status = 2 if strict and status == 1 else status
    counts = f"gpus={len(report.gpus)} problems={len(report.problems)} seconds={report.seconds:.2f}s"
    return status, f"GPU {_NAGIOS_WORDS[status]} - {reason(report).replace('|', '/')} | {counts}"


def prometheus(report: NodeReport) -> str:
    """Return the report in the text format, for the textfile collector of Prometheus' node_exporter.

    The metric ``harness_ready`` is 1 for the present verdict and 0 for the others; the label `gpu` is empty for the
    node.
    """
    from harness.reporting.prometheus import Metric  # with the modules of a run's ledger, which no other form needs

    verdicts: dict[Labels, float] = {}
    for uuid, verdict in (("", report.verdict), *((gpu.uuid, gpu.verdict) for gpu in report.gpus)):
        verdicts |= {(("gpu", uuid), ("verdict", each.value)): float(each is verdict) for each in Verdict}
    problems: dict[Labels, float] = {}
    for problem in report.problems:
        key = (
            ("gpu", problem.gpu or ""),
            ("kind", problem.kind),
            ("step", problem.step.value),
            ("verdict", problem.verdict.value),
        )
        problems[key] = problems.get(key, 0.0) + 1
    readings: dict[Labels, float] = {
        (("gpu", reading.gpu or ""), ("name", reading.name), ("unit", reading.unit)): float(reading.value)
        for reading in report.readings
        if isinstance(reading.value, int | float)
    }
    states: dict[Labels, float] = {}
    for run in report.checks:
        states[(("state", run.state),)] = states.get((("state", run.state),), 0.0) + 1
    metrics = (
        Metric("harness_ready", "1 for the verdict of the node or GPU, 0 for the others.", verdicts),
        Metric("harness_ready_problems", "Number of problems, by kind, with the next step.", problems),
        Metric("harness_ready_checks", "Number of checks, by state.", states),
        Metric("harness_ready_reading", "A value that was read from driver or host.", readings),
        Metric("harness_ready_seconds", "Seconds that the check took.", {(): report.seconds}),
        Metric("harness_ready_time_seconds", "When the check began, since 1970-01-01 UTC.", {(): report.time}),
    )
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines)

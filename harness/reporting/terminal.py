"""The summary that a run prints at its end."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from harness.core.outcome import Outcome
from harness.core.text import format_count, inert_line, single_line
from harness.journal.ledger import Ledger
from harness.journal.verdicts import Verdict
from harness.reporting.repetitions import leak_search_cost, repetitions, unproven_leaks

#: Maximum number of cases in the summary. The report has all of them.
SHOWN = 50
#: Maximum lines about executors that grew without a proven leak: they only inform.
SHOWN_GROWN = 3
#: Maximum number of growing cases in the summary, each with a plot.
PLOTTED = 10
#: The beginnings of lines of red cases and of findings.
RED_WORDS = ("FINDING ", *(f"{outcome.upper()} " for outcome in Outcome if outcome.is_red))


def terminal_summary(ledger: Ledger, run_dir: Path, *, blocks: bool, after_pytest: bool = False) -> list[str]:
    """Return the summary lines: outcomes, red cases and how to reproduce them, growing cases, the cost of isolation.

    `blocks`: see `harness.reporting.repetitions.plot`. `after_pytest`: pytest's last line follows.
    """
    counts = ", ".join(f"{count} {outcome}" for outcome, count in ledger.counts.items())
    findings = f"; {format_count(len(ledger.findings), 'finding')}" if ledger.findings else ""
    lines = [
        f"{format_count(len(ledger.verdicts), 'case')}: {counts or 'none'}{findings}",
        *(_other_words(ledger.counts) if after_pytest else ()),
    ]
    shown = [v for v in ledger.verdicts if v.outcome.is_red or v.outcome is Outcome.FLAKY]
    not_run = [verdict for verdict in shown if verdict.outcome is Outcome.NOT_RUN]
    for verdict in [verdict for verdict in shown if verdict.outcome is not Outcome.NOT_RUN][:SHOWN]:
        lines += _verdict_lines(verdict)
    if len(shown) - len(not_run) > SHOWN:
        lines.append(f"… and {len(shown) - len(not_run) - SHOWN} more, see {run_dir / 'junit.xml'}")
    gates = Counter(verdict.message for verdict in ledger.verdicts if verdict.outcome is Outcome.GATED)
    lines += [
        f"GATED {format_count(count, 'case')} - {single_line(message)}" for message, count in gates.most_common(SHOWN)
    ]
    if not_run:
        lines.append(
            f"NOT_RUN {format_count(len(not_run), 'case')}, the first {not_run[0].case} - {not_run[0].message}"
        )
        if any(finding.kind == "collection_error" for finding in ledger.findings):
            lines.append("    to run them, mend what could not be collected, and start a new run")
        else:
            lines.append(f"    to run the rest, repeat the command with --resume {shlex.quote(str(run_dir))}")
    for finding in ledger.findings[:SHOWN]:
        lines.append(f"FINDING {finding.kind}: {single_line(finding.message)}")
        lines += [f"    {finding.reproduce}"] if finding.reproduce else []
    if len(ledger.findings) > SHOWN:
        lines.append(f"… and {len(ledger.findings) - SHOWN} more findings, see {run_dir / 'junit.xml'}")
    for bisected in ledger.bisected[:SHOWN]:
        lines.append(f"ORDER {bisected.case} is {bisected.outcome} after {', '.join(bisected.culprits)}")
        lines.append(f"    {single_line(bisected.reproduce, 4096)}")
    lines += [f"SECOND DEVICE {device.case} - {device.text}" for device in ledger.second_devices[:SHOWN]]
    if len(ledger.second_devices) > SHOWN:
        lines.append(f"… and {len(ledger.second_devices) - SHOWN} more on second devices, see {run_dir / 'junit.xml'}")
    lines += _kept(ledger)
    grown = unproven_leaks(ledger.searches)
    lines += grown[:SHOWN_GROWN]
    if len(grown) > SHOWN_GROWN:
        more = format_count(len(grown) - SHOWN_GROWN, "more executor that grew", "more executors that grew")
        lines.append(f"… and {more}, not shown to be leaks, see {run_dir / 'report.html'}")
    lines += _grown(ledger, run_dir, blocks=blocks)
    lines += _verified(ledger)
    lines += [result.text for result in ledger.lists]
    lines += _shard(ledger)
    lines += [f"RESUMED BY FORCE {change}" for change in ledger.forced]
    lines += _injected(ledger)
    cost = ledger.cost
    lines.append(
        f"isolation: {format_count(cost.executors, 'executor')} started in {cost.startup:.2f} s, "
        f"{format_count(cost.restarts, 'restart')}, {format_count(cost.retries, 'retry', 'retries')}"
        f"{leak_search_cost(ledger.searches)}"
    )
    lines.append(f"results: {run_dir}")
    return list(map(inert_line, lines))


def _other_words(counts: Mapping[Outcome, int]) -> list[str]:
    """Return the words of pytest's last line for outcomes that pytest does not know."""
    own = (Outcome.FAILED, Outcome.ERROR, Outcome.NOT_RUN)
    failed = [f"{number} {outcome}" for outcome, number in counts.items() if outcome.is_red and outcome not in own]
    waived = [f"{counts[Outcome.WAIVED]} waived as xfailed"] if Outcome.WAIVED in counts else []
    counted_as = [*waived, *([f"{', '.join(failed)} as failed"] if failed else [])]
    return [f"pytest's last line counts {'; '.join(counted_as)}"] if counted_as else []


def last_line_word(findings: int) -> str:
    """Return the word under which pytest's last line counts this number of findings."""
    return "finding" if findings == 1 else "findings"


def _shard(ledger: Ledger) -> list[str]:
    """Return the remaining steps for a shard."""
    if ledger.run is None or not ledger.run.shard:
        return []
    later = "must-pass lists and the least number of cases are checked in the merged run"
    return [f"shard {ledger.run.shard}: {later}; when all shards have run: harness report merge DIR... -o OUT"]


def _injected(ledger: Ledger) -> list[str]:
    """Return how often each injected fault occurred. A fault that never did proves nothing about the cases."""
    injected = str(ledger.run.settings.get("inject") or "") if ledger.run is not None else ""
    times: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for verdict in ledger.verdicts:
        struck = Counter[str]()
        for finish in verdict.finishes:
            struck.update(finish.struck)
        times.update(struck)
        cases.update(struck.keys())
    names = dict.fromkeys(injection.strip().partition(":")[0] for injection in injected.split(";") if injection.strip())
    return [
        f"INJECTED {name} occurred {format_count(times[name], 'time')} in {format_count(cases[name], 'case')}"
        if times[name]
        else f"INJECTED {name} never occurred, so no case could notice it"
        for name in names
    ]


def _kept(ledger: Ledger) -> list[str]:
    """Return the number of cases that may keep memory, for each reason in a ``keeps`` mark."""
    decided = (verdict.decided for verdict in ledger.verdicts)
    reasons = Counter(finish.keeps for finish in decided if finish is not None and finish.keeps)
    return [
        f"KEEPS {format_count(count, 'case')} that may keep memory - {single_line(reason)}"
        for reason, count in reasons.most_common(SHOWN)
    ]


def _grown(ledger: Ledger, run_dir: Path, *, blocks: bool) -> list[str]:
    """Return the cases whose memory grew over their repetitions with ``--repeat``. Information only, no verdict."""
    grown = [repetition for repetition in repetitions(ledger) if repetition.grows]
    lines = []
    for repetition in grown[:PLOTTED]:
        lines += [
            f"GROWS {repetition.case} - {repetition.text}",
            *(f"    {line}" for line in repetition.plot(blocks=blocks)),
        ]
    if len(grown) > PLOTTED:
        lines.append(f"... and {len(grown) - PLOTTED} more that grow, see harness report {run_dir}")
    return lines


def repetition_lines(ledger: Ledger, *, blocks: bool) -> list[str]:
    """Return lines on the memory of each repeated case that did not grow.

    `terminal_summary` has the cases that grew.
    """
    repeated = repetitions(ledger)
    if not repeated:
        return [
            "the journal has no memory readings of repeated cases: run with --repeat=12 or more, and without "
            "--leak-check=off"
        ]
    lines = []
    for case in repeated:
        if not case.grows:
            lines += [f"{case.word} {case.case} - {case.text}", *(f"    {row}" for row in case.plot(blocks=blocks))]
    return lines


def _verified(ledger: Ledger) -> list[str]:
    """Return one line per case that ``--verify`` verified."""
    finishes = ((verdict, verdict.finishes[-1]) for verdict in ledger.verdicts if verdict.finishes)
    rulings = [(verdict, finish.ruling) for verdict, finish in finishes if finish.ruling is not None]
    good = [
        f"VERIFIED {verdict.case} - {single_line(ruling.text)}"
        for verdict, ruling in rulings
        if ruling.source == "--verify" and not ruling.outcome.is_red
    ]
    return [*good[:SHOWN], *([f"… and {len(good) - SHOWN} more verified"] if len(good) > SHOWN else [])]


def _verdict_lines(verdict: Verdict) -> list[str]:
    lines = [
        f"{verdict.outcome.upper()} {verdict.case}" + (f" - {single_line(verdict.message)}" if verdict.message else "")
    ]
    if verdict.decided is not None and verdict.decided.devices:
        device = ", ".join(verdict.decided.devices)
        lines.append(f"    device {device}, seed {verdict.decided.seed}, executor {verdict.decided.executor}")
    reproduce = next((finish.reproduce for finish in reversed(verdict.finishes) if finish.reproduce), None)
    if reproduce:
        lines.append(f"    {reproduce}")
    return lines

"""The numbers of a run in the text format, for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.core.outcome import Outcome
from harness.core.text import inert_line
from harness.journal.environment import Place, Places
from harness.journal.ledger import Results, Summary

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge with its values by labels. The textfile collector accepts no timestamps."""

    name: str
    help: str
    values: Mapping[Labels, float]

    @property
    def lines(self) -> Iterator[str]:
        """The metric in the text format. A metric without values has no lines."""
        if not self.values:
            return
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.values.items():
            written = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels)
            yield f"{self.name}{{{written}}} {_number(value)}" if written else f"{self.name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(float(value), 6))


#: Maximum characters of a label.
_MOST_LABEL = 200


def prometheus_text(results: Results, facts: Mapping[str, Any] | None) -> Iterator[bytes]:
    """Yield all metrics of a run. `facts`: the facts of environment.json.

    The number of metrics does not grow with the number of cases.
    """
    places = Places(results.runs, results.shards, facts)
    cases: Counter[Labels] = Counter()
    seconds: dict[Labels, float] = {}
    of_place: dict[Place, Labels] = {}
    for verdict, _ in results.cases():
        place = places.of(verdict)
        if place not in of_place:
            of_place[place] = _of_place(place, places)
        where = of_place[place]
        cases[(*where, ("outcome", verdict.outcome.value))] += 1
        seconds[where] = seconds.get(where, 0.0) + verdict.duration
    metrics = [
        *_of_run(results.summary, places),
        Metric("harness_cases", "Cases by suite, device and outcome.", dict(sorted(cases.items()))),
        Metric("harness_suite_seconds", "Seconds of all attempts, by suite and device.", dict(sorted(seconds.items()))),
    ]
    yield from (f"{line}\n".encode() for metric in metrics for line in metric.lines)


def _of_run(summary: Summary, places: Places) -> Iterator[Metric]:
    run, end, odd = summary.run, summary.end, summary.read_problems
    if run is not None:
        facts = places.facts(Place("", run.host, run.devices))
        info = _labels(
            run_id=run.run_id,
            host=run.host,
            isolation=run.isolation,
            profile=run.profile,
            shard=run.shard,
            seed=str(run.seed),
            **{name: facts.get(name, "") for name in ("device", "driver", "cuda", "torch")},
        )
        yield Metric("harness_run_info", "Facts of the run; the value is 1.", {info: 1})
        yield _one("harness_run_start_timestamp_seconds", "Time at which the run started.", summary.runs[0].t)
    yield _one("harness_run_finished", "1 if the run finished, 0 if it was cut off.", float(end is not None))
    status = summary.run_exit_status()
    yield _one("harness_run_exit_status", "Exit status of the run; a run that was cut off has 1.", status)
    if end is not None:
        yield _one("harness_run_end_timestamp_seconds", "Time at which the run ended.", end.t)
        yield _one("harness_run_duration_seconds", "Duration of the last part of the run.", end.duration)
    outcomes = {_labels(outcome=outcome.value): summary.counts.get(outcome, 0) for outcome in Outcome}
    yield Metric("harness_run_cases", "Cases of the run by outcome.", outcomes)
    yield _one("harness_run_red_cases", "Cases that make the run red.", summary.red_cases)
    yield _one("harness_run_findings", "Findings of the run.", len(summary.findings))
    kinds = Counter(_labels(kind=finding.kind) for finding in summary.findings)
    yield Metric("harness_findings", "Findings of the run by kind.", dict(sorted(kinds.items())))
    missed = {_labels(list=result.name, hash=result.hash): len(result.missed) for result in summary.lists}
    yield Metric("harness_must_pass_missed_cases", "Cases on a must-pass list that did not pass.", missed)
    lines = {"damaged": odd.damaged_lines, "unknown": odd.unknown_lines, "doubled": odd.doubled_lines}
    states = {_labels(state=state): number for state, number in lines.items()}
    yield Metric("harness_journal_odd_lines", "Lines of the journal that do not count.", states)
    yield _one("harness_run_executors", "Executors that the run started.", summary.cost.executors)
    yield _one("harness_run_retries", "Attempts beyond those that count.", summary.cost.retries)


def _one(name: str, help: str, value: float) -> Metric:
    return Metric(name, help, {(): value})


def _of_place(place: Place, places: Places) -> Labels:
    uuids = " ".join(place.devices)
    return _labels(suite=place.suite, host=place.host, device=places.device(place), uuid=uuids)


def _labels(**texts: str) -> Labels:
    """Return labels as they are shown. Labels that are equal after the cut are one series."""
    return tuple((name, inert_line(value)[:_MOST_LABEL]) for name, value in texts.items())

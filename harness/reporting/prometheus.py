"""The numbers of a run as a file for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.outcome import Outcome
from harness.reporting.ledger import Results, Summary
from harness.reporting.place import Place, Places
from harness.text import clean

#: Characters of a label that are kept.
_MOST_LABEL = 200
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge with its samples: labels and value. The textfile collector takes no times of samples."""

    name: str
    help: str
    samples: list[tuple[dict[str, str], float]]

    @property
    def lines(self) -> Iterator[str]:
        """The metric in the text format. A metric without samples has no lines."""
        if not self.samples:
            return
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.samples:
            written = ",".join(f'{name}="{_label(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{written}}} {_number(value)}" if written else f"{self.name} {_number(value)}"


def text(results: Results, known: Mapping[str, Any] | None) -> bytes:
    """All metrics of a run. `known`: the facts of environment.json. Their number does not grow with that of cases."""
    places = Places(results.runs, results.shards, known)
    cases: Counter[tuple[Place, Outcome]] = Counter()
    seconds: dict[Place, float] = {}
    for verdict, _ in results.cases():
        place = places.of(verdict)
        cases[place, verdict.outcome] += 1
        seconds[place] = seconds.get(place, 0.0) + verdict.duration
    metrics = [*_of_run(results.summary, places), *_of_cases(cases, seconds, places)]
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines).encode("utf-8")


def _of_run(summary: Summary, places: Places) -> Iterable[Metric]:
    run, end = summary.run, summary.end
    if run is not None:
        anywhere = places.facts(Place("", run.host, run.devices))
        facts = {
            "run_id": run.run_id,
            "host": run.host,
            "isolation": run.isolation,
            "profile": run.profile,
            "shard": run.shard,
            "seed": str(run.seed),
            **{name: anywhere.get(name, "") for name in ("device", "driver", "cuda", "torch")},
        }
        yield Metric("harness_run_info", "Facts of the run; the value is 1.", [(facts, 1)])
        started = summary.runs[0].t
        yield Metric("harness_run_start_timestamp_seconds", "Time at which the run started.", [({}, started)])
    yield Metric("harness_run_finished", "1 if the run finished, 0 if it was cut off.", [({}, float(end is not None))])
    status = summary.run_exit_status()
    yield Metric("harness_run_exit_status", "Exit status of the run; a run that was cut off has 1.", [({}, status)])
    if end is not None:
        yield Metric("harness_run_end_timestamp_seconds", "Time at which the run ended.", [({}, end.t)])
        yield Metric("harness_run_duration_seconds", "Duration of the last part of the run.", [({}, end.duration)])
    every: list[tuple[dict[str, str], float]] = [
        ({"outcome": outcome.value}, summary.counts.get(outcome, 0)) for outcome in Outcome
    ]
    yield Metric("harness_run_cases", "Cases of the run by outcome.", every)
    yield Metric("harness_run_red_cases", "Cases that make the run red.", [({}, summary.red_cases)])
    kinds = Counter(finding.kind for finding in summary.findings)
    yield Metric("harness_run_findings", "Findings of the run.", [({}, len(summary.findings))])
    by_kind: list[tuple[dict[str, str], float]] = [({"kind": kind}, number) for kind, number in sorted(kinds.items())]
    yield Metric("harness_findings", "Findings of the run by kind.", by_kind)
    missed: list[tuple[dict[str, str], float]] = [
        ({"list": each.name, "hash": each.hash}, len(each.missed)) for each in summary.lists
    ]
    yield Metric("harness_must_pass_missed_cases", "Cases on a must-pass list that did not pass.", missed)
    odd = summary.oddities
    lines: list[tuple[dict[str, str], float]] = [
        ({"state": "damaged"}, odd.damaged_lines),
        ({"state": "unknown"}, odd.unknown_lines),
        ({"state": "doubled"}, odd.doubled_lines),
    ]
    yield Metric("harness_journal_odd_lines", "Lines of the journal that do not count.", lines)
    yield Metric("harness_run_executors", "Executors that the run started.", [({}, summary.cost.executors)])
    yield Metric("harness_run_retries", "Attempts beyond those that count.", [({}, summary.cost.retries)])


def _of_cases(
    cases: Mapping[tuple[Place, Outcome], int], seconds: Mapping[Place, float], places: Places
) -> Iterable[Metric]:
    counted: Counter[tuple[tuple[str, str], ...]] = Counter()
    spent: dict[tuple[tuple[str, str], ...], float] = {}
    # Labels are cut and cleaned, so two places may have the same ones: a series must be there once.
    for (place, outcome), number in cases.items():
        counted[(*_labels(place, places), ("outcome", outcome.value))] += number
    for place, value in seconds.items():
        labels = _labels(place, places)
        spent[labels] = spent.get(labels, 0.0) + value
    number_of = "Cases by suite, device and outcome."
    yield Metric("harness_cases", number_of, [(dict(labels), number) for labels, number in sorted(counted.items())])
    time_of = "Seconds of all attempts at the cases of a suite on a device."
    yield Metric("harness_suite_seconds", time_of, [(dict(labels), value) for labels, value in sorted(spent.items())])


def _labels(place: Place, places: Places) -> tuple[tuple[str, str], ...]:
    facts = {
        "suite": place.suite,
        "host": place.host,
        "device": places.device(place),
        "uuid": " ".join(place.devices),
    }
    return tuple((name, clean(value)[:_MOST_LABEL]) for name, value in facts.items())


def _label(value: str) -> str:
    return clean(value)[:_MOST_LABEL].translate(_ESCAPES)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(float(value), 6))

"""The file for the textfile collector: read back by Prometheus' own parser, unique series, labels with any text."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given
from prometheus_client.parser import text_string_to_metric_families

from harness.core.outcome import Outcome
from harness.journal.stored_run import StoredRun
from harness.reporting import prometheus
from tests.journal import journals
from tests.journal.journals import ENVIRONMENT
from tests.reporting import build

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(run_dir: Path, *, known: bool = False) -> Series:
    """Return all series, after checking that each occurs once, after its help and type."""
    with StoredRun.of(run_dir) as stored:
        text = b"".join(prometheus.prometheus_text(stored, ENVIRONMENT if known else None)).decode("utf-8")
    assert text.endswith("\n")
    assert "\r" not in text
    families = list(text_string_to_metric_families(text))
    assert max(Counter(family.name for family in families).values()) == 1
    found: Series = {}
    for family in families:
        assert family.type == "gauge"
        assert family.documentation.endswith(".")
        assert family.samples
        for sample in family.samples:
            assert sample.name == family.name
            assert sample.timestamp is None, "the collector refuses times"
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(found: Series, name: str, **labels: str) -> float:
    """Return the value of the only series with this name and these labels."""
    (only,) = (number for (each, has), number in found.items() if each == name and {*labels.items()} <= {*has})
    return only


def test_a_run_with_everything(tmp_path: Path) -> None:
    found = series(journals.write(tmp_path, journals.lines()), known=True)
    assert value(found, "harness_run_info", host="node1", driver="580.1", torch="2.13.0", cuda="12.8", seed="7") == 1
    assert value(found, "harness_run_info", device="NVIDIA GPU-1, NVIDIA GPU-2") == 1
    assert value(found, "harness_run_exit_status") == 1
    assert value(found, "harness_run_finished") == 1
    assert value(found, "harness_run_duration_seconds") == 5
    assert value(found, "harness_run_start_timestamp_seconds") == 1_760_000_000.25
    assert value(found, "harness_run_end_timestamp_seconds") == 1_760_000_005
    assert value(found, "harness_run_cases", outcome="crashed") == 1
    assert value(found, "harness_run_cases", outcome="leaked") == 0
    assert value(found, "harness_run_red_cases") == 3
    assert value(found, "harness_run_findings") == 2
    assert value(found, "harness_findings", kind="device_lost") == 1
    assert value(found, "harness_must_pass_missed_cases", list="core") == 1
    assert value(found, "harness_cases", suite="streams", uuid="GPU-2", outcome="crashed", device="NVIDIA GPU-2") == 1
    assert value(found, "harness_suite_seconds", suite="amp", uuid="GPU-2") == 0.25
    assert value(found, "harness_run_executors") == 1


def test_a_run_that_was_cut_off_has_no_end(tmp_path: Path) -> None:
    found = series(journals.write(tmp_path, [build.run(), build.collected("a.py::a")]))
    assert value(found, "harness_run_finished") == 0
    assert value(found, "harness_run_exit_status") == 1
    assert not [name for name, _ in found if name in ("harness_run_end_timestamp_seconds", "harness_findings")]


def test_torn_doubled_and_foreign_lines_are_reported(tmp_path: Path) -> None:
    found = series(journals.write_bytes(tmp_path, b"".join(journals.odd())))
    numbers = {
        state: value(found, "harness_journal_odd_lines", state=state) for state in ("damaged", "unknown", "doubled")
    }
    assert numbers == {"damaged": 3, "unknown": 1, "doubled": 1}
    assert value(found, "harness_findings", kind="damaged_journal") == 1


def test_series_do_not_grow_with_cases(tmp_path: Path) -> None:
    ids = [f"suites/a/test_a.py::test_{number}" for number in range(500)]
    run_dir = journals.write(tmp_path, [build.run(), build.collected(*ids), *map(build.finish, ids)])
    found = series(run_dir)
    assert len(found) < 40
    assert value(found, "harness_cases", outcome="passed") == 500


def test_labels_that_are_cut_to_the_same_are_one_series(tmp_path: Path) -> None:
    ids = [f"suites/{'x' * 300}{number}/test_a.py::a" for number in range(3)]
    run_dir = journals.write(tmp_path, [build.run(), build.collected(*ids), *map(build.finish, ids)])
    assert value(series(run_dir), "harness_cases", outcome="passed") == 3


@given(journals.hostile())
def test_no_text_makes_an_unreadable_file(lines: list[build.Line]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = series(journals.write(Path(folder), [build.run(), *lines]))
    counted = sum(number for (name, _), number in found.items() if name == "harness_cases")
    assert counted == sum(value(found, "harness_run_cases", outcome=outcome) for outcome in Outcome)

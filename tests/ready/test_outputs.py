"""The report in words: the line for Reason=, the lines for people, Nagios and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.ready import outputs
from harness.ready.model import CheckRun, GpuReport, NodeReport, Problem, Reading, Verdict, worst
from harness.ready.rules import worst_first
from tests.ready.problems import make_problem

A, B = "GPU-aaaa", "GPU-bbbb"


def report(*problems: Problem, **more: Any) -> NodeReport:
    ordered = worst_first(problems)
    gpus = tuple(
        GpuReport(
            uuid=uuid,
            index=index,
            name="H100",
            serial=f"16{index}",
            verdict=worst(problem.verdict for problem in ordered if problem.gpu == uuid),
        )
        for index, uuid in enumerate((A, B))
    )
    fields: dict[str, Any] = {
        "host": "node7",
        "time": 1.8e9,
        "mode": "passive",
        "budget": 0.0,
        "seconds": 0.75,
        "verdict": worst(problem.verdict for problem in ordered),
        "gpus": gpus,
        "problems": ordered,
        "checks": (CheckRun(name="driver", state="ok"), CheckRun(name="fabric", gpu=A, state="skipped")),
        "readings": (
            Reading(name="temperature", gpu=A, value=41, unit="°C"),
            Reading(name="temperature", gpu=B, value=41, unit="°C"),
            Reading(name="vbios", gpu=A, value="96.00"),
            Reading(name="power", gpu=B, text="power: Not Supported"),
        ),
        "stack": {"driver": "570.86.15"},
    }
    return NodeReport(**{**fields, **more})


ROWS = make_problem("rows_failed", check="row_remapping", wanted="none", found="a row remapping failed", gpu=B)
HOT = make_problem("temperature", check="temperature", wanted="at most 82 °C", found="88 °C", gpu=A)
LOG = make_problem("log_unreadable", check="kernel_log", wanted="a log", found="Permission denied", detail="be root")


@pytest.mark.parametrize(
    ("problems", "line"),
    [
        ([], "ready: 2 GPUs, 1 check (passive) in 0.8 s"),
        ([HOT], "degraded: GPU 0: temperature: 88 ?C; next: look by hand"),
        ([LOG], "unknown: kernel_log: Permission denied; next: fix the configuration"),
        (
            [HOT, LOG, ROWS],
            "not ready: GPU 1: row_remapping: a row remapping failed; next: open a ticket with the vendor; "
            "2 more problems",
        ),
    ],
)
def test_the_line_for_a_reason(problems: Sequence[Problem], line: str) -> None:
    assert outputs.reason(report(*problems)) == line


@pytest.mark.parametrize("found", ['say "no"\nand more', "x" * 5000, "\x1b[31mred", "ü" * 300, "\u202e\ud800"])
def test_a_reason_is_one_short_line_of_ascii(found: str) -> None:
    line = outputs.reason(report(make_problem("suites", check="suites", wanted="", found=found), HOT))
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= outputs.MOST_REASON
    assert '"' not in line
    assert line.endswith("; next: look by hand; 1 more problem")


def test_the_worst_gpu_comes_first_and_has_one_next_step() -> None:
    lines = [line for line, _ in outputs.lines(report(HOT, ROWS, LOG), verbose=False)]
    assert lines == [
        "unknown    node node7",
        "    unknown: kernel_log: wanted a log, found Permission denied (be root)",
        f"    next: fix the configuration ({LOG.source})",
        f"not ready  GPU 1 (H100, {B}, serial 161)",
        "    not ready: row_remapping: wanted none, found a row remapping failed",
        f"    next: open a ticket with the vendor ({ROWS.source})",
        f"degraded   GPU 0 (H100, {A}, serial 160)",
        "    degraded: temperature: wanted at most 82 °C, found 88 °C",
        f"    next: look by hand ({HOT.source})",
    ]


def test_equal_problems_of_several_gpus_are_shown_once() -> None:
    both = [make_problem("temperature", check="temperature", wanted="less", found="88 °C", gpu=gpu) for gpu in (A, B)]
    lines = [line for line, _ in outputs.lines(report(*both), verbose=False)]
    assert lines == [
        f"degraded   GPU 0 (H100, {A}, serial 160)",
        f"degraded   GPU 1 (H100, {B}, serial 161)",
        "    degraded: temperature: wanted less, found 88 °C",
        f"    next: look by hand ({HOT.source})",
    ]


def test_what_the_budget_left_out_is_named() -> None:
    left = CheckRun(name="product_fp8", gpu=A, state="skipped", text="the budget is used up")
    lines = [line for line, _ in outputs.lines(report(checks=(left,), budget=20.0), verbose=False)]
    assert lines[-1] == "not tried within 20 s: product_fp8"


def test_all_readings_are_one_line_for_equal_gpus() -> None:
    lines = [line for line, _ in outputs.lines(report(), verbose=True)]
    assert lines[2:] == [
        "stack",
        "    driver: 570.86.15",
        "checks",
        "    ok       driver",
        "    skipped  fabric  [GPU 0]",
        "readings",
        "    temperature: 41 °C  [all GPUs]",
        "    vbios: 96.00  [GPU 0]",
        "    power: - (power: Not Supported)  [GPU 1]",
    ]


@pytest.mark.parametrize(
    ("problems", "strict", "status", "nagios"),
    [
        ([], False, 0, (0, "OK")),
        ([HOT], False, 0, (1, "WARNING")),
        ([HOT], True, 1, (2, "CRITICAL")),
        ([LOG], False, 1, (3, "UNKNOWN")),
        ([ROWS, LOG], False, 1, (2, "CRITICAL")),
    ],
)
def test_exit_statuses(problems: Sequence[Problem], strict: bool, status: int, nagios: tuple[int, str]) -> None:
    made = report(*problems)
    assert made.verdict.allows_work(strict=strict) is (status == 0)
    number, line = outputs.nagios(made, strict=strict)
    assert (number, line.partition(" - ")[0]) == (nagios[0], f"GPU {nagios[1]}")
    assert line.count("|") == 1
    assert line.endswith(f"| gpus=2 problems={len(problems)} seconds=0.75s")


def test_prometheus_reads_every_metric() -> None:
    text = outputs.prometheus(report(ROWS, HOT))
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    present = {(s.labels["gpu"], s.labels["verdict"]) for s in families["harness_ready"] if s.value == 1}
    assert present == {("", "not_ready"), (A, "degraded"), (B, "not_ready")}
    assert len(families["harness_ready"]) == 3 * len(Verdict)
    assert {(s.labels["kind"], s.labels["step"]) for s in families["harness_ready_problems"]} == {
        ("rows_failed", "vendor_ticket"),
        ("temperature", "look"),
    }
    assert {(s.labels["gpu"], s.value) for s in families["harness_ready_reading"]} == {(A, 41.0), (B, 41.0)}
    assert [s.value for s in families["harness_ready_seconds"]] == [0.75]

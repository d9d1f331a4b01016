"""Run directories for tests of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core.outcome import Outcome
from harness.reporting.page import model, report
from tests.journal import journals
from tests.reporting import build

ENVIRONMENT = {"schema": 1, "versions": {"torch": "2.13.0"}, "devices": [{"uuid": "GPU-a", "name": "H200", "index": 0}]}


def write(run_dir: Path, *lines: build.Line, environment: object = ENVIRONMENT, tail: bytes = b"") -> Path:
    """Write a run directory with these lines and its page; return the path of the page."""
    journals.write_bytes(run_dir, b"".join(journals.encoded(lines)) + tail, environment)
    return report.write_html_report(run_dir)


def page_of(*lines: build.Line, environment: Any = ENVIRONMENT) -> model.Page:
    return model.page_of(build.contents(*lines), environment)


def name_of(outcome: Outcome) -> str:
    return f"suites/{outcome.value}/test_it.py::test_{outcome.value}"


def every_outcome() -> Sequence[build.Line]:
    """Return a red run with one case of each outcome, and all other contents of a page."""
    cases = [name_of(outcome) for outcome in Outcome]
    flaky, lost, not_run = name_of(Outcome.FLAKY), name_of(Outcome.LOST), name_of(Outcome.NOT_RUN)
    lines = [
        build.run(devices=["GPU-a", "GPU-b"], profile="nightly", settings={"retries": 1}),
        build.must_pass(cases[4], cases[10]),
        build.waiver("suites/waived/*", source="known.yaml:3", expires="2025-10-20"),
        build.collected(*cases),
        build.executor(devices=["GPU-a"]),
    ]
    moment = 1_760_000_002.0
    for outcome, case in zip(Outcome, cases, strict=True):
        if case == not_run:
            continue
        device = ["GPU-b" if outcome is Outcome.CRASHED else "GPU-a"]
        more: dict[str, Any] = {"devices": device, "t": moment + 0.5}
        lines.append(build.start(case, devices=device, t=moment))
        moment += 1
        if case == lost:
            continue
        if case == flaky:
            lines += build.broke_and(flaky, Outcome.CRASHED, Outcome.PASSED, devices=device)[1:]
            continue
        if outcome.is_red:
            more |= {
                "message": f"{outcome} happened",
                "detail": f"stack of {outcome}",
                "stdout": f"output of {outcome}\n",
                "stderr": "\x1b[31mred\x1b[0m words",
                "reproduce": f"pytest {case} --seed=7",
                "notes": ["temporary files are kept in /runs/r1/files/gw0-1"],
            }
        if outcome is Outcome.GATED:
            more["gate"] = {"capability": "memory", "wanted": ">=12GiB", "found": "8.0GiB"}
        if outcome is Outcome.WAIVED:
            more["ruling"] = build.ruling(Outcome.WAIVED, "waived: a known problem")
        ended = Outcome.FAILED if outcome is Outcome.WAIVED else outcome
        lines.append(build.finish(case, ended, **more))
    growing = [
        build.levels(name_of(Outcome.PASSED), number, heap_bytes=50_000_000 + 4096 * number) for number in range(1, 21)
    ]
    return [
        *lines,
        *growing,
        build.executor(state="ended", t=moment, exit_status=-11, reason="crashed", devices=["GPU-a"]),
        build.executor("gw0-2", t=moment + 1, devices=["GPU-a"]),
        build.device("drained", device="GPU-b", t=moment, message="copies differ"),
        build.finding("GPU-b was drained", reproduce="harness devices --health", cases=[cases[-1]]),
        build.bisected(flaky, [cases[4]]),
        build.end(t=moment + 5, exit_status=1, duration=30.0),
    ]


def green(number: int = 3) -> Sequence[build.Line]:
    cases = [f"suites/a/test_a.py::test_{each}" for each in range(number)]
    ran = [line for case in cases for line in (build.start(case), build.finish(case))]
    return [build.run(), build.collected(*cases), *ran, build.end()]

"""The report of ``harness ready``: its order of verdicts, and the schema that is shipped."""

from __future__ import annotations

import json
from collections.abc import Sequence

import jsonschema
import msgspec
import pytest

from harness.ready.model import CheckRun, GpuReport, NodeReport, Problem, Reading, Step, Verdict, worst
from tests.schemas import shipped_schema

REPORT = NodeReport(
    host="node7",
    time=1.8e9,
    mode="active",
    budget=60.0,
    seconds=12.5,
    verdict=Verdict.NOT_READY,
    gpus=(GpuReport(uuid="GPU-a", index=0, name="H100", serial="123", verdict=Verdict.NOT_READY),),
    problems=(
        Problem(
            check="remapped_rows",
            kind="rows_failed",
            gpu="GPU-a",
            verdict=Verdict.NOT_READY,
            wanted="no failed row remapping",
            found="a row remapping failed",
            step=Step.VENDOR_TICKET,
        ),
    ),
    checks=(CheckRun(name="remapped_rows", gpu="GPU-a", state="problem", seconds=0.1),),
    readings=(Reading(name="temperature", gpu="GPU-a", value=41, unit="°C"),),
    stack={"driver": "570.86.15"},
)


@pytest.mark.parametrize(
    ("verdicts", "result"),
    [
        ([], Verdict.READY),
        ([Verdict.READY], Verdict.READY),
        ([Verdict.DEGRADED, Verdict.READY], Verdict.DEGRADED),
        ([Verdict.DEGRADED, Verdict.UNKNOWN, Verdict.READY], Verdict.UNKNOWN),
        ([Verdict.UNKNOWN, Verdict.NOT_READY, Verdict.DEGRADED], Verdict.NOT_READY),
    ],
)
def test_the_worst_verdict(verdicts: Sequence[Verdict], result: Verdict) -> None:
    assert worst(verdicts) is result


def test_a_report_satisfies_the_schema_and_can_be_read_again() -> None:
    data = msgspec.json.encode(REPORT)
    jsonschema.validate(json.loads(data), shipped_schema("ready/ready"))
    assert msgspec.json.decode(data, type=NodeReport) == REPORT


def test_each_step_has_a_text() -> None:
    assert all(step.text for step in Step)

"""The check for races: planted ones are found, and programs that order their streams are not reported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.sim.simcuda import work_checks
from harness.sim.simcuda.work_checks import WorkFinding
from tests.cli.commands import harness, refused
from tests.sim.simcuda.cuda_builds import needs_cuda_build

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes() -> tuple[dict[str, str], dict[str, list[str]]]:
    """By program: the kind of finding that it should cause, and those that it has caused."""
    done = harness("sim", "run", "--check", "races", "--", sys.executable, "-c", _ALL, cwd=ROOT)
    assert done.returncode == 1, done.stderr  # races were found, and the program ended with 0
    wanted, found = map(json.loads, done.stdout.splitlines()[-2:])
    return wanted, found


_ALL = """
import importlib.util
import json
import os
from tests.sim.simcuda import nvrtc_races, race_kernels, race_programs, race_streams
if importlib.util.find_spec("triton"):
    from tests.sim.simcuda import triton_races
print(json.dumps({name: kind for name, (kind, _) in race_programs.PROGRAMS.items()}))
race_programs.main()
"""


@needs_cuda_build
def test_each_planted_race_is_found(outcomes: tuple[dict[str, str], dict[str, list[str]]]) -> None:
    wanted, found = outcomes
    planted = {name: kind for name, kind in wanted.items() if kind}
    assert len(planted) >= 60
    assert {name: found[name] for name in planted} == {name: [kind] for name, kind in planted.items()}


@needs_cuda_build
def test_programs_that_order_their_streams_are_not_reported(
    outcomes: tuple[dict[str, str], dict[str, list[str]]],
) -> None:
    wanted, found = outcomes
    assert {name: kinds for name, kinds in found.items() if not wanted[name] and kinds} == {}


_RACE = """
import torch
x = torch.zeros(1024, device="cuda")
side = torch.cuda.Stream()
torch.cuda.synchronize()
def train():
    with torch.cuda.stream(side):
        x.add_(1)
def evaluate():
    return x * 2
train()
evaluate()
"""


@needs_cuda_build
def test_a_race_is_described_and_is_the_exit_status(tmp_path: Path) -> None:
    program, report = tmp_path / "program.py", tmp_path / "races.json"
    program.write_text(_RACE)
    done = harness("sim", "run", "--check", "races", "--report", str(report), "--", sys.executable, str(program))
    assert done.returncode == 1
    *lines, last = done.stderr.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith("simulated CUDA: race: ")]
    assert lines[begin] == ("simulated CUDA: race: aten::mul reads 4096 bytes that aten::add_ has written, in no order")
    places = [line.strip() for line in lines[begin + 1 :] if ".py:" in line]
    assert places == [
        f"{program}:8 in train",
        f"{program}:11 in <module>",
        f"{program}:10 in evaluate",
        f"{program}:12 in <module>",
    ]
    assert "does not wait for stream" in lines[-1]
    assert last.endswith("; 1 race")
    (finding,) = json.loads(report.read_text())["findings"]
    assert (finding["kind"], finding["earlier"], finding["later"], finding["bytes"]) == (
        "race",
        "aten::add_",
        "aten::mul",
        4096,
    )


@needs_cuda_build
def test_a_program_without_a_race_keeps_its_status(tmp_path: Path) -> None:
    report = tmp_path / "races.json"
    command = ("import torch; torch.ones(4, device='cuda').sum().item(); raise SystemExit(5)",)
    done = harness("sim", "run", "--check", "races", "--report", str(report), "--", sys.executable, "-c", *command)
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1].endswith("; no races")
    assert json.loads(report.read_text()) == {"findings": []}


@needs_cuda_build
def test_an_unknown_check_is_named() -> None:
    done = harness("sim", "run", "--", sys.executable, "-c", "import torch", environ={"SIMCUDA_CHECK": "race"})
    assert (
        "simulated CUDA: SIMCUDA_CHECK=race: expected races, memory, or both; nothing is checked"
        in done.stderr.splitlines()
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--quiet", "--check", "races"), "--quiet reports nothing at the end: leave it out, or --check"),
        (("--check", "races", "--report", "/nosuch/x.json"), "--report='/nosuch/x.json': expected a file in a folder"),
        (("--report", "x.json"), "--report has the findings of --check races and --check memory: give one"),
    ],
)
def test_options_that_contradict_each_other(words: Sequence[str], why: str) -> None:
    assert why in refused(harness("sim", "run", *words, "--", "true"))


def test_findings_of_killed_processes_and_of_strangers(tmp_path: Path) -> None:
    line = '{"kind": "race", "earlier": "a", "later": "b", "bytes": 8, "text": "t"}'
    (tmp_path / "20.ndjson").write_text(f'{line}\nnoise\n{line.replace("8", "nine")}\n{{"kind": "ra')
    (tmp_path / "3.ndjson").write_text(f"{line}\n")
    found = work_checks.read_findings(tmp_path)
    assert found == [WorkFinding("race", "a", "b", 8, "t", pid) for pid in (3, 20)]
    assert work_checks.summary(found) == "2 races"
    assert work_checks.summary([*found, replace(found[0], kind="used after it was freed")]) == (
        "2 races, 1 used after it was freed"
    )
    assert work_checks.summary([]) == ""


def test_findings_of_one_case_do_not_reach_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(work_checks.FINDINGS, "")
    watch = work_checks.RaceWatch(tmp_path / "findings")
    file = Path(os.environ[work_checks.FINDINGS], "7.ndjson")
    line = json.dumps({"kind": "race", "earlier": "a", "later": "b", "bytes": 8, "text": "b reads\n  a on s\n  wait\n"})
    watch.begin()
    assert watch.end() == ""
    file.write_text(f"{line}\n")
    assert watch.end() == "b reads: wait"
    assert watch.end() == ""
    file.write_text(f"{line}\n{line}\n")
    assert watch.end() == "b reads: wait (in all 2 races: see standard error)"
    file.write_text(f"{line}\n")  # by the tear-down of a wider scope, or a repetition
    watch.begin()
    assert watch.end() == ""

"""Whole runs on the software device, which is built for these tests if necessary: runs and their messages."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from harness.sim.native import faults
from harness.sim.softdevice import build
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import PATIENCE, Project, Result
from tests.acceptance.rules import command, configure, refused

_CACHE = {name: value for name, value in os.environ.items() if name in ("HARNESS_CACHE_DIR", "XDG_CACHE_HOME")}

_THREE_RUNS = 3 * PATIENCE

_EVENTS = """
import pytest
import torch

@pytest.mark.requires(accelerator=True)
def test_an_event_waits_for_its_stream(device):
    stream = torch.Stream(device)
    torch.soft.sleep(300, stream)
    event = stream.record_event()
    assert not event.query()
    stream.synchronize()
    assert event.query()

@pytest.mark.requires(accelerator=True)
def test_a_sum(device):
    assert torch.ones(8, device=device).sum().item() == 8
"""


@pytest.fixture(scope="module", autouse=True)
def library() -> Path:
    """Return the backend. A run would build it, too, but a build may exceed these tests' limit for a run."""
    return build.build_softdevice()


def run(project: Project, *arguments: str, env: dict[str, str | None] | None = None, suites: str = "suites") -> Result:
    return project.run("--device=soft", *arguments, suites=suites, env={**_CACHE, **(env or {})})


def seen(result: Result) -> dict[str, set[str]]:
    """Return what the cases of each worker saw, by the worker's name."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in result.lines:
        if line["event"] == "finish" and line.get("stdout", "").startswith("sees"):
            found[line["worker"]].add(line["stdout"].split()[1])
    return found


@pytest.mark.ways("mode", ["batch", "case"])
def test_good_and_bad_cases(make_project: MakeProject, mode: str) -> None:
    project = make_project("soft")
    result = run(project, "-n0", f"--isolation={mode}", "--seed=5", "--case-timeout=100")
    compare(result, expected(project, mode), alone=mode == "case")
    finishes = {line["case"].rpartition("::")[2]: line for line in result.lines if line["event"] == "finish"}
    for name in ("test_streams_and_their_threads", "test_uses_one_after_the_other", "test_pins"):
        confirmed = [line for line in result.lines if line["event"] == "confirmation" and line["case"].endswith(name)]
        assert confirmed == [], "what the device has for itself is not even suspected after a second run"
    reproduce = finishes["test_fails"]["reproduce"]
    assert reproduce.startswith("SOFT_VISIBLE_DEVICES=SOFT-0 pytest suites/soft/test_soft.py::test_fails ")
    assert "--device=soft --seed=5" in reproduce
    assert "tensor" in finishes["test_leaves_a_tensor"]["message"]
    assert any("LEFT" in note for note in finishes["test_leaves_a_tensor"]["notes"])
    assert "index" in finishes["test_bad_index"]["message"]
    assert "the current device of soft" in finishes["test_leaves_another_device_chosen"]["message"]


@pytest.mark.nightly
def test_everything_says_that_it_is_a_software_device(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/events/test_events.py", _EVENTS)
    ids = [f"suites/events/test_events.py::{name}" for name in ("test_a_sum", "test_an_event_waits_for_its_stream")]
    (project.folder / "configs/must-pass").mkdir(parents=True)
    status, said = command(project, "catalog", "--must-pass", "configs/must-pass/core.txt", "--description", "core")
    assert status == 0, said
    result = run(project, "-n0", "--must-pass=core", env={"SOFT_DEVICE_COUNT": "3", "SOFT_DEVICE_MEMORY": "64MiB"})
    assert result.status == 0, result.tail()
    assert result.verdicts == dict.fromkeys(ids, "passed")
    assert "devices soft (software device), no GPU: SOFT-0, SOFT-1, SOFT-2; driver none" in result.terminal
    assert "must-pass list core.txt (2 cases" in result.terminal, result.tail()
    assert "on soft (software device): satisfied" in result.terminal
    suite = result.junit.find("testsuite")
    assert suite is not None
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["device"] == "soft (software device)"
    assert properties["devices"] == "SOFT-0 SOFT-1 SOFT-2"
    assert "on soft (software device): satisfied" in str(properties["must_pass"])
    assert "inject" not in properties
    environment = json.loads((result.run_dir / "environment.json").read_text())
    assert {(each["kind"], each["name"]) for each in environment["devices"]} == {("soft", "soft (software device)")}
    assert environment["software_device"].keys() == {"compiler", "key", "library"}
    assert environment["environment"]["SOFT_DEVICE_COUNT"] == "3"
    assert result.lines[0]["settings"]["device"] == "soft"


def test_hardware_of_another_kind_is_not_what_it_is(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/events/test_events.py", _EVENTS)
    configure(project, "hardware/gpus", description="GPUs", device={"device": "cuda"})
    configure(project, "hardware/host", description="the CPU", device={"device": "cpu"})
    for name in ("gpus", "host"):
        refused(
            run(project, "-n0", f"--hardware={name}"),
            f"device SOFT-0 does not match hardware {name}: device: wanted",
            "found soft",
        )


def test_two_workers_have_a_device_each(make_project: MakeProject) -> None:
    project = make_project()
    cases = "import os\nimport pytest\nimport torch\n\n" + (
        "@pytest.mark.parametrize('n', range(12))\ndef test_one(n, device):\n"
        "    assert torch.ones(3, device=device).sum().item() == 3\n"
        "    print('sees', os.environ['SOFT_VISIBLE_DEVICES'])\n"
    )
    project.write("suites/many/test_many.py", cases)
    result = run(project, "-n2", "--dist=load", env={"SOFT_DEVICE_COUNT": "3", "SOFT_VISIBLE_DEVICES": "2,0"})
    assert result.status == 0, result.tail()
    found = seen(result)
    assert all(len(devices) == 1 for devices in found.values()), found
    assert {uuid for devices in found.values() for uuid in devices} == {"SOFT-2", "SOFT-0"}
    alone = run(project, "-n", "auto", env={"SOFT_DEVICE_COUNT": "1"})
    assert alone.status == 0, alone.tail()
    assert "created: 1/1 worker" in alone.terminal


def test_injected_faults_reach_the_cases_and_every_record(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/events/test_events.py", _EVENTS)
    result = run(
        project, "-n0", "--inject=event_early", "--inject", "slow:0.000001,seed=3", env={"HARNESS_INJECT": "x"}
    )
    assert result.status == 1, result.tail()
    event = "suites/events/test_events.py::test_an_event_waits_for_its_stream"
    assert result.verdicts == {event: "failed", "suites/events/test_events.py::test_a_sum": "passed"}
    finish = next(line for line in result.lines if line["event"] == "finish" and line["case"] == event)
    assert finish["struck"]["event_early"] >= 1
    assert "--device=soft --inject=event_early --inject=slow:0.000001,seed=3 --seed=" in finish["reproduce"]
    assert result.lines[0]["settings"]["inject"] == "event_early; slow:0.000001,seed=3"
    assert "harness: injected event_early; slow:0.000001,seed=3" in result.terminal
    assert any(
        each.get("name") == "inject" and each.get("value") == "event_early; slow:0.000001,seed=3"
        for each in result.junit.iter("property")
    )


def test_the_device_without_isolation(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/events/test_events.py", _EVENTS)
    result = run(project, "-n0", "--isolation=none", "--inject=event_early")
    assert sorted(result.verdicts.values()) == ["failed", "passed"], result.tail()


@pytest.mark.ways(
    ("arguments", "env", "words"),
    [
        (
            ["--device=soft"],
            {"CXX": "/nonexistent/g++"},
            ["software device: /nonexistent/g++ does not start"],
        ),
        (["--device=soft"], {"SOFT_VISIBLE_DEVICES": ""}, ["SOFT_VISIBLE_DEVICES='' hides all software devices"]),
        (["--device=soft"], {"SOFT_DEVICE_COUNT": "no"}, ["SOFT_DEVICE_COUNT='no': expected a number from 1 to 64"]),
        (["--device=soft"], {"SOFT_INJECT": "slow"}, ["SOFT_INJECT is set: unset it and use --inject"]),
        (["--device=soft", "--inject=slwo"], {}, ["--inject='slwo': expected the name of", "did you mean 'slow'?"]),
        (
            ["--inject=slow"],
            {},
            ["--inject='slow': --device=auto has no faults; name a device that has: --device=cuda,"],
        ),
        (["--device=cuda"], {}, ["--device=cuda: there is no usable GPU"]),
        (
            ["--device=tpu"],
            {},
            ["--device=tpu: torch ", "knows no device of the type 'tpu'", "known here: auto, cuda, simcuda, "],
        ),
    ],
)
def test_what_cannot_be_is_refused(
    make_project: MakeProject, arguments: list[str], env: dict[str, str | None], words: list[str]
) -> None:
    project = make_project()
    project.write("suites/events/test_events.py", _EVENTS)
    refused(project.run("-n0", *arguments, env={**_CACHE, **env}), *words)


@pytest.mark.nightly
def test_a_profile_chooses_the_device(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/events/test_events.py", _EVENTS)
    configure(project, "profiles/software", description="on the software device", device="soft")
    result = project.run("-n", "auto", "--profile=software", env={**_CACHE, "SOFT_DEVICE_COUNT": "1"})
    assert result.status == 0, result.tail()
    assert "created: 1/1 worker" in result.terminal
    overruled = project.run("-n0", "--profile=software", "--device=cpu")
    assert set(overruled.verdicts.values()) == {"gated"}


def test_the_list_of_faults(make_project: MakeProject) -> None:
    project = make_project()
    status, said = command(project, "faults", "list")
    assert status == 0
    for name, breaks in faults.fault_catalogue("soft").items():
        assert any(line.split(None, 1) == [name, breaks] for line in said.splitlines()), said
    assert json.loads(command(project, "faults", "list", "--json")[1]) == dict(faults.fault_catalogue("soft"))


@pytest.mark.nightly
def test_devices_are_reported_as_what_they_are(make_project: MakeProject) -> None:
    project = make_project()
    status, said = command(project, "devices", "--device", "soft", "--json")
    assert status == 0, said
    values = json.loads(said)
    assert [(each["uuid"], each["kind"]) for each in values["devices"]] == [("SOFT-0", "soft"), ("SOFT-1", "soft")]
    assert values["capabilities"]["accelerator"]["value"] is True
    assert "soft (software device)" in command(project, "devices", "--device", "soft")[1]
    status, said = command(project, "devices", "--device", "soft", "--health")
    assert (status, "not on software devices" in said) == (4, True), said


_OWN_PROCESS = """
import os
import pytest
import torch

def fork(device):
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if torch.ones(4, device=device).sum().item() == 4 else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.own_process), False])
def test_fork(device, own):
    assert torch.soft.is_initialized() is not own
    assert fork(device) == (0 if own else 1)
"""


@pytest.mark.ways("mode", ["batch", "case"])
def test_a_case_in_its_own_process_can_fork_before_it_uses_the_device(make_project: MakeProject, mode: str) -> None:
    """The device is already in use for other cases, so its first use is not taken for their leak."""
    project = make_project()
    project.write("suites/test_fork.py", _OWN_PROCESS)
    result = run(project, "-n0", f"--isolation={mode}")
    assert result.status == 0, result.tail()

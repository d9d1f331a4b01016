"""Whole runs on the simulated CUDA: refusals and, with a CUDA build of torch, runs and their messages."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from harness.devices import software
from harness.sim.simcuda import build
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import Project, Result
from tests.acceptance.rules import command, configure, refused

_CACHE = {name: value for name, value in os.environ.items() if name in ("HARNESS_CACHE_DIR", "XDG_CACHE_HOME")}
_BUILT_FOR = software.torch_cuda_version()

needs_cuda_build = pytest.mark.skipif(
    _BUILT_FOR.value is None, reason=f"needs a CUDA build of torch: {_BUILT_FOR.detail or 'there is one'}"
)

_CASES = """
import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.requires(device="cuda")

def test_a_stream(device):
    assert not torch.cuda.is_initialized()
    assert device == torch.device("cuda", 0)
    stream, event = torch.cuda.Stream(device), torch.cuda.Event()
    event.record(stream)
    stream.synchronize()
    assert event.query()
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), torch.cuda.get_device_name(0))

def test_a_process_that_a_case_starts_has_the_device_too():
    script = "import torch; print(torch.cuda.get_device_name(0), torch.ones(2, device='cuda').sum().item())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "Simulated H100 (no GPU) 2.0\\n"

@pytest.mark.requires(devices=2)
def test_two_devices():
    assert [torch.cuda.get_device_properties(index).name for index in range(2)] == 2 * ["Simulated H100 (no GPU)"]

@pytest.mark.requires(silicon=True)
def test_needs_a_real_gpu():
    raise AssertionError("ran on a simulated one")
"""

_EVENTS = """
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.requires(device="cuda")

_SCRIPT = (
    "import torch; event, stream = torch.cuda.Event(), torch.cuda.Stream(); torch.cuda.set_stream(stream); "
    "torch.cuda._sleep(1_000_000_000); event.record(); done = event.query(); stream.synchronize(); print(done)"
)

def test_an_event_waits_for_its_stream():
    event, stream = torch.cuda.Event(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
        event.record()
    done = event.query()
    stream.synchronize()
    assert not done

def test_an_event_waits_for_its_stream_in_a_child():
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "False\\n"
"""

_BAD = """
import pytest
import torch

KEPT = []
pytestmark = pytest.mark.requires(device="cuda")

def test_leaves_a_tensor():
    KEPT.append(torch.ones(1 << 10, device="cuda"))

def test_leaves_another_stream_current():
    torch.ones(1, device="cuda")
    torch.cuda.set_stream(torch.cuda.Stream())

def test_bad_index():
    torch.zeros(2, device="cuda")[torch.tensor([7], device="cuda")]

def test_after_the_others():
    assert torch.ones(8, device="cuda").sum().item() == 8
"""


@pytest.fixture(scope="module")
def libraries() -> build.SimcudaLibraries:
    """Return the libraries. A run would build them, too, but a build may exceed these tests' limit for a run."""
    return build.build_simcuda()


def run(project: Project, *arguments: str, env: dict[str, str | None] | None = None) -> Result:
    return project.run("--device=simcuda", *arguments, env={**_CACHE, "CUDA_VISIBLE_DEVICES": None, **(env or {})})


def uuid(index: int) -> str:
    return f"GPU-51ed0000-0000-4000-8000-{index:012d}"


def verdicts(result: Result) -> dict[str, str]:
    return {case.rpartition("::")[2]: outcome for case, outcome in result.verdicts.items()}


@pytest.mark.skipif(_BUILT_FOR.value is not None, reason="this torch is a CUDA build")
def test_a_cpu_build_of_torch_is_refused(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/plain/test_plain.py", "def test_plain():\n    pass\n")
    refused(run(project, "-n0"), "--device=simcuda: the simulated CUDA needs a CUDA build of torch", "torch===2.13.0")
    status, said = command(project, "devices", "--device", "simcuda")
    assert (status, "needs a CUDA build of torch" in said) == (4, True), said


@needs_cuda_build
@pytest.mark.usefixtures("libraries")
class TestRuns:
    """Runs that need the libraries."""

    def test_everything_says_that_it_is_simulated(
        self, make_project: MakeProject, libraries: build.SimcudaLibraries
    ) -> None:
        project = make_project()
        project.write("suites/cuda/test_cuda.py", _CASES)
        result = run(project, "-n0", env={"SIMCUDA_DEVICE_COUNT": "3", "SIMCUDA_DEVICE_MEMORY": "256MiB"})
        assert result.status == 0, result.tail()
        assert verdicts(result) == {
            "test_a_stream": "passed",
            "test_a_process_that_a_case_starts_has_the_device_too": "passed",
            "test_two_devices": "passed",
            "test_needs_a_real_gpu": "gated",
        }
        three = [uuid(index) for index in range(3)]
        assert f"devices simulated CUDA (no GPU): {', '.join(three)}; driver 580.00" in result.terminal
        assert "silicon: wanted True, found False (simulated CUDA (no GPU))" in result.terminal
        suite = result.junit.find("testsuite")
        assert suite is not None
        properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
        assert properties["device"] == "simulated CUDA (no GPU)"
        assert properties["devices"] == " ".join(three)
        environment = json.loads((result.run_dir / "environment.json").read_text())
        assert {(each["kind"], each["name"]) for each in environment["devices"]} == {
            ("simcuda", "Simulated H100 (no GPU)")
        }
        assert environment["software_device"]["library"] == str(libraries.folder)
        assert environment["environment"]["SIMCUDA_DEVICE_COUNT"] == "3"
        assert result.lines[0]["label"] == "simulated CUDA (no GPU)"
        assert result.lines[0]["settings"]["device"] == "simcuda"

    @pytest.mark.parametrize("how", ["--isolation=case", "--start=cold", "--isolation=none"])
    def test_cases_run_in_every_way(self, make_project: MakeProject, how: str) -> None:
        project = make_project()
        cases = _CASES if how == "--isolation=case" else _CASES.replace("assert not torch.cuda.is_initialized()", "")
        project.write("suites/cuda/test_cuda.py", cases)
        project.write("suites/conftest.py", "import torch\n")  # the runtime must be loaded first, in each process
        result = run(project, "-n0", how)
        outcomes = verdicts(result)
        if how == "--isolation=none":  # the process sees only its first device
            outcomes.pop("test_two_devices")
        assert set(outcomes.values()) == {"passed", "gated"}, result.tail()

    def test_two_workers_have_a_device_each(self, make_project: MakeProject) -> None:
        project = make_project()
        case = "\n@pytest.mark.parametrize('n', range(12))\ndef test_many(n, device):\n    " + (
            "print('sees', os.environ['CUDA_VISIBLE_DEVICES'], torch.cuda.device_count())\n"
        )
        project.write("suites/cuda/test_cuda.py", "import os\nimport pytest\nimport torch\n" + case)
        env = {"SIMCUDA_DEVICE_COUNT": "3", "CUDA_VISIBLE_DEVICES": "2,0"}
        result = run(project, "-n2", "--dist=load", env=dict(env))
        assert result.status == 0, result.tail()
        seen: dict[str, set[str]] = defaultdict(set)
        for line in result.lines:
            if line["event"] == "finish":
                seen[line["worker"]].add(line["stdout"].strip())
        assert sorted(text for each in seen.values() for text in each) == [f"sees {uuid(0)} 1", f"sees {uuid(2)} 1"]

    def test_what_a_case_leaves_is_found(self, make_project: MakeProject) -> None:
        project = make_project()
        project.write("suites/bad/test_bad.py", _BAD)
        result = run(project, "-n0", "--seed=5")
        assert verdicts(result) == {
            "test_leaves_a_tensor": "leaked",
            "test_leaves_another_stream_current": "contaminated",
            "test_bad_index": "poisoned",
            "test_after_the_others": "passed",
        }, result.tail()
        finishes = {line["case"].rpartition("::")[2]: line for line in result.lines if line["event"] == "finish"}
        reproduce = finishes["test_bad_index"]["reproduce"]
        assert reproduce.startswith(f"CUDA_VISIBLE_DEVICES={uuid(0)} pytest suites/bad/test_bad.py::test_bad_index ")
        assert "--device=simcuda --seed=5" in reproduce
        assert "device-side assert" in finishes["test_bad_index"]["message"]
        assert "the current stream of cuda:0" in finishes["test_leaves_another_stream_current"]["message"]

    @pytest.mark.parametrize("mode", ["batch", "case"])
    def test_missing_waits_are_races(self, make_project: MakeProject, mode: str) -> None:
        project = make_project("raced")
        result = run(project, "-n0", "--race-check=on", f"--isolation={mode}", "--seed=5")
        compare(result, expected(project, mode), alone=mode == "case")
        finishes = {line["case"].rpartition("::")[2]: line for line in result.lines if line["event"] == "finish"}
        two = finishes["test_two_races"]
        assert two["message"].endswith("(in all 2 races: see standard error)")
        assert two["stderr"].count("test_raced.py:87 in test_two_races") == 2
        assert "--race-check=on" in two["reproduce"]
        assert "also raced: aten::mul reads 4096" in finishes["test_fails_too"]["notes"][0]
        executors = {line["executor"] for line in finishes.values()}
        assert len(executors) == (len(finishes) if mode == "case" else 1), "a race does not harm the process"

    def test_without_the_check_a_missing_wait_is_not_found(self, make_project: MakeProject) -> None:
        project = make_project("raced")
        result = run(project, "-n0")
        assert set(verdicts(result).values()) == {"passed", "failed"}, result.tail()

    @pytest.mark.parametrize(
        ("arguments", "why"), [(["--device=cpu"], "no device"), (["--isolation=none"], "isolation")]
    )
    def test_the_check_is_refused_where_it_cannot_be_made(
        self, make_project: MakeProject, arguments: list[str], why: str
    ) -> None:
        project = make_project("raced")
        refused(run(project, "-n0", *arguments, "--race-check=on"), f"--race-check=on: {why}", "--device=simcuda")
        ignored = run(project, "-n0", *arguments, "-o", "harness_race_check=on")
        assert set(verdicts(ignored).values()) < {"passed", "failed", "gated"}, ignored.tail()

    def test_no_claim_about_gpus_accepts_it(self, make_project: MakeProject) -> None:
        project = make_project()
        project.write("suites/cuda/test_cuda.py", _CASES)
        configure(project, "hardware/gpus", description="GPUs", device={"device": "cuda"})
        configure(project, "profiles/gpus", description="GPUs", requires={"device": "cuda"})
        for option in ("--hardware=gpus", "--profile=gpus"):
            refused(run(project, "-n0", option), "device: wanted cuda, found simcuda")

    def test_injected_faults_reach_the_cases_and_every_record(self, make_project: MakeProject) -> None:
        """They also reach the processes that cases start, and a pytest process that runs cases itself."""
        project = make_project()
        project.write("suites/events/test_events.py", _EVENTS)
        case = "suites/events/test_events.py::test_an_event_waits_for_its_stream"
        reported = "event_early; slow:0.000001,seed=3"
        result = run(project, "-n0", "--inject=event_early", "--inject=slow:0.000001,seed=3")
        assert result.verdicts == {case: "failed", f"{case}_in_a_child": "failed"}, result.tail()
        finish = next(line for line in result.lines if line["event"] == "finish" and line["case"] == case)
        assert finish["struck"] == {"event_early": 1}
        assert "--device=simcuda --inject=event_early --inject=slow:0.000001,seed=3 --seed=" in finish["reproduce"]
        assert result.lines[0]["settings"]["inject"] == reported
        assert f"harness: injected {reported}" in result.terminal
        properties = {each.get("name"): each.get("value") for each in result.junit.iter("property")}
        assert properties["inject"] == reported
        facts = json.loads((result.run_dir / "environment.json").read_text())
        assert facts["software_device"]["interposer"].endswith("/libcudafaults.so")
        alone = run(project, "-n0", "--isolation=none", "--inject=event_early")
        assert set(alone.verdicts.values()) == {"failed"}, alone.tail()

    def test_what_cannot_be_is_refused(self, make_project: MakeProject) -> None:
        project = make_project()
        project.write("suites/cuda/test_cuda.py", _CASES)
        for arguments, env, words in (
            (
                ["--inject=record_stream_ignored"],
                {},
                "expected the name of a fault of simcuda, not 'record_stream_ignored'",
            ),
            ([], {"SIMCUDA_DEVICE_COUNT": "no"}, "SIMCUDA_DEVICE_COUNT='no': expected a number from 1 to 64"),
            ([], {"CUDA_VISIBLE_DEVICES": ""}, "hides every GPU; unset CUDA_VISIBLE_DEVICES"),
            (["--isolation=none", "-p", "torch"], {}, "cannot be loaded into a process that has imported torch"),
            ([], {"CXX": "/nonexistent/g++"}, "the C++ compiler '/nonexistent/g++' does not start"),
        ):
            refused(run(project, "-n0", *arguments, env=dict(env)), words)

    def test_what_the_driver_says_is_what_the_capabilities_say(self, make_project: MakeProject) -> None:
        """The capabilities are constants, since querying them costs a process. This test queries them."""
        project = make_project()
        project.write(
            "suites/cuda/test_cuda.py",
            "import pytest\nimport pynvml\nimport torch\nfrom harness.devices import probe\n"
            "from harness.sim.simcuda import machine\n\n"
            "@pytest.mark.requires(device='cuda')\ndef test_the_driver():\n"
            "    torch.cuda.init()\n"
            "    found = {name: each['value'] for name, each in probe.probe_driver().items()}\n"
            "    assert found == {'cuda_malloc_async': True, 'expandable_segments': True}\n"
            "    pynvml.nvmlInit()\n"
            "    handle = pynvml.nvmlDeviceGetHandleByIndex(1)\n"
            "    device = machine.simulated_devices({})[1]\n"
            "    assert pynvml.nvmlSystemGetDriverVersion() == machine.DRIVER\n"
            "    assert pynvml.nvmlDeviceGetUUID(handle) == device.uuid\n"
            "    assert pynvml.nvmlDeviceGetName(handle) == device.name\n"
            "    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == device.memory\n"
            "    assert pynvml.nvmlDeviceGetPciInfo(handle).busId == device.pci_bus_id\n"
            "    assert pynvml.nvmlDeviceGetCurrentEccMode(handle) == 1\n"
            "    pynvml.nvmlShutdown()\n",
        )
        result = run(project, "-n0")
        assert result.status == 0, result.tail()

    def test_devices_are_reported_as_what_they_are(self, make_project: MakeProject) -> None:
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        project = make_project()
        status, said = command(project, "devices", "--device", "simcuda", "--json", env=env)
        assert status == 0, said
        values = json.loads(said)
        assert [(each["uuid"], each["kind"]) for each in values["devices"]] == [
            (uuid(0), "simcuda"),
            (uuid(1), "simcuda"),
        ]
        assert values["capabilities"]["silicon"]["value"] is False
        status, said = command(project, "devices", "--device", "simcuda", "--health", env=env)
        assert (status, "not on software devices" in said) == (4, True), said


@needs_cuda_build
def test_a_library_is_built_by_hand_without_torch(libraries: build.SimcudaLibraries) -> None:
    assert build.build_simcuda() == libraries
    assert all(library.is_file() for library in (*libraries.runtime, libraries.operators))
    assert [library.name.split(".so")[0] for library in libraries.runtime] == [
        "libcudart",
        "libcuda",
        "libnvidia-ml",
        "libcupti",
        "libnccl",
    ]
    assert build.describe_build()["key"] == Path(libraries.folder).name


#: A test for each device that the process sees which imports the file.
_EACH = """
import pytest, torch

@pytest.mark.parametrize("index", range(torch.cuda.device_count()))
def test_each(index):
    assert torch.cuda.device_count() == 1, "the device of the lease"
"""
#: Uses a device when it is imported, so that its executors start cold, and see their own devices from the start.
_USES = "import torch\nONES = torch.ones(2, device='cuda')\ndef test_it(): assert ONES.sum() == 2\n"


@needs_cuda_build
@pytest.mark.parametrize("start", ["fork", "cold"])
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_every_process_that_collects_sees_the_same_devices(make_project: MakeProject, start: str, workers: str) -> None:
    """With the hook, each worker collects for itself; a cold executor does so in any case."""
    project = make_project()
    project.write("suites/conftest.py", "def pytest_collection_modifyitems(items): pass\n")
    project.write("suites/test_each.py", _EACH)
    result = run(project, workers, f"--start={start}")
    wanted = {f"suites/test_each.py::test_each[{index}]": "passed" for index in range(2)}
    assert (result.status, result.verdicts) == (0, wanted), result.tail()


@needs_cuda_build
@pytest.mark.parametrize("start", ["auto", "cold"])
def test_a_file_that_uses_a_device_when_it_is_imported_gets_the_leased_one(
    make_project: MakeProject, start: str
) -> None:
    project = make_project()
    project.write("suites/test_uses.py", _USES)
    result = run(project, "-p", "harness.plugin", "-n0", f"--start={start}")
    assert (result.status, [*result.verdicts.values()]) == (0, ["passed"]), result.tail()

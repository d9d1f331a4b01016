"""``harness ready --passive`` as an operator types it, on a fake NVML: texts, files, exit statuses, what it imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import jsonschema
import pytest
import typer

from harness.cli.ready import parse_budget
from tests import fake_nvml
from tests.fake_nvml import State
from tests.ready.test_health_event import PlatformConnector
from tests.schemas import shipped_schema
from tests.warm.client import restore_signals

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
#: Problems of the machine that runs the tests are no concern of these tests.
STEPS = "".join(
    f"{kind}: {{verdict: ready}}\n"
    for kind in ("log_unreadable", "clock", "shared_memory", "open_files", "disk_low", "disk_full", "stuck_process")
)


@pytest.fixture
def state(tmp_path: Path) -> State:
    """Return the state of the fake's GPUs."""
    return State(tmp_path / "gpus")


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Return a file that makes the problems of this machine harmless."""
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS)
    return path


def ready(*words: object, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "ready", *map(str, words)]
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_ready_node(nvml_folder: Path, state: State, steps: Path) -> None:
    done = ready("--passive", "--steps", steps, environ=fake_nvml.environment(nvml_folder, gpus=8, state=state))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("ready: 8 GPUs, ")
    assert len([each for each in done.stderr.splitlines() if each.startswith("ready      GPU ")]) == 8


def test_a_node_that_is_not_ready(nvml_folder: Path, state: State, steps: Path, tmp_path: Path) -> None:
    state.set(3, rows_failed=1)
    environ = fake_nvml.environment(nvml_folder, gpus=8, state=state)
    done = ready("--passive", "--steps", steps, "--prometheus", tmp_path / "ready.prom", environ=environ)
    assert done.returncode == 1
    assert done.stdout.startswith("not ready: GPU 3: row_remapping: a row remapping failed; 0 rows remapped")
    assert "; next: open a ticket with the vendor" in done.stdout
    first = next(line for line in done.stderr.splitlines() if "  GPU " in line)
    assert first.startswith("not ready  GPU 3 (Fake GPU 80GB, GPU-")
    assert 'verdict="not_ready"} 1' in (tmp_path / "ready.prom").read_text()


@pytest.mark.parametrize(
    ("words", "status"), [([], 0), (["--strict"], 1), (["--nagios"], 1), (["--nagios", "--strict"], 2)]
)
def test_a_degraded_node(nvml_folder: Path, state: State, steps: Path, words: list[str], status: int) -> None:
    state.set(0, persistence=0)
    environ = fake_nvml.environment(nvml_folder, gpus=1, state=state)
    done = ready("--passive", "--steps", steps, *words, environ=environ)
    assert done.returncode == status, done.stderr
    assert "degraded: GPU 0: persistence: off; next: fix the configuration" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert bool(done.stderr) is ("--nagios" not in words)


def test_json_satisfies_the_shipped_schema(nvml_folder: Path, state: State) -> None:
    state.set(1, temperature=89, process=1)
    done = ready("--passive", "--json", environ=fake_nvml.environment(nvml_folder, gpus=2, state=state))
    report = json.loads(done.stdout)
    jsonschema.validate(report, shipped_schema("ready/ready"))
    assert {"driver": "570.86.15", "vbios": "96.00.74.00.01"}.items() <= report["stack"].items()
    assert [gpu["serial"] for gpu in report["gpus"]] == ["1650000000000", "1650000000001"]
    assert {"temperature", "processes"} <= {problem["kind"] for problem in report["problems"]}
    assert not done.stderr


def test_the_report_as_a_run_directory(nvml_folder: Path, state: State, steps: Path, tmp_path: Path) -> None:
    state.set(1, rows_failed=1)
    environ = fake_nvml.environment(nvml_folder, gpus=2, state=state)
    options = ("--passive", "--steps", steps, "--results-dir", tmp_path / "run")
    assert ready(*options, environ=environ).returncode == 1
    command = [sys.executable, "-m", "harness", "report", str(tmp_path / "run")]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "FAILED ready/gpu 1::row_remapping - not ready: wanted no failed row remapping" in done.stdout
    again = ready(*options, environ=environ)
    assert (again.returncode, again.stdout) == (2, "")
    assert "already contains a run" in again.stderr


@pytest.mark.parametrize(
    ("rows_failed", "strategy", "refusals", "status", "words"),
    [
        (0, "EXECUTE_REMEDIATION", [], 0, ""),
        (1, "EXECUTE_REMEDIATION", [], 1, ""),
        (1, "STORE_ONLY", [], 0, "exit status 0 in place of 1, since NVSentinel's strategy is STORE_ONLY"),
        (0, "EXECUTE_REMEDIATION", [grpc.StatusCode.PERMISSION_DENIED], 3, "NVSentinel has not got the verdict"),
        (1, "STORE_ONLY", [grpc.StatusCode.PERMISSION_DENIED], 1, "NVSentinel has not got the verdict"),
    ],
    ids=["ready", "not ready", "stored", "refused", "not ready and refused"],
)
def test_a_preflight_check_of_nvsentinel(
    nvml_folder: Path,
    state: State,
    steps: Path,
    tmp_path: Path,
    rows_failed: int,
    strategy: str,
    refusals: list[grpc.StatusCode],
    status: int,
    words: str,
) -> None:
    state.set(1, rows_failed=rows_failed)
    connector = PlatformConnector(tmp_path / "c.sock")
    connector.refusals = refusals[:]
    environ = fake_nvml.environment(nvml_folder, gpus=2, state=state)
    with connector.served() as found:
        environ |= {"PLATFORM_CONNECTOR_SOCKET": found.address, "NODE_NAME": "node-1", "PROCESSING_STRATEGY": strategy}
        done = ready("--passive", "--steps", steps, "--health-event=auto", environ=environ)

    assert done.returncode == status, done.stderr
    assert done.stdout.startswith("not ready: GPU 1: row_remapping: " if rows_failed else "ready: 2 GPUs, ")
    assert len(done.stdout.splitlines()) == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    (batch,) = connector.batches
    assert {event["nodeName"] for event in batch["events"]} == {"node-1"}
    assert [event.get("isFatal", False) for event in batch["events"]] == [False, False, bool(rows_failed)]
    entities = [{each["entityType"] for each in event.get("entitiesImpacted", [])} for event in batch["events"]]
    assert entities == [set(), {"PCI", "GPU_UUID"}, {"PCI", "GPU_UUID"}]


def test_the_examination_of_devices_shows_what_the_readings_say(nvml_folder: Path, state: State) -> None:
    state.set(1, rows_failed=1)
    command = [sys.executable, "-m", "harness", "devices", "--health"]
    environ = {**fake_nvml.environment(nvml_folder, gpus=2, state=state), "COLUMNS": "300"}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    first, second = done.stdout.split("SICK GPU-")[1:]  # no torch computes on a fake GPU
    assert done.returncode == 1
    assert "row_remapping" not in first
    assert "    not ready: row_remapping: wanted no failed row remapping, found a row remapping failed; " in second


def test_without_a_driver_the_node_is_not_ready(nvml_folder: Path) -> None:
    done = ready("--passive", environ=fake_nvml.environment(nvml_folder, FAKE_NVML_INIT="9"))
    assert done.returncode == 1
    assert done.stdout.startswith("not ready: driver: Driver Not Loaded; ")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--steps", "none.yaml"], 2, "none.yaml"),
        (["--hardware", "h999"], 2, "there is no hardware 'h999'"),
        (["--device", "cpu"], 2, "--device='cpu': expected one of auto, cuda, simcuda"),
        (["--inject", "nothing"], 2, "--inject='nothing': expected the name of a fault"),
        (["--inject", "event_early"], 2, "--inject breaks what a device computes"),
        (["--budget", "soon"], 4, "'soon': expected 5s to 24h"),
        (["--health-event", "auto"], 2, "$PLATFORM_CONNECTOR_SOCKET is not set"),
        (["--health-event", "/a", "--hosts", "a,b"], 4, "--health-event and -v are about one node"),
        (["--json", "--nagios"], 4, "--json and --nagios"),
    ],
)
def test_without_a_verdict_the_exit_status_says_so(nvml_folder: Path, words: list[str], status: int, text: str) -> None:
    done = ready("--passive", *words, environ={**fake_nvml.environment(nvml_folder), "COLUMNS": "300"})
    assert (done.returncode, done.stdout) == (status, "")
    assert text in done.stderr


def test_a_plugin_of_nagios_is_unknown_without_a_verdict(nvml_folder: Path) -> None:
    environ = fake_nvml.environment(nvml_folder)
    done = ready("--passive", "--nagios", "--steps", "none.yaml", environ=environ)
    assert done.returncode == 3
    assert done.stdout.startswith("GPU UNKNOWN - no verdict: ")


def test_the_command_imports_neither_torch_nor_pytest(nvml_folder: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "harness", "ready", "--passive"]
    environ = fake_nvml.environment(nvml_folder, gpus=1)
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "msgspec" in imported
    assert not {"torch", "pytest"} & imported


@pytest.mark.parametrize(
    ("text", "seconds"), [("20s", 20), ("60", 60), ("10m", 600), ("1.5m", 90), ("2h", 7200), ("5 min", 300)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5s", "1s", "25h", "1e3", "10 minutes", "\u0663\u0660s"])
def test_a_budget_that_is_none(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected 5s to 24h"):
        parse_budget(text)


def test_a_fault_of_the_command_is_no_verdict(nvml_folder: Path, tmp_path: Path) -> None:
    """Python ends with 1 after an error, which would mean that the node is not ready."""
    (tmp_path / "sitecustomize.py").write_text(
        "import harness.ready.passive\n\n\ndef broken(**_):\n    raise ZeroDivisionError('a bug')\n\n\n"
        "harness.ready.passive.read_node = broken\n"
    )
    environ = {**fake_nvml.environment(nvml_folder), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = ready("--passive", environ=environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("harness: no verdict: a fault of harness ready: ZeroDivisionError: a bug\n")


def test_an_interrupted_check_is_no_verdict(nvml_folder: Path, tmp_path: Path) -> None:
    """The fake driver hangs; the signal comes when its log shows that it was asked. Nothing waits for the driver."""
    log = tmp_path / "calls"
    os.mkfifo(log)  # the reader's end of it returns once the fake has opened it
    environ = fake_nvml.environment(nvml_folder, FAKE_NVML_HANG="nvmlInitWithFlags", FAKE_NVML_LOG=str(log))
    command = [sys.executable, "-m", "harness", "ready", "--passive"]
    with subprocess.Popen(
        command, env=environ, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=restore_signals
    ) as process:
        with log.open() as calls:
            assert calls.readline() == "nvmlInitWithFlags\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "no verdict: interrupted" in said

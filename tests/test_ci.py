"""The scripts of `ci/`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

CI = Path(__file__).parents[1] / "ci"
STEPS = ["suites", "soft", "simcuda", "chaos"]

#: Takes the place of python3. A virtual environment that it makes has a pip that does nothing, and a pytest that prints
#: its arguments and fails in the step that $BROKEN names.
_PYTHON = """#!/bin/bash
if [[ $1 == --version ]]; then echo "Python 3.fake"; exit; fi
mkdir -p "$3/bin"
echo "made $(basename "$3" | sed 's/-.*//')" >> "$LOG"
cat > "$3/bin/pip" <<'END'
#!/bin/bash
echo "pip $*" >> "$LOG"
[[ -z $UNFOUND || "$*" != *"$UNFOUND"* ]]
END
cat > "$3/bin/pytest" <<'END'
#!/bin/bash
echo "pytest $* $CHAOS_SEEDS" >> "$LOG"
[[ -z $BROKEN || "$*" != *"$BROKEN"* ]]
END
chmod +x "$3"/bin/*
"""


class Night:
    """Runs the script with a fake Python."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").write_text(_PYTHON)
        (folder / "bin" / "python3").chmod(0o755)
        self.log = folder / "log"
        self.environ = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "NIGHTLY_CACHE": str(folder / "cache"),
            "NIGHTLY_RESULTS": "out",
            "NIGHTLY_SEED": "7",
            "NIGHTLY_WORKERS": "3",
        }

    def run(self, *steps: str, **more: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        return subprocess.run(
            [CI / "nightly.sh", *steps], env=self.environ | more, capture_output=True, text=True, check=False
        )

    def calls(self, word: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(word)]


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def test_all_steps_run_with_the_seed_of_the_night(night: Night) -> None:
    done = night.run()
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("==")] == [
        f"== {step} (seed 7)" for step in STEPS
    ]
    assert [call.rstrip() for call in night.calls("pytest")] == [
        "pytest suites/ -n 3 --profile nightly --seed 7 --results-dir out/suites",
        "pytest suites/ -n 3 --profile soft --shuffle --seed 7 --results-dir out/soft",
        "pytest suites/ -n 3 --device simcuda --shuffle --seed 7 --results-dir out/simcuda",
        "pytest tests/chaos -n 3 --dist worksteal 7,8,9,10,11,12,13,14,15,16",
    ]


def test_environments_are_made_once(night: Night) -> None:
    night.run("suites", "simcuda", "soft")
    assert night.calls("made") == ["made plain", "made cuda"]
    assert "torch===" in night.calls("pip")[2]
    night.run("suites", "simcuda")
    assert night.calls("made") == []


def test_a_step_that_fails_does_not_keep_the_others_from_running(night: Night) -> None:
    done = night.run(BROKEN="--device simcuda")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["ci/nightly.sh: failed: simcuda: exit status 1"]
    assert len(night.calls("pytest")) == 4


def test_an_environment_that_cannot_be_made_fails_its_step_and_is_not_kept(night: Night) -> None:
    done = night.run("simcuda", "soft", UNFOUND="torch===")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["ci/nightly.sh: failed: simcuda: exit status 1"]
    assert len(night.calls("pytest")) == 1
    night.run("simcuda")
    assert night.calls("made") == ["made cuda"]


def test_an_unknown_step_is_refused_before_any_runs(night: Night) -> None:
    done = night.run("soft", "bogus")
    assert done.returncode == 2
    assert done.stderr == f"ci/nightly.sh: unknown step 'bogus': expected one of {' '.join(STEPS)}\n"
    assert night.calls("pytest") == []


@pytest.mark.parametrize("seed", ["tonight", "-1", "a[$(touch made)]"])
def test_a_seed_that_is_no_number_is_refused(night: Night, seed: str) -> None:
    done = night.run("chaos", NIGHTLY_SEED=seed)
    assert done.returncode == 2
    assert done.stderr == f"ci/nightly.sh: NIGHTLY_SEED={seed!r}: expected a number, such as 20261122\n"
    assert night.calls("pytest") == []


def test_the_workflow_has_a_job_for_each_step() -> None:
    jobs = yaml.safe_load((CI / "nightly.yml").read_text())["jobs"]
    assert jobs["nightly"]["strategy"]["matrix"]["step"] == STEPS
    assert {"run": "ci/nightly.sh ${{ matrix.step }}"} in jobs["nightly"]["steps"]

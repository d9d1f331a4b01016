"""`harness waivers` as users run it: in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.gating.waiverfile import load_waivers
from harness.journal import environment
from tests.cli.commands import ROOT, harness, refused
from tests.journal import journals
from tests.reporting import build

pytestmark = pytest.mark.acceptance

SOON, LATER, PAST = (date.today() + timedelta(days=days) for days in (5, 90, -5))

CASES = """
import pytest

pytestmark = pytest.mark.requires(device="cuda")


@pytest.mark.parametrize("size", [1, 2])
def test_sum(size):
    raise AssertionError("this must not run")


@pytest.mark.requires(compute_capability=">=9.0")
def test_difference():
    raise AssertionError("this must not run")
"""

CONFTEST = """
def pytest_configure(config):
    config.addinivalue_line("markers", "requires(): for these tests")
"""

H200 = 'description: a GPU\ndevice: {device: cuda, compute_capability: "9.0"}\n'


def entry(case: str, expires: date = LATER, link: str = "https://example.org/1", when: str = "{}") -> str:
    return (
        f'  - case: "{case}"\n    when: {when}\n    expect: failed\n    reason: known\n    link: "{link}"\n'
        f"    owner: somebody\n    expires: {expires}\n"
    )


def waivers(project: Path, *entries: str, name: str = "known.yaml") -> None:
    (project / "configs" / "waivers").mkdir(parents=True, exist_ok=True)
    (project / "configs" / "waivers" / name).write_text("".join(["waivers:\n", *entries]))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with three cases and one kind of hardware."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nstrict_markers = true\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "suites" / "sums").mkdir(parents=True)
    (tmp_path / "suites" / "sums" / "test_sums.py").write_text(CASES)
    (tmp_path / "configs" / "hardware").mkdir(parents=True)
    (tmp_path / "configs" / "hardware" / "h200.yaml").write_text(H200)
    return tmp_path


def test_lint_of_sound_files(project: Path) -> None:
    waivers(project, entry("suites/sums/test_sums.py::test_sum[*]", when="{driver: '>=570'}"))
    waivers(project, entry("*::test_difference"), name="more.yaml")
    done = harness("waivers", "lint", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 waivers in 2 files, 3 cases, 1 kind of hardware: 0 errors, 0 notes\n"


def test_lint_tells_everything_there_is_to_say_a_line_each(project: Path) -> None:
    waivers(
        project,
        entry("*::test_sum[1]", expires=SOON),
        entry("*::test_sum[?]"),
        entry("*::test_product"),
        entry("*::test_difference", when="{compute_capability: '>=10.0'}", link=""),
        entry("*::test_difference", when="{not: {device: cuda}}", expires=PAST),
    )
    waivers(project, entry("x").replace("failed", "faild"), name="broken.yaml")
    days = {(SOON - date.today()).days}
    done = harness("waivers", "lint", cwd=project)
    days.add((SOON - date.today()).days)  # a different number if midnight comes in between
    assert (done.returncode, done.stderr) == (1, "")
    file = "configs/waivers/known.yaml"
    (reported,) = {int(number) for number in re.findall(r"expires in (\d+) days", done.stdout)}
    assert reported in days
    assert done.stdout.splitlines() == [
        "error: configs/waivers/broken.yaml:4: waivers[0].expect: there is no outcome 'faild'; did you mean 'failed'?",
        f"note: {file}:2: expires_soon: expires in {reported} days, on {SOON} (owner: somebody)",
        f"error: {file}:9: two_waivers: applies to 'suites/sums/test_sums.py::test_sum[1]'; "
        f"the waiver in {file}:2 does too: keep one",
        f"error: {file}:16: matches_nothing: '*::test_product' matches no case: "
        "correct the pattern or remove the waiver",
        f"error: {file}:23: no_link: has no link: give the URL of the issue that it waits for",
        f"error: {file}:23: no_hardware: no declared hardware (h200) meets its conditions: "
        "declare the hardware, or remove the waiver",
        f"error: {file}:30: expired: expired on {PAST}: renew or remove it (owner: somebody)",
        f"error: {file}:30: never_applies: never applies, since 'when' contradicts the requirements of every case that "
        "it matches: correct 'when'",
        "5 waivers in 2 files, 3 cases, 1 kind of hardware: 7 errors, 1 note",
    ]


def test_lint_of_named_files_alone_where_there_is_nothing_else(tmp_path: Path) -> None:
    waivers(tmp_path, entry("suites/gone.py::test_x"))
    file = tmp_path / "configs" / "waivers" / "known.yaml"
    done = harness("waivers", "lint", str(file), "configs/waivers", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 waiver in 1 file, no catalogue, no declared hardware: 0 errors, 0 notes\n"


def test_lint_against_a_catalogue_and_hardware_of_choice(project: Path) -> None:
    waivers(project, entry("*::test_difference", when="{compute_capability: '10.0'}"), entry("*::test_product"))
    listed = subprocess.run(
        [sys.executable, "-m", "harness", "catalog", "--format", "json"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (project / "catalog.json").write_text(listed.stdout.replace("test_sum[1]", "test_product"))
    (project / "declared").mkdir()
    (project / "declared" / "b200.yaml").write_text(H200.replace("9.0", "10.0"))
    done = harness("waivers", "lint", "--catalog", "catalog.json", "--hardware", "declared", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 waivers in 1 file, 3 cases, 1 kind of hardware: 0 errors, 0 notes\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<xml/>", "'catalog.json' is not an output of 'harness catalog --format json': JSON is malformed"),
        ('[{"id": "a"}]', "Object missing required field `requires`"),
        ('[{"id": "a", "requires": [{"memroy": 1}]}]', "case 'a' of 'catalog.json' has an invalid 'requires' mark: "),
    ],
)
def test_lint_against_something_else(project: Path, text: str, words: str) -> None:
    waivers(project, entry("*::test_difference"))
    (project / "catalog.json").write_text(text)
    assert words in refused(harness("waivers", "lint", "--catalog", "catalog.json", cwd=project))


def test_lint_without_the_files_that_it_should_read(project: Path) -> None:
    words = "harness: there is no folder 'configs/waivers' here: name waiver files"
    assert refused(harness("waivers", "lint", cwd=project)) == words
    waivers(project, entry("*::test_difference"))
    assert "'gone' is not a folder: " in refused(harness("waivers", "lint", "--hardware", "gone", cwd=project))
    assert "there is no catalogue at 'gone.json'" in refused(
        harness("waivers", "lint", "--catalog", "gone.json", cwd=project)
    )
    done = harness("waivers", "lint", "gone.yaml", cwd=project)
    assert done.returncode == 1
    assert done.stdout.startswith("error: there is no configuration file at 'gone.yaml': ")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the directory of a run with one red case, and one that was waived but passed."""
    ruling = {"outcome": "unexpected_pass", "text": "passed, but waived", "source": "configs/waivers/known.yaml:9"}
    lines = [
        build.run(),
        build.collected("a.py::a", "a.py::b"),
        build.finish("a.py::a", Outcome.FAILED, message="assert 1 == 2", devices=["GPU-1"]),
        build.finish("a.py::b", ruling=ruling),
    ]
    folder = journals.write(tmp_path / "run", lines)
    environment.write_environment(
        folder, {"devices": [{"uuid": "GPU-1", "compute_capability": [9, 0]}], "driver": "570.1"}
    )
    return folder


@pytest.mark.usefixtures("run")
def test_update_prints_entries_to_paste_and_what_to_remove(tmp_path: Path) -> None:
    today = date.today()
    done = harness("waivers", "update", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "# proposed by: harness waivers update run"
    assert '  - case: "a.py::a"' in lines
    assert lines[-1] == "# configs/waivers/known.yaml:9: a.py::b: passed, but waived"
    (tmp_path / "new.yaml").write_text(done.stdout.replace("owner: ''", "owner: somebody"))
    (waiver,) = load_waivers([tmp_path / "new.yaml"], tmp_path)
    assert waiver.when == {"device": "cuda", "compute_capability": "==9.0", "driver": ">=570.1,<571"}
    assert waiver.expires in {day + timedelta(days=30) for day in (today, date.today())}


@pytest.mark.usefixtures("run")
def test_update_writes_a_new_file_and_no_other(tmp_path: Path) -> None:
    done = harness("waivers", "update", "run", "--output", "new.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "wrote new.yaml: 1 waiver to check, 1 remark\n"
    written = (tmp_path / "new.yaml").read_text()
    assert written == harness("waivers", "update", "run", cwd=tmp_path).stdout
    words = "harness: 'new.yaml' exists already and is not replaced: name a new file"
    assert refused(harness("waivers", "update", "run", "--output", "new.yaml", cwd=tmp_path)) == words
    assert (tmp_path / "new.yaml").read_text() == written
    assert "cannot write 'gone/new.yaml'" in refused(
        harness("waivers", "update", "run", "--output", "gone/new.yaml", cwd=tmp_path)
    )


def test_update_from_what_is_no_run(tmp_path: Path) -> None:
    assert "there is no journal at 'journal.ndjson'" in refused(harness("waivers", "update", ".", cwd=tmp_path))


@pytest.mark.nightly  # .ci/run lints them for each change
def test_the_waivers_of_this_project_are_sound() -> None:
    done = harness("waivers", "lint", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_in_the_waivers_of_this_project_can_be_used(tmp_path: Path) -> None:
    lines = (ROOT / "configs" / "waivers" / "known.yaml").read_text().splitlines()
    example = [line.removeprefix("# ") for line in lines[lines.index("# waivers:") : lines.index("waivers: []")]]
    (tmp_path / "example.yaml").write_text("\n".join(example))
    (waiver,) = load_waivers([tmp_path / "example.yaml"], tmp_path)
    assert waiver.expect == (Outcome.FAILED,)

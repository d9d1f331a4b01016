"""The file of slow test files: created from runs, read by runs without history."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.cli.main import app
from harness.core.errors import HarnessError
from harness.devices.device import CPU, Inventory
from harness.gating.configfile import ConfigError
from harness.scheduling import durations
from harness.scheduling.durations import Durations, SlowFiles
from tests.journal import journals
from tests.reporting import build
from tests.scheduling.test_durations import settings

SLOW, FAST = "s/slow.py", "s/fast.py"


def test_a_file_takes_the_mean_of_its_longest_and_its_average_case() -> None:
    """The longest time of each case in any run counts: in another order, another case compiles the shared code."""
    first = {f"{SLOW}::a": 9.0, f"{SLOW}::b": 0.5, f"{FAST}::c": 0.02}
    second = {f"{SLOW}::a": 0.5, f"{SLOW}::b": 5.0, f"{FAST}::c": 0.04}
    assert durations.measured_slow_files([first, second]) == SlowFiles(other=0.04, files={SLOW: 8.0})


def test_no_file_is_fast() -> None:
    assert durations.measured_slow_files([{f"{SLOW}::a": 9.0}]) == SlowFiles(other=durations.LISTED, files={SLOW: 9.0})


@given(st.dictionaries(st.text("ab\"':#{}[]é -.,", min_size=1, max_size=5), st.floats(0, 1e6), min_size=1))
def test_what_is_written_can_be_read(tmp_path_factory: pytest.TempPathFactory, seconds: dict[str, float]) -> None:
    folder = tmp_path_factory.mktemp("configs")
    found = durations.measured_slow_files([{f"s/{name}.py::x": taken for name, taken in seconds.items()}])
    (folder / durations.SLOW_FILES).write_text(durations.slow_files_text(found))
    assert durations.load_slow_files(folder) == found


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert durations.load_slow_files(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("files: {}\n", "durations.yaml:1: the key 'other' is missing"),
        ("other: 0.1\nfiles:\n  s/a.py: -1\n", "durations.yaml:3: files.'s/a.py': wanted greater than 0, found -1"),
        ("other: 0.1\nfiles: [a]\n", "durations.yaml:2: files"),
        ("other: soon\n", "durations.yaml:1: other"),
    ],
)
def test_a_wrong_file_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / durations.SLOW_FILES).write_text(text)
    with pytest.raises(ConfigError) as caught:
        durations.load_slow_files(tmp_path)
    assert message in str(caught.value)
    with pytest.raises(pytest.UsageError):
        Durations.of(settings(), tmp_path, tmp_path, Inventory((CPU,)))


def run_dir(folder: Path, **seconds: float) -> Path:
    ids = [f"s/{name}.py::x" for name in seconds]
    lines = [build.finish(case, duration=taken) for case, taken in zip(ids, seconds.values(), strict=True)]
    return journals.write(folder, [build.run(), build.collected(*ids), *lines, build.end()])


def test_the_command_writes_what_a_run_reads(tmp_path: Path) -> None:
    runs = [run_dir(tmp_path / "1", slow=3.0, fast=0.1), run_dir(tmp_path / "2", slow=1.0, fast=0.2)]
    out = tmp_path / durations.SLOW_FILES
    done = CliRunner().invoke(app, ["durations", *map(str, runs), "-o", str(out)])
    assert (done.exit_code, done.output) == (0, f"wrote {out}: 1 slow test files, from 2 cases in 2 runs\n")
    assert durations.load_slow_files(tmp_path) == SlowFiles(other=0.2, files={SLOW: 3.0})
    printed = CliRunner().invoke(app, ["durations", *map(str, runs)])
    assert printed.output == out.read_text()


def test_runs_without_cases_give_no_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["durations", str(run_dir(tmp_path / "1"))])
    assert isinstance(done.exception, HarnessError)
    assert str(done.exception) == f"no case ran in '{tmp_path / '1'}'"


def test_the_file_of_this_project_names_files_that_exist() -> None:
    root = Path(__file__).parents[2]
    ours = durations.load_slow_files(root / "configs")
    assert ours is not None
    assert [name for name in ours.files if not (root / name).is_file()] == []

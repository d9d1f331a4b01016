"""`python -m torch.cuda._memory_viz`: from a snapshot file to a page, a text or a picture."""

from __future__ import annotations

import io
import pickle
import runpy
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from . import _torch_private as private
from . import builder, pages
from .builder import MIB, Paper, Snapshot, stack

FILE = "snapshot.pickle"

Command = Callable[..., str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the program in this process, with its own working directory and home; return its standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))  # the program removes its own directory
    private.module(private.VIZ)
    monkeypatch.delitem(sys.modules, private.VIZ)  # otherwise Python warns that it is already imported

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["memory_viz", *arguments])
        capsys.readouterr()
        runpy.run_module(private.VIZ, run_name="__main__", alter_sys=True)
        return capsys.readouterr().out

    return run


def stored(path: Path, value: object) -> str:
    path.write_bytes(pickle.dumps(value))
    return str(path)


def drawing_program(home: Path) -> None:
    """Write a stand-in for the flame graph program to the path where torch looks before a download.

    It copies its input.
    """
    script = home / ".cache" / "flamegraph.pl"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.stdout.write('drawn\\n' + sys.stdin.read())\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


PLOTS: dict[str, tuple[Sequence[str], str]] = {
    "trace": (["trace_plot"], "Active Memory Timeline"),
    "cached": (["trace_plot", "--segments"], "Active Cached Memory Timeline"),
    "segments": (["segment_plot"], "Allocator State History"),
}


@pytest.mark.parametrize(("arguments", "kind"), PLOTS.values(), ids=PLOTS.keys())
@pytest.mark.parametrize("output", [None, "page.html"])
def test_memory_viz_trace_plot_and_segment_plot_make_a_page_of_a_file(
    command: Command, tmp_path: Path, arguments: Sequence[str], kind: str, output: str | None
) -> None:
    """The page is written to the given file, or to output.html, and contains the snapshot."""
    snapshot = builder.ordinary()
    source = stored(tmp_path / "in", snapshot)

    command(*arguments, source, *([] if output is None else ["-o", output]))

    written = {path.name for path in tmp_path.iterdir()} - {"in"}
    assert written == {output or "output.html"}
    page = (tmp_path / (output or "output.html")).read_text(encoding="utf-8")
    assert pages.plot(page) == pages.Plot(kind, {FILE: snapshot})


def test_memory_viz_filter_freed_leaves_out_what_was_freed(command: Command, tmp_path: Path) -> None:
    """`--filter_freed` removes freed allocations from the page."""
    source = stored(tmp_path / "in", builder.two_devices())

    command("trace_plot", "--filter_freed", source)

    shown = pages.plot((tmp_path / "output.html").read_text(encoding="utf-8")).files[FILE]
    assert [[entry["action"] for entry in trace] for trace in shown["device_traces"]] == [
        ["segment_alloc", "alloc"],
        ["segment_alloc"],
    ]


def test_memory_viz_stats_and_trace_print_texts(command: Command, tmp_path: Path) -> None:
    """`stats` and `trace` print the summary and the program, and write no file."""
    snapshot = builder.ordinary()
    source = stored(tmp_path / "in", snapshot)

    assert command("stats", source) == private.segsum(snapshot) + "\n"
    assert command("trace", source) == private.trace(snapshot) + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("kind", ["segments", "memory"])
def test_memory_viz_segments_and_memory_draw_flamegraphs(command: Command, tmp_path: Path, kind: str) -> None:
    """`segments` and `memory` pass the stacks to the drawing program and write its output to a file."""
    drawing_program(tmp_path)
    snapshot = builder.ordinary()

    command(kind, stored(tmp_path / "in", snapshot), "-o", str(tmp_path / "picture.svg"))

    assert (tmp_path / "picture.svg").read_text(encoding="utf-8") == "drawn\n" + private.flame_lines(kind, snapshot)


@pytest.mark.xfail(
    raises=TypeError, reason="the command passes whole snapshots to compare(), which takes lists of segments"
)
def test_memory_viz_compare_draws_two_files(command: Command, tmp_path: Path) -> None:
    """`compare` draws what only one of two snapshots has."""
    drawing_program(tmp_path)
    first, second = Paper(), Paper()
    for paper, address in ((first, 0x1000_0000), (second, 0x2000_0000)):
        paper.reserve(address, 2 * MIB)
        paper.take(address, 512, *stack("f"))
    before, now = (stored(tmp_path / name, each.snapshot()) for name, each in (("a", first), ("b", second)))

    command("compare", before, now)

    drawn = (tmp_path / "output.svg").read_text(encoding="utf-8")
    assert f"only_before;stream_0;seg_{0x1000_0000};" in drawn
    assert f"only_after;stream_0;seg_{0x2000_0000};" in drawn


def test_memory_viz_reads_a_snapshot_from_standard_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file name `-` means standard input."""
    snapshot = builder.ordinary()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(pickle.dumps(snapshot))))

    assert command("stats", "-") == private.segsum(snapshot) + "\n"


def test_memory_viz_takes_a_list_of_segments(command: Command, tmp_path: Path) -> None:
    """A list of segments from `torch.cuda.memory_snapshot` gives the same summary as a whole snapshot."""
    snapshot = builder.ordinary()

    assert command("stats", stored(tmp_path / "in", snapshot["segments"])) == private.segsum(snapshot) + "\n"


UNREADABLE = (EOFError, pickle.UnpicklingError)


def damaged() -> dict[str, tuple[bytes, tuple[type[Exception], ...]]]:
    """Return the content of each file, and the expected exceptions."""
    whole = pickle.dumps(builder.ordinary())
    missing: Snapshot = builder.ordinary()
    del missing["segments"], missing["device_traces"]
    return {
        "empty": (b"", UNREADABLE),
        "cut": (whole[: len(whole) // 2], UNREADABLE),
        "without_end": (whole[:-1], UNREADABLE),
        "a_page": (b"<!DOCTYPE html>\n<html></html>", UNREADABLE),
        "a_number": (pickle.dumps(7), (TypeError,)),
        "missing_parts": (pickle.dumps(missing), (KeyError,)),
    }


@pytest.mark.parametrize(("data", "errors"), damaged().values(), ids=damaged().keys())
@pytest.mark.parametrize("action", ["stats", "trace", "memory"])
def test_memory_viz_refuses_a_damaged_snapshot(
    command: Command,
    tmp_path: Path,
    action: str,
    data: bytes,
    errors: tuple[type[Exception], ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A damaged file, or one with other data, raises; nothing is printed and no output is written."""
    (tmp_path / "in").write_bytes(data)

    with pytest.raises(errors):
        command(action, str(tmp_path / "in"))

    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_memory_viz_names_a_missing_file(command: Command) -> None:
    """A missing file raises an error with its name."""
    with pytest.raises(FileNotFoundError, match="absent"):
        command("stats", "absent")


@pytest.mark.parametrize(
    "arguments", [["draw", "in"], ["stats"], ["trace_plot", "in", "--device", "first"]], ids=" ".join
)
def test_memory_viz_explains_wrong_arguments(
    command: Command, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown action, a missing argument or a non-numeric device exits with status 2 and a usage message."""
    with pytest.raises(SystemExit) as ended:
        command(*arguments)

    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_memory_viz_runs_as_a_program(tmp_path: Path) -> None:
    """`python -m` runs the same program in a separate process."""
    snapshot = builder.ordinary()

    ended = subprocess.run(
        [sys.executable, "-m", private.VIZ, "stats", stored(tmp_path / "in", snapshot)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (0, private.segsum(snapshot) + "\n"), ended.stderr[-2000:]

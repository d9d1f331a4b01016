"""A screen on a pseudoterminal, as a terminal emulator shows it."""

from __future__ import annotations

import os
import threading

import pytest

from harness.progress import signs_of_life
from harness.progress.signs_of_life import LiveScreen
from tests.acceptance.window import Window


class Drawing:
    """The drawn content, and the number of drawings."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.drawn = threading.Semaphore(0)

    def __call__(self, height: int) -> str:
        self.drawn.release()
        if self.error is not None:
            raise self.error
        return f"in {height} lines"

    def wait(self) -> None:
        """Wait until it has been drawn once more, and shown."""
        for _ in range(2):
            assert self.drawn.acquire(timeout=60)


def test_what_is_written_comes_above_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    drawing = Drawing()
    with Window(40, 10) as window, os.fdopen(os.dup(window.output.fileno()), "w") as stream:
        screen = LiveScreen(stream, drawing, interval=0.01)
        screen.write("before\n..")
        screen.start()
        screen.writelines(["\x1b[32mgreen\x1b[0m\n", "rewritten\rtwice\n", "\x1b]9;4;1;50\x1b\\unfinished"])
        drawing.wait()
        screen.stop()
        screen.write(" line\nafter\n")
        stream.close()
        window.finish()
        assert window.all() == ["before", "..green", "twice", "unfinished line", "after"]
        assert b"\x1b]9;4;1;50\x1b\\" in window.written
        assert b"in 10 lines" in window.written
        assert b"\x1b[?25l" not in window.written


def test_an_error_of_what_is_drawn_is_reported_at_the_end() -> None:
    drawing = Drawing(ValueError("no table"))
    with Window(100, 10) as window, os.fdopen(os.dup(window.output.fileno()), "w") as stream:
        screen = LiveScreen(stream, drawing, interval=0.01)
        screen.start()
        assert drawing.drawn.acquire(timeout=60)
        screen.stop()
        screen.stop()
        stream.close()
        window.finish()
        text = "harness: the live table ended, an error of the harness: ValueError('no table')"
        assert [line for line in window.all() if line] == [text]


@pytest.mark.parametrize(
    ("term", "size", "fits"),
    [("xterm", (80, 24), True), ("dumb", (80, 24), False), ("", (80, 24), False), ("xterm", (29, 24), False),
     ("xterm", (80, 7), False), ("xterm", (30, 8), True)]
)  # fmt: skip
def test_where_a_screen_fits(monkeypatch: pytest.MonkeyPatch, term: str, size: tuple[int, int], fits: bool) -> None:
    monkeypatch.setenv("TERM", term)
    with Window(*size) as window, os.fdopen(os.dup(window.output.fileno()), "w") as stream:
        assert signs_of_life.is_live_terminal(stream) is fits


def test_no_screen_fits_a_file(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with open(os.path.join(tmp_path, "file"), "w") as stream:
        assert not signs_of_life.is_live_terminal(stream)

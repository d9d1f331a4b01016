"""The live table of a run: a `Snapshot` that rich draws, fitted to the window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.core.text import format_count
from harness.progress.progress import Doing, Snapshot, stopped_texts

#: The maximum share of the window's height for the table, and the minimum and maximum number of workers in it.
_SHARE = 0.4
_LEAST, _MOST = 1, 32
#: Below this number of columns, the devices are left out. The second number is the columns of a bar.
_WIDE = 60
_BAR = 40


@dataclass(frozen=True, slots=True)
class ProgressTable:
    """Draws a snapshot. `height`: the lines of the window."""

    snapshot: Snapshot
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shot, width = self.snapshot, options.max_width
        yield Text()
        if shot.doing or shot.idle:
            yield self._workers(width)
        for text in stopped_texts(shot.stopped):
            yield Text(text, "yellow")
        if shot.last_red:
            yield _line(f"last red: {_tail(shot.last_red, width - len('last red: '))}", "red")
        if shot.total:
            done = min(shot.done, shot.total)
            yield ProgressBar(
                shot.total, done, width=min(_BAR, width), complete_style="red" if shot.red else "green",
                finished_style="red" if shot.red else "green",
            )  # fmt: skip
            yield Text()  # a bar does not end its line
        yield Text(f"{shot.summary}; {time_span(shot.elapsed)} so far", "bold")

    def _workers(self, width: int) -> Table:
        most = min(_MOST, max(_LEAST, int(self.height * _SHARE)))
        shown = sorted(self.snapshot.doing[:most], key=lambda entry: _natural(entry.worker))
        wide = width >= _WIDE
        columns = [("worker", [entry.worker for entry in shown])]
        columns += [("device", [_short(entry) for entry in shown])] if wide else []
        columns += [("for", [time_span(self.snapshot.now - entry.since) for entry in shown])]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, width=width)
        for title, texts in columns:
            longest = max(map(cell_len, (title, *texts)))
            table.add_column(title, no_wrap=True, width=longest, justify="right" if title == "for" else "left")
            width -= longest + 2
        table.add_column("what", no_wrap=True, overflow="ellipsis", width=max(1, width))
        rows = zip(*(texts for _, texts in columns), shown, strict=True)
        for *cells, doing in rows:
            table.add_row(*map(Text, cells), Text(_tail(doing.what.removeprefix("runs "), max(1, width))))
        for text in self._others(len(shown)):
            table.add_row(*[Text()] * len(columns), Text(text, "dim"))
        return table

    def _others(self, shown: int) -> Iterator[str]:
        more, idle = len(self.snapshot.doing) - shown, len(self.snapshot.idle)
        if more:
            yield f"{format_count(more, 'more worker is', 'more workers are')} busy"
        if idle:
            yield f"{format_count(idle, 'worker has', 'workers have')} nothing to do: {', '.join(self.snapshot.idle)}"


def time_span(seconds: float) -> str:
    """Return a duration in seconds as ``59 s``, ``2:03 min``, ``1:00:00 h``."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def _short(doing: Doing) -> str:
    """Return the devices; the middle of a long id is left out."""
    return ", ".join(name if len(name) <= 16 else f"{name[:10]}…{name[-4:]}" for name in doing.devices)


def _tail(text: str, width: int) -> str:
    """Return the end of a long text: the end of a case id is the most informative part."""
    while cell_len(text) > width and len(text) > 1:
        text = "…" + text[2 if text.startswith("…") else 1 :]
    return text


def _line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _natural(worker: str) -> tuple[str, int]:
    """Return a key that sorts ``gw10`` after ``gw9``."""
    match = re.fullmatch(r"(.*?)(\d*)", worker)
    assert match is not None
    return match[1], int(match[2] or 0)

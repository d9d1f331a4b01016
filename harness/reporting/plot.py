"""A plot of a few rows of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN = " .:#"
_AXES = {_BLOCKS: "│", _PLAIN: "|"}


def can_encode_blocks(encoding: str | None) -> bool:
    """Return whether this encoding has the block characters of a plot."""
    try:
        (_BLOCKS + _AXES[_BLOCKS]).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plot(
    values: Sequence[int], *, blocks: bool, label: Callable[[int], str], width: int = 60, height: int = 3
) -> list[str]:
    """Return a plot with one bar per value: `height` lines (two or more) with an axis and at most `width` columns.

    The axis shows the smallest and the largest value, formatted by `label`. If both labels are equal, the top label is
    the difference. If there are more values than columns, a column shows the largest of its values. With `blocks`, bars
    are drawn in eighths of a line, otherwise in thirds, in plain ASCII. Without values there are no lines.
    """
    if not values:
        return []
    low, high = min(values), max(values)
    top, bottom = label(high), label(low)
    if top == bottom and high != low:
        top = f"+{label(high - low)}"
    columns = (
        [max(values[column * len(values) // width : (column + 1) * len(values) // width]) for column in range(width)]
        if len(values) > width
        else list(values)
    )
    signs = _BLOCKS if blocks else _PLAIN
    steps = len(signs) - 1
    # The smallest value gets a small bar, so that no column is empty.
    filled = [1 + (value - low) * (steps * height - 1) // max(high - low, 1) for value in columns]
    margin = max(len(top), len(bottom))
    lines = []
    for row in reversed(range(height)):
        text = top if row == height - 1 else bottom if row == 0 else ""
        bars = "".join(signs[min(max(fill - row * steps, 0), steps)] for fill in filled)
        lines.append(f"{text:>{margin}} {_AXES[signs]}{bars}".rstrip())
    return lines

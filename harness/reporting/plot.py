"""A plot of a few rows of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN = " .:#"
_AXES = {_BLOCKS: "│", _PLAIN: "|"}


def fits(encoding: str | None) -> bool:
    """Whether text in this encoding can hold the blocks that a plot is best drawn with."""
    try:
        (_BLOCKS + _AXES[_BLOCKS]).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plot(
    values: Sequence[int], *, blocks: bool, label: Callable[[int], str], width: int = 60, height: int = 3
) -> list[str]:
    """The values from left to right as bars, `height` lines (two or more) of at most `width` columns behind an axis.

    The axis stands between the smallest value and the largest, which `label` puts in words; where these are the same
    for both, the difference stands at the top. Of more values than columns each column shows the largest of its
    stretch. With `blocks` the bars are drawn in eighths, else in thirds, in plain ASCII. No values give no lines.
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
    each = len(signs) - 1
    # The smallest gets the smallest bar, so that a column without a bar is none.
    filled = [1 + (value - low) * (each * height - 1) // max(high - low, 1) for value in columns]
    margin = max(len(top), len(bottom))
    lines = []
    for row in reversed(range(height)):
        told = top if row == height - 1 else bottom if row == 0 else ""
        bars = "".join(signs[min(max(fill - row * each, 0), each)] for fill in filled)
        lines.append(f"{told:>{margin}} {_AXES[signs]}{bars}".rstrip())
    return lines

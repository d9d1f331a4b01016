"""Decides which rank broke first, and makes the report about it. Pure functions over plain values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.core.text import format_exit_code, single_line, truncate_middle
from harness.ranks.rank import RankReport

#: Seconds. A dying rank closes its connections a moment before the parent sees its end. An exception of another rank
#: that is at most this much older counts as a consequence.
SLACK = 0.5
#: Characters kept of the output and of the stacks of one rank.
_OUTPUT_LIMIT = 4 << 10
_STACKS_LIMIT = 12 << 10
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
#: The file of the first frame below a body.
_MACHINERY = "/harness/ranks/rank.py"
#: The stack of a rank that waits for other ranks ends in one of these folders.
_WAITING = ("/torch/distributed/",)


class How(StrEnum):
    """The way in which a rank broke, the likeliest cause first."""

    DIED = "died"
    SURVIVED = "survived"
    RAISED = "raised"
    HUNG = "hung"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one rank.

    `status`: as ``os.waitstatus_to_exitcode`` returns it. `at`: when its parent saw the end, on the monotonic clock.
    `wanted`: the status with which it was expected to die, None for a rank that is expected to report. `cut`: why the
    parent killed it: at the time limit, or because another rank had broken before. `state`: for a rank that was cut
    short, its state from the kernel. `left`: processes that it has left running.
    """

    number: int
    pid: int
    status: int
    at: float
    report: RankReport | None = None
    wanted: int | None = None
    cut: str = ""
    state: str = ""
    stacks: str = ""
    output: str = ""
    left: tuple[str, ...] = ()

    @property
    def how(self) -> How | None:
        """How the rank broke; None if it ended as expected."""
        if self.cut:
            return How.HUNG if self.cut == LIMIT else How.STOPPED
        if self.report is None:
            return None if self.status == self.wanted else How.DIED
        if self.wanted is not None:
            return How.SURVIVED
        return How.RAISED if self.report.how == "raised" else None

    @property
    def was_cut(self) -> bool:
        """Whether the parent killed the rank."""
        return bool(self.cut)

    @property
    def moment(self) -> float:
        """When the rank broke."""
        return self.report.at if self.report is not None else self.at


#: Values of `RankEnd.cut`.
LIMIT, BROKEN = "limit", "broken"


@dataclass(frozen=True, slots=True)
class Breakage:
    """What broke: the outcome's word (``crashed``, ``failed`` or ``timeout``), a line, and the details by rank."""

    outcome: str
    line: str
    details: str

    @property
    def text(self) -> str:
        return f"{self.line}\n\n{self.details}"


def breakage(ends: Sequence[RankEnd], limit: float) -> Breakage | None:
    """Return the breakage; None if all ranks ended as expected. `limit`: the time limit of the ranks in seconds."""
    broken = [end for end in ends if end.how is not None]
    if not broken:
        return None
    first = _first(broken)
    alike = [end for end in broken if end.how is first.how and (first.how is How.HUNG) and _waits(end) == _waits(first)]
    line = f"{_names([end.number for end in alike or [first]])} of {len(ends)} {_ending(first, limit)}"
    others = [end for end in broken if end is not first and end not in alike]
    line += "".join(f"; {text}" for text in _consequences(others))
    outcome = {How.DIED: "crashed", How.HUNG: "timeout", How.STOPPED: "timeout"}.get(first.how or How.RAISED, "failed")
    order = [first, *(end for end in broken if end is not first), *(end for end in ends if end.how is None)]
    return Breakage(outcome, line, "\n\n".join(_detail(end, limit) for end in order))


def _first(broken: Sequence[RankEnd]) -> RankEnd:
    """Return the rank that broke first. A death comes first, unless another rank raised well before it."""
    deaths = [end for end in broken if end.how is How.DIED]
    raised = [end for end in broken if end.how in (How.RAISED, How.SURVIVED)]
    death = min(deaths, key=lambda end: end.moment, default=None)
    error = min(raised, key=lambda end: end.moment, default=None)
    if death is not None:
        return death if error is None or error.moment > death.moment - SLACK else error
    if error is not None:
        return error
    # All ranks hang. A rank that does not wait for others is the cause.
    return next((end for end in broken if not _waits(end)), broken[0])


def _ending(end: RankEnd, limit: float) -> str:
    match end.how:
        case How.DIED if end.status >= 0:
            return f"ended with {format_exit_code(end.status)} before its body returned"
        case How.DIED:
            return f"was killed by {format_exit_code(end.status)}"
        case How.SURVIVED:
            did = end.report.how if end.report is not None else "ended"
            return f"was expected to end with {format_exit_code(end.wanted or 0)}, but its body {did}"
        case How.RAISED:
            return f"raised {single_line(end.report.error) if end.report is not None else ''}"
        case How.STOPPED:
            return f"went on, and was killed{_at(end)}"
        case _:
            return f"did not end within {limit:.3g} s{_at(end)}"


def _at(end: RankEnd) -> str:
    if end.state:
        return f": {end.state}"
    place = _place(end.stacks)
    return f": {place}" if place else ""


def _consequences(others: Sequence[RankEnd]) -> list[str]:
    """Return one text per kind of breakage for all other broken ranks."""
    texts = []
    groups: tuple[tuple[Callable[[RankEnd], bool], str], ...] = (
        (lambda end: end.how is How.DIED, "died too"),
        (lambda end: end.how in (How.RAISED, How.SURVIVED), "raised too"),
        (lambda end: end.was_cut and _waits(end), "waited in torch.distributed, and had to be killed"),
        (lambda end: end.was_cut and not _waits(end), "went on, and had to be killed"),
    )
    for belongs, text in groups:
        numbers = [end.number for end in others if belongs(end)]
        if numbers:
            texts.append(f"{_names(numbers)} {text}")
    return texts


def _names(numbers: Sequence[int]) -> str:
    ordered = [str(number) for number in sorted(numbers)]
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    return f"ranks {', '.join(ordered[:-1])} and {ordered[-1]}"


def _detail(end: RankEnd, limit: float) -> str:
    ending = _ending(end, limit) if end.how is not None else ("died as expected" if end.report is None else "returned")
    parts = [f"rank {end.number} (process {end.pid}) {ending}"]
    if end.report is not None and end.report.traceback:
        parts.append(end.report.traceback)
    if end.stacks.strip() and end.how is not None:
        parts.append(truncate_middle(_without_machinery(end.stacks).strip(), _STACKS_LIMIT))
    if end.output.strip():
        parts.append(f"output of rank {end.number}:\n{truncate_middle(end.output.rstrip(), _OUTPUT_LIMIT)}")
    return "\n".join(part.rstrip() for part in parts)


def _without_machinery(stacks: str) -> str:
    """Return stacks without the frames that called the body, and without the list of extension modules of a crash."""
    kept, below = [], False
    for line in stacks.splitlines():
        below = line.startswith("  File ") and (below or _MACHINERY in line)
        if not below and not line.startswith("Extension modules: "):
            kept.append(line)
    return "\n".join(kept)


def _frames(stacks: str) -> list[re.Match[str]]:
    """Return the frames of the thread that got the signal, innermost first. faulthandler calls this thread current."""
    _, _, current = stacks.rpartition("Current thread")
    frames = []
    for line in current.splitlines()[1:]:
        match = _FRAME.match(line)
        if match is None:
            break
        frames.append(match)
    return frames


def _waits(end: RankEnd) -> bool:
    """Return whether a rank that was cut short waits for other ranks, in torch.distributed."""
    return any(part in frame["file"] for frame in _frames(end.stacks)[:3] for part in _WAITING)


def _place(stacks: str) -> str:
    """Return where a rank is, ``test_x.py:12 in body``, followed by the library function in which it waits."""
    frames = _frames(stacks)
    if not frames:
        return ""
    if _MACHINERY in frames[0]["file"]:
        return "while the variables of its body are freed"
    own = next((frame for frame in frames if not _is_of_library(frame["file"])), None)
    inner = frames[0]
    if own is None or own is inner:
        return _frame_text(inner)
    return f"{_frame_text(own)}, which waits in {inner['name']} ({_short(inner['file'])}:{inner['line']})"


def _is_of_library(file: str) -> bool:
    return "/site-packages/" in file or file.startswith("<") or re.search(r"/lib/python\d[^/]*/", file) is not None


def _frame_text(frame: re.Match[str]) -> str:
    return f"{_short(frame['file'])}:{frame['line']} in {frame['name']}"


def _short(file: str) -> str:
    return file.rpartition("/")[2]

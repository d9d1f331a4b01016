"""The rank that broke first, and the line about it."""

from __future__ import annotations

import pytest

from harness.ranks.judgement import BROKEN, LIMIT, RankEnd, breakage
from harness.ranks.rank import RankReport


def stacks(*frames: tuple[str, int, str]) -> str:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    below = '  File "/x/harness/ranks/rank.py", line 1 in _outcome\n  File "/x/test_a.py", line 1 in test_a'
    return "\n".join(["Current thread 0x1 (most recent call first):", *lines, below])


def returned(number: int) -> RankEnd:
    return RankEnd(number, 100 + number, 0, 2.0, RankReport("returned", 2.0))


def raised(number: int, at: float, error: str = "ValueError: x") -> RankEnd:
    return RankEnd(number, 100 + number, 1, at, RankReport("raised", at, error=error))


def died(number: int, at: float, status: int = -11, wanted: int | None = None) -> RankEnd:
    return RankEnd(number, 100 + number, status, at, wanted=wanted)


C10D = ("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 7, "all_reduce")
LOCK = ("/usr/lib/python3.11/threading.py", 3, "wait")
BODY = ("/suites/test_a.py", 12, "body")


def hung(number: int, *frames: tuple[str, int, str], cut: str = LIMIT, state: str = "") -> RankEnd:
    return RankEnd(number, 100 + number, -9, 9.0, cut=cut, stacks=stacks(*frames) if frames else "", state=state)


@pytest.mark.parametrize(
    ("ends", "outcome", "line"),
    [
        pytest.param([returned(0), raised(1, 1.0)], "failed", "rank 1 of 2 raised ValueError: x", id="one raises"),
        pytest.param(
            [raised(0, 3.0), raised(1, 2.0, "KeyError: y"), raised(2, 4.0)],
            "failed",
            "rank 1 of 3 raised KeyError: y; ranks 0 and 2 raised too",
            id="the earliest",
        ),
        pytest.param(
            [raised(0, 3.0), died(1, 3.2)],
            "crashed",
            "rank 1 of 2 was killed by SIGSEGV; rank 0 raised too",
            id="a death is seen a moment late",
        ),
        pytest.param(
            [raised(0, 3.0), died(1, 4.0, -6)],
            "failed",
            "rank 0 of 2 raised ValueError: x; rank 1 died too",
            id="an exception well before a death",
        ),
        pytest.param(
            [died(0, 3.0, 5), returned(1)],
            "crashed",
            "rank 0 of 2 ended with exit status 5 before its body returned",
            id="a status",
        ),
        pytest.param(
            [died(0, 3.0, -11, wanted=-9), returned(1)],
            "crashed",
            "rank 0 of 2 was killed by SIGSEGV",
            id="other death",
        ),
        pytest.param(
            [RankEnd(0, 1, 0, 1.0, RankReport("returned", 1.0), wanted=-9)],
            "failed",
            "rank 0 of 1 was expected to end with SIGKILL, but its body returned",
            id="survivor",
        ),
        pytest.param(
            [hung(0, C10D, BODY), hung(1, BODY), hung(2, C10D, BODY)],
            "timeout",
            "rank 1 of 3 did not end within 30 s: test_a.py:12 in body; "
            "ranks 0 and 2 waited in torch.distributed, and had to be killed",
            id="the one that others wait for",
        ),
        pytest.param(
            [hung(0, C10D, BODY), hung(1, C10D, BODY)],
            "timeout",
            "ranks 0 and 1 of 2 did not end within 30 s: "
            "test_a.py:12 in body, which waits in all_reduce (distributed_c10d.py:7)",
            id="all wait",
        ),
        pytest.param(
            [hung(0, LOCK, BODY), returned(1)],
            "timeout",
            "rank 0 of 2 did not end within 30 s: test_a.py:12 in body, which waits in wait (threading.py:3)",
            id="a lock",
        ),
        pytest.param(
            [hung(0, ("/x/harness/ranks/rank.py", 3, "_outcome")), returned(1)],
            "timeout",
            "rank 0 of 2 did not end within 30 s: while the variables of its body are freed",
            id="behind the body",
        ),
        pytest.param(
            [hung(0, state="it is stopped by a signal"), returned(1)],
            "timeout",
            "rank 0 of 2 did not end within 30 s: it is stopped by a signal",
            id="no stacks",
        ),
        pytest.param(
            [hung(0, BODY, cut=BROKEN), raised(1, 1.0), hung(2, C10D, BODY, cut=BROKEN)],
            "failed",
            "rank 1 of 3 raised ValueError: x; rank 2 waited in torch.distributed, and had to be killed; "
            "rank 0 went on, and had to be killed",
            id="others go on",
        ),
    ],
)
def test_line(ends: list[RankEnd], outcome: str, line: str) -> None:
    found = breakage(ends, limit=30.0)
    assert found is not None
    assert (found.outcome, found.line) == (outcome, line)


def test_no_breakage() -> None:
    assert breakage([returned(0), died(1, 1.0, -9, wanted=-9)], limit=30.0) is None


def test_details_begin_with_the_rank_that_broke() -> None:
    found = breakage([hung(0, BODY, cut=BROKEN), raised(1, 1.0), returned(2)], limit=30.0)
    assert found is not None
    assert [part.splitlines()[0] for part in found.details.split("\n\n")] == [
        "rank 1 (process 101) raised ValueError: x",
        "rank 0 (process 100) went on, and was killed: test_a.py:12 in body",
        "rank 2 (process 102) returned",
    ]


def test_details_have_the_stack_down_to_the_body() -> None:
    found = breakage([hung(0, C10D, BODY)], limit=30.0)
    assert found is not None
    assert found.details.splitlines()[1:] == stacks(C10D, BODY).splitlines()[:3]

"""Confirms a suspected leak: the case runs several times in a fresh process, and a leak must show as growth."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.checks import growth
from harness.checks.growth import Leak
from harness.protocol.wire import Message
from harness.supervisor.attempt import GRACE, CaseRequest
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.text import exit_text

TIMES = growth.WARMUP + growth.COUNTED


@dataclass(frozen=True, slots=True)
class Repeated:
    """The result of the repetitions: the growth of each by meter, and by meter lines about the origin of the growth.

    `failure`: why there is no result.
    """

    growths: tuple[Mapping[str, int], ...] = ()
    origins: Mapping[str, Sequence[str]] | None = None
    failure: str = ""


def repeat(handle: ExecutorHandle, request: CaseRequest, history: Sequence[str] = ()) -> Repeated:
    """Have a fresh executor run the case `TIMES` times. `history`: the meters whose growth is traced to its origin.

    Raises ZygoteError.
    """
    limit = request.limit * TIMES
    message: Message = {"op": "repeat", "case": request.case, "next": None, "seed": request.seed}
    counts = {"limit": request.limit, "times": TIMES, "warmup": growth.WARMUP, "history": list(history)}
    handle.send({**message, **counts})
    answer = handle.receive(time.monotonic() + limit + GRACE)
    if isinstance(answer, dict) and answer.get("op") == "repeated":
        return Repeated(tuple(dict(each) for each in answer["growths"]), answer["origins"])
    if answer is NoMessage.DEADLINE:
        return Repeated(failure=f"its repetitions did not finish within {limit:g} s")
    ended = exit_text(handle.exit_status) if handle.exit_status is not None else "the executor sent an invalid message"
    return Repeated(failure=f"its repetitions failed: {ended}")


def leaks(first: Mapping[str, int], repeated: Repeated) -> list[Leak]:
    """Returns the confirmed leaks; none if the repetitions have no result."""
    return growth.verdict(first, repeated.growths) if repeated.growths else []


def lines(found: Sequence[Leak], origins: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Returns a line for each leak but the first, each followed by lines about its origin."""
    result = []
    for position, leak in enumerate(found):
        if position:
            result.append(f"also leaked: {leak.text}")
        result += [f"{leak.meter}: {line}" for line in (origins or {}).get(leak.meter, ())]
    return result

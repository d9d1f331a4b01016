"""A suspicion of a leak is looked into: the case runs again several times in a fresh process, and growth decides."""

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
    """What a fresh process told of its repetitions: growths of each, by meter, and lines that say where they are from.

    `failure` says why there is nothing to tell.
    """

    growths: tuple[Mapping[str, int], ...] = ()
    origins: Mapping[str, Sequence[str]] | None = None
    failure: str = ""


def repeat(handle: ExecutorHandle, request: CaseRequest, history: Sequence[str] = ()) -> Repeated:
    """Have a fresh executor run the case `TIMES` times; with `history`, meters of which to tell where growth is from.

    Raises ZygoteError.
    """
    limit = request.limit * TIMES
    message: Message = {"op": "repeat", "case": request.case, "next": None, "seed": request.seed}
    counts = {"limit": request.limit, "times": TIMES, "warmup": growth.WARMUP, "history": list(history)}
    handle.send({**message, **counts})
    heard = handle.receive(time.monotonic() + limit + GRACE)
    if isinstance(heard, dict) and heard.get("op") == "repeated":
        return Repeated(tuple(dict(each) for each in heard["growths"]), heard["origins"])
    if heard is NoMessage.DEADLINE:
        return Repeated(failure=f"its repetitions were not over after {limit:g} s")
    ended = exit_text(handle.exit_status) if handle.exit_status is not None else "it sent what cannot be read"
    return Repeated(failure=f"when it was run again and again: {ended}")


def leaks(first: Mapping[str, int], repeated: Repeated) -> list[Leak]:
    """What leaks; none where the repetitions told nothing."""
    return growth.verdict(first, repeated.growths) if repeated.growths else []


def lines(found: Sequence[Leak], origins: Mapping[str, Sequence[str]] | None) -> list[str]:
    """A line for each leak but the first, and below each where it is from."""
    told = []
    for position, leak in enumerate(found):
        if position:
            told.append(f"also leaked: {leak.text}")
        told += [f"{leak.meter}: {line}" for line in (origins or {}).get(leak.meter, ())]
    return told

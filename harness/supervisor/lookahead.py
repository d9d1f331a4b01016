"""The cases that an executor runs before pytest asks for them.

Pytest asks for a case once it has the reports of the previous one. If the executor waited for that, the two processes
would work in turns, and wake each other for each case. A case may begin early only if nothing that follows from the
cases before it can decide otherwise. Two processes decide this, each by what it alone knows:

- The executor goes on to the next case of a request (`harness/executor/executor.py`) if the last one passed in all
  phases, no check found anything, the request is younger than `BURST`, and the supervisor has not forbidden it on the
  page of phases. It first writes a line that ends one case and begins the next and survives a crash, so the case in
  flight is known when it dies, and a case that had not begun is not blamed.
- The supervisor makes a request (`Lookahead.next_cases`) if the last attempts are not red (`-x`, a second attempt, a
  suspicion of a leak), the executor can run the next case on the same devices, and no request to stop or to free the
  device is open. A case with a waiver is the last of its request, since a waiver can make a passed case red. On a
  monitored device there is no lookahead: what a GPU reports between two cases belongs to the first.

Order: of the cases that have begun, only the first has its `start` line, in one write with the end of the case before
it; each other gets its own in turn. The journal therefore shows cases one after the other. If the worker dies, that
first case is `lost`, and those behind it are `not_run`, though some may have run.

If pytest asks for another case than the one that has begun, the executor is ended, that attempt is `lost` and does not
count, and the case never begins early again (`_skipped`). Not handled: an order that pytest or xdist's schedulers do
not tell in advance; then cases begin one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from harness.collection.cases import is_case
from harness.core.outcome import Outcome
from harness.journal.events import Start
from harness.journal.journal import WorkerJournal
from harness.scheduling.workers import HandedOutList
from harness.supervisor.attempt import Attempt, CaseHistory, CaseRequest
from harness.supervisor.burst import MOST, Begun, Burst
from harness.supervisor.case import Case, CasePreparation, may_follow
from harness.supervisor.case_reports import CaseLines
from harness.supervisor.lane import Lane


@dataclass(frozen=True, slots=True)
class Ahead:
    """A case that pytest will ask for later, and the item after it.

    The next item decides which fixtures the case tears down.
    """

    item: pytest.Item
    nextitem: pytest.Item | None


class RunOrder:
    """The order in which pytest asks for the items of a session.

    It is the order of its list, or, on an xdist worker, the order in which the controller hands items out.
    """

    def __init__(self, handed_out: HandedOutList | None = None) -> None:
        """`handed_out`: for an xdist worker, the positions of its items in the list."""
        self._handed_out = handed_out
        self._items: list[pytest.Item] = []
        #: The position after the item that pytest has asked for.
        self._position = 0
        self._is_known = False

    def at(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Note that pytest asks for `item`. The items after it are unknown if `nextitem` contradicts the order."""
        self._refresh(item.session, 2)
        items = self._items
        if self._position >= len(items) or items[self._position] is not item:
            self._position = next((number for number, other in enumerate(items) if other is item), len(items))
        self._position += 1
        self._is_known = self._position < len(items) and nextitem is not None and items[self._position] is nextitem

    def ahead(self, behind: int, count: int) -> list[Ahead]:
        """Return up to `count` cases that pytest will ask for next, without the first `behind`.

        Stop at an item that is no case.
        """
        upcoming: list[Ahead] = []
        if not self._is_known:
            return upcoming
        first = self._position + behind
        self._refresh(self._items[0].session, behind + count + 1)
        for position in range(first, min(first + count, len(self._items))):
            item = self._items[position]
            is_last = position + 1 == len(self._items)
            if not is_case(item) or (is_last and not (self._handed_out is None or self._handed_out.ended)):
                break
            following = None if is_last else self._items[position + 1]
            upcoming.append(Ahead(item, following if following is not None and is_case(following) else None))
        return upcoming

    @property
    def starves(self) -> bool:
        """Whether the next case cannot begin because the controller has not handed out the item after it.

        Pytest begins a case once it knows the next item.
        """
        if self._handed_out is None or not self._items:
            return False
        self._refresh(self._items[0].session, 2)
        return not self._handed_out.ended and len(self._items) < self._position + 2

    def _refresh(self, session: pytest.Session, wanted: int) -> None:
        """Look for newly handed out items, unless `wanted` items from the current position on are known."""
        if self._handed_out is None:
            self._items = session.items
        elif not self._handed_out.ended and self._position + wanted > len(self._items):
            self._handed_out.refresh()
            new = self._handed_out.positions[len(self._items) :]
            self._items += [session.items[position] for position in new]


#: Cases that may begin, with empty histories.
Next = Sequence[tuple[CaseHistory, Ahead]]


class Lookahead:
    """Makes requests for several cases at once."""

    def __init__(
        self,
        lane: Lane,
        preparation: CasePreparation,
        lines: CaseLines,
        journal: WorkerJournal,
        *,
        enabled: bool,
    ) -> None:
        """`enabled`: whether the run's isolation and policy let cases begin early at all."""
        self._lane = lane
        self._preparation = preparation
        self._lines = lines
        self._journal = journal
        self._enabled = enabled
        #: Has the cases that pytest will ask for after the current one; None if they are not known.
        self.order: RunOrder | None = None
        #: The cases of the executor's requests, in order. The `start` line of the first one is written.
        self._begun: deque[Begun] = deque()
        #: The number of cases in the next such request: fewer if the last request was not completed.
        self._many = 1
        #: Cases that began but that pytest did not ask for next.
        self._skipped: set[str] = set()

    def __bool__(self) -> bool:
        """Return whether the executor was asked for cases that pytest has not asked for yet."""
        return bool(self._begun)

    def take(self, item: pytest.Item) -> Begun | None:
        """Take the case that pytest asks for, if it has begun. If another one has begun, that one is abandoned."""
        begun = self._begun.popleft() if self._begun else None
        if begun is None or begun.history.case.item is item:
            return begun
        self._skip(begun)
        return None

    def earlier_attempts(self, case: Case) -> int:
        """Return how many attempts at a case were abandoned because pytest asked for another case first."""
        return 1 if case.id in self._skipped else 0

    def clear(self) -> None:
        """Forget all cases that have begun, because their executor is being ended."""
        self._begun.clear()

    def skip_next(self) -> None:
        """Abandon the case that has begun, if there is one: pytest will not ask for it next."""
        if self._begun:
            self._skip(self._begun.popleft())

    def close(self, reason: str) -> None:
        """At the end of the session, make the case that has begun `not_run`."""
        if self._begun:
            self._abandon(self._begun.popleft(), reason, Outcome.NOT_RUN, final=True)

    def note_end(self, begun: Begun) -> None:
        """After the end of an attempt, drop the cases of its request that will not begin, and size the next request."""
        burst = begun.burst
        if not burst.over:
            return
        self._many = min(MOST, 2 * burst.ran)
        while self._begun and self._begun[-1].burst is burst and self._begun[-1].place >= burst.ran:
            self._begun.pop()  # it will not begin: an earlier case was not a plain pass, or the time was over

    def next_cases(self, history: CaseHistory, attempt: Attempt) -> Next:
        """Return the cases that may begin before the last attempt is reported."""
        handle, order = self._lane.slot.current, self.order
        if not self._enabled or (self._begun and not self._begun[-1].burst.over):
            return ()  # the executor is busy with a request
        if order is None or handle is None or handle.name != attempt.executor or not attempt.usable:
            return ()
        if history.outcome.is_red:
            return ()
        before = history.case
        if self._begun:
            last = self._begun[-1].burst.last
            if last is None or not last.usable or not last.evidence.is_plain_pass:
                return ()
            before = self._begun[-1].history.case
        if self._lane.pool.monitored or self._lane.slot.wanted or self._lane.missing(1) != "":
            return ()
        return self._following(before, order.ahead(len(self._begun), self._many))

    def _following(self, before: Case, upcoming: Sequence[Ahead]) -> Next:
        """Return the longest sequence of these cases that one request may have."""
        sequence: list[tuple[CaseHistory, Ahead]] = []
        for ahead in upcoming:
            case = self._preparation.prepare(ahead.item)
            if not may_follow(case, before) or (sequence and case.waivers) or case.id in self._skipped:
                break
            sequence.append((CaseHistory(case), ahead))
            before = case
            if case.waivers:
                break
        return sequence

    def start_lines(self, cases: Next) -> Sequence[Start]:
        """Return the `start` line of the case that runs next: one that has begun, or the first of `cases`."""
        if self._begun:
            first = self._begun[0]
            return (self._lines.start(first.history, first.handle, alone=False, at=first.at),)
        if cases:
            assert self._lane.slot.current is not None
            return (self._lines.start(cases[0][0], self._lane.slot.current, alone=False),)
        return ()

    def begin(self, cases: Next) -> None:
        """Have the executor run these cases, one after the other."""
        if not cases:
            return
        assert self._lane.slot.current is not None
        requests = []
        for history, ahead in cases:
            case = history.case
            following = following_id(case, ahead.nextitem, self._preparation)
            requests.append(CaseRequest(case, following))
        burst = Burst(self._lane.slot.current, requests, [history.next_number for history, _ in cases])
        self._begun += [Begun(history, burst, place, ahead.nextitem) for place, (history, ahead) in enumerate(cases)]

    def _skip(self, begun: Begun) -> None:
        """Abandon a case that has begun because pytest asks for another one. The next attempt at the case counts."""
        self._abandon(begun, "pytest requested another case", Outcome.LOST, final=False)
        self._skipped.add(begun.history.case.id)

    def _abandon(self, begun: Begun, reason: str, outcome: Outcome, *, final: bool) -> None:
        """End the executor of a case that has begun and that pytest does not ask for, and record the `outcome`.

        Nothing is recorded about the cases after it, which may have begun.
        """
        self._begun.clear()
        self._lane.slot.abandon(reason)
        self._journal.record(self._lines.abandoned(begun.history, begun.handle, reason, outcome, final=final))


def following_id(case: Case, nextitem: pytest.Item | None, preparation: CasePreparation) -> str | None:
    """Return the id of the next case if it will run in the same executor, so that shared fixtures are kept."""
    if nextitem is None:
        return None
    following = preparation.prepare(nextitem)
    return following.id if may_follow(following, case) else None

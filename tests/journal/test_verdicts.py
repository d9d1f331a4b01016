"""The shortcut for a case with one attempt gives what the rules for many attempts give."""

from __future__ import annotations

import pytest

from harness.core.outcome import AttemptResult, Outcome, deciding_attempt, final_verdict
from harness.journal.events import Finish
from harness.journal.verdicts import decide_outcome


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("started", [0, 1, 3])
def test_one_final_attempt_without_a_ruling_is_the_verdict(outcome: Outcome, started: int) -> None:
    finish = Finish(t=1.0, case="a", attempt=1, seed=1, outcome=outcome, final=True, duration=0.1)
    attempts = [AttemptResult(outcome, True, None)]
    assert final_verdict(attempts, started) is outcome
    assert decide_outcome([finish], started) == (outcome, finish, None)
    assert deciding_attempt(attempts, outcome, ruled=False) == 0

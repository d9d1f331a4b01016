"""Finds the leaking cases of an executor that grew by more than its cases account for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.checks import batch, shm_turn
from harness.diagnosis.leaks import Culprits
from harness.errors import NoDeviceError
from harness.outcome import Outcome
from harness.scheduling.stop_request import StoppedError
from harness.supervisor import leak_trials
from harness.supervisor.case_runner import CaseRunner
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot, Record
from harness.supervisor.leak_trials import LeakTrials
from harness.text import counted


class LeakBisect:
    """Bisects the cases of an executor in new processes, and gives those that leak the verdict `leaked`."""

    def __init__(self, runner: CaseRunner, slot: ExecutorSlot, record: Record, *, patience: float) -> None:
        """`patience`: a factor on the time limit of a bisection."""
        self._runner = runner
        self._slot = slot
        self._record = record
        self._patience = patience

    def investigate(self, handle: ExecutorHandle, known: frozenset[str]) -> None:
        """If the executor grew by more than its cases account for, run them again, and report those that leak.

        Cases that are `known` to leak already have that verdict and are left out.
        """
        suspected = batch.suspicions(handle.grown, len(handle.cases))
        ids = [case_id for case_id in dict.fromkeys(handle.cases) if case_id not in known]
        if not suspected or not ids:
            return
        activity = leak_trials.activity_text(handle.name, suspected, len(handle.cases))
        found: list[Culprits] = []
        failure = ""
        turn = shm_turn.turn(suspected, over=lambda: self._slot.stop.heard() is not None)
        with self._slot.activities.doing(activity) as update, turn:
            trials = LeakTrials(
                [self._runner.history_of(case_id).case for case_id in ids],
                spawn=self._runner.spawn,
                slot=self._slot,
                # Otherwise a leak of another process would count, and a single file is suspected after its case.
                without=() if shm_turn.METERS & suspected.keys() else shm_turn.METERS,
                seconds=leak_trials.MOST_SECONDS * self._patience,
                on_trial=lambda number: update(f"{activity}: trial {number} of at most {leak_trials.MOST_TRIALS}"),
            )
            try:
                if missing := self._runner.obstacle(len(handle.binding.devices)):
                    raise NoDeviceError(missing)
                found = trials.find()
                for culprits in found:
                    self._accuse(culprits, trials.origins(culprits), handle, len(ids))
            except (NoDeviceError, StoppedError) as error:
                failure = str(error)
        self._slot.release()
        self._record(
            {
                "event": "batch",
                "executor": handle.name,
                "cases": ids,
                "suspicions": suspected,
                "leaks": [leak_trials.describe(culprits) for culprits in found],
                "trials": trials.trials,
                "seconds": round(trials.seconds, 3),
                "failure": failure or trials.failure,
            }
        )

    def _accuse(
        self, culprits: Culprits, origins: Mapping[str, Sequence[str]], handle: ExecutorHandle, cases: int
    ) -> None:
        """Give a single leaking case the verdict `leaked`; record a finding about several cases.

        Raises NoDeviceError, StoppedError.
        """
        lines = leak_trials.details(culprits, origins)
        if len(culprits.cases) > 1 or not culprits.certain:
            text = "; ".join([leak_trials.describe(culprits), *lines])
            times = batch.runs_to_suspect(culprits.leaks[0], len(culprits.cases))
            command = self._runner.reproduce_leak(culprits.cases, times, handle)
            self._runner.add_finding("batch_leak", text, culprits.cases, command)
            return
        history = self._runner.history_of(culprits.cases[0])
        attempt = self._runner.run_alone(history)
        judgement = attempt.judgement
        if judgement.outcome.is_red:  # the case failed for another reason
            lines = [leak_trials.describe(culprits), *lines]
        else:
            judgement = replace(judgement, outcome=Outcome.LEAKED, message=culprits.leaks[0].text)
        notes = (*attempt.notes, f"run again because a process that ran {counted(cases, 'case')} had grown", *lines)
        self._runner.conclude(history, replace(attempt, judgement=judgement, notes=notes))
        self._runner.report_late(history)

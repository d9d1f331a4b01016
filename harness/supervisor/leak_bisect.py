"""An executor has grown by more than its cases account for: which of them leak?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.checks import batch
from harness.diagnosis.leaks import Culprits
from harness.errors import NoDeviceError
from harness.outcome import Outcome
from harness.scheduling.stop_request import StoppedError
from harness.supervisor import leak_trials
from harness.supervisor.case_runner import CaseRunner
from harness.supervisor.executor_handle import ExecutorHandle
from harness.supervisor.executor_slot import ExecutorSlot, Record
from harness.supervisor.leak_trials import LeakTrials


class LeakBisect:
    """Runs the cases of an executor again, in fewer and fewer, and accuses those that leak."""

    def __init__(self, runner: CaseRunner, slot: ExecutorSlot, record: Record, *, patience: float) -> None:
        """`patience`: a factor on the time that it may take."""
        self._runner = runner
        self._slot = slot
        self._record = record
        self._patience = patience

    def investigate(self, handle: ExecutorHandle, known: frozenset[str]) -> None:
        """Where an executor has grown by more than its cases account for, run them again, and say which of them leak.

        Cases that are `known` to leak have had their verdict.
        """
        suspected = batch.suspicions(handle.grown, len(handle.cases))
        ids = [case_id for case_id in dict.fromkeys(handle.cases) if case_id not in known]
        if not suspected or not ids:
            return
        looking = leak_trials.looking_into(handle.name, suspected, len(handle.cases))
        found: list[Culprits] = []
        failure = ""
        with self._slot.activities.doing(looking) as tell:
            trials = LeakTrials(
                [self._runner.history_of(case_id).case for case_id in ids],
                spawn=self._runner.spawn,
                slot=self._slot,
                seconds=leak_trials.MOST_SECONDS * self._patience,
                tell=lambda number: tell(f"{looking}: trial {number} of at most {leak_trials.MOST_TRIALS}"),
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
        """A single case that leaks is given that verdict; of several a finding tells.

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
        if judgement.outcome.is_red:  # for a reason of its own
            lines = [leak_trials.describe(culprits), *lines]
        else:
            judgement = replace(judgement, outcome=Outcome.LEAKED, message=culprits.leaks[0].text)
        notes = (*attempt.notes, f"looked into since a process had grown that ran {cases} cases", *lines)
        self._runner.conclude(history, replace(attempt, judgement=judgement, notes=notes))
        self._runner.report_late(history)

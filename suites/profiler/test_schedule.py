"""`torch.profiler.schedule`: the action of each step, and what a profiler does with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.profiler import ProfilerAction, profile, schedule

NONE, WARMUP, RECORD, SAVE = (
    ProfilerAction.NONE,
    ProfilerAction.WARMUP,
    ProfilerAction.RECORD,
    ProfilerAction.RECORD_AND_SAVE,
)


def actions(
    wait: int, warmup: int, active: int, *, repeat: int = 0, skip: int = 0, first: bool = True
) -> Iterator[object]:
    """The documented actions. `first`: whether the first cycle waits too."""
    yield from [NONE] * skip
    for cycle in itertools.count():
        if repeat and cycle >= repeat:
            yield NONE
            continue
        yield from [NONE] * (wait if cycle or first else 0)
        yield from [WARMUP] * warmup
        yield from [RECORD] * (active - 1)
        yield SAVE


@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("repeat", [0, 1, 3])
@pytest.mark.parametrize(
    ("wait", "warmup", "active"),
    [(1, 1, 2), (0, 2, 1), (3, 1, 1), (2, 3, 3)],
    ids=lambda value: str(value),
)
def test_schedule_gives_each_step_its_action(wait: int, warmup: int, active: int, repeat: int, skip: int) -> None:
    """After `skip_first` steps, cycles of waiting, warming up and recording follow, `repeat` of them or without end.

    The last step of the recording also saves.
    """
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip)
    wanted = actions(wait, warmup, active, repeat=repeat, skip=skip)
    assert [plan(step) for step in range(40)] == list(itertools.islice(wanted, 40))


@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("wait", [0, 4])
def test_schedule_skip_first_wait_skips_the_first_wait_only(wait: int, skip: int) -> None:
    """With `skip_first_wait`, the first cycle begins without waiting, right after `skip_first`; later cycles wait."""
    plan = schedule(wait=wait, warmup=1, active=2, skip_first=skip, skip_first_wait=1)
    wanted = actions(wait, 1, 2, skip=skip, first=False)
    assert [plan(step) for step in range(30)] == list(itertools.islice(wanted, 30))


def test_schedule_is_the_same_function_of_the_step_each_time() -> None:
    """The action depends on the step alone, not on the steps that were asked for before."""
    plan = schedule(wait=2, warmup=1, active=2, repeat=2, skip_first=1, skip_first_wait=1)
    once = [plan(step) for step in range(20)]
    assert [plan(step) for step in reversed(range(20))] == once[::-1]


@pytest.mark.parametrize("name", ["wait", "warmup", "active", "repeat", "skip_first"])
def test_schedule_refuses_negative_numbers(name: str) -> None:
    """A negative number of steps is refused, and so is a cycle without an active step."""
    settings = {"wait": 1, "warmup": 1, "active": 1}
    with pytest.raises(AssertionError, match=f"{name}=-1"):
        schedule(**{**settings, name: -1})
    if name == "active":
        with pytest.raises(AssertionError, match="active=0"):
            schedule(wait=1, warmup=1, active=0)
    else:
        schedule(**{**settings, "warmup": 1, name: 1})
    with pytest.raises(AssertionError, match="-1"):
        schedule(wait=1, warmup=1, active=1)(-1)


def test_schedule_without_a_warmup_warns() -> None:
    """A schedule without steps to warm up warns."""
    with pytest.warns(UserWarning, match="warmup"):
        schedule(wait=1, warmup=0, active=1)


def test_profiler_records_the_active_steps_of_its_schedule(device: torch.device) -> None:
    """A profiler calls its handler after each cycle, with the operators of the active steps only."""
    seen: list[list[str]] = []

    def ready(prof: profile) -> None:
        seen.append(sorted(event.name for event in prof.events() if event.name.startswith("step ")))

    plan = schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1, skip_first_wait=1)
    with profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready) as prof:
        for step in range(12):
            with torch.profiler.record_function(f"step {step}"):
                torch.ones(2, device=device).sum()
            prof.step()

    assert seen == [["step 2", "step 3"], ["step 6", "step 7"]]

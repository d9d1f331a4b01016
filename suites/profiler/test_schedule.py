"""`torch.profiler.schedule`: the action of each step, and the profiler's behavior for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.autograd.profiler import KinetoStepTracker
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from . import _torch_private as private
from .trees import HOST, HOST_AND_CUDA, profiler

NONE, WARMUP, RECORD, SAVE = (
    ProfilerAction.NONE,
    ProfilerAction.WARMUP,
    ProfilerAction.RECORD,
    ProfilerAction.RECORD_AND_SAVE,
)


def actions(
    wait: int, warmup: int, active: int, *, repeat: int = 0, skip: int = 0, first: bool = True
) -> Iterator[object]:
    """Yield the documented actions. `first`: whether the first cycle waits too."""
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
    """The action depends on the step only, and not on the steps of earlier calls."""
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
    """A schedule without warm-up steps warns."""
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


@pytest.mark.requires(device="cuda", torch=">=2.13")
@pytest.mark.parametrize("activities", [HOST_AND_CUDA, HOST], ids=["device", "host"])
def test_profiler_whose_device_stopped_goes_on_with_the_next_cycle(
    activities: tuple[ProfilerActivity, ...], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If collection on the device stops early, the profiler warns, and passes on the cycle as far as it was recorded.

    It records nothing more until the next cycle. A profiler of the host is not affected (torch/profiler/profiler.py,
    `ProfilerAction.DEVICE_STOPPED`).
    """
    stopped = False
    seen: list[list[str]] = []

    def ready(prof: profile) -> None:
        seen.append(sorted({event.name for event in prof.events() if event.name.startswith("step ")}))

    def run(prof: profile, step: int) -> None:
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(2, device=device).sum()
        prof.step()

    private.replace_device_stopped(monkeypatch, lambda: stopped)
    plan = schedule(wait=0, warmup=1, active=3, repeat=2)
    prof = profile(activities=activities, schedule=plan, on_trace_ready=ready)
    with prof:
        run(prof, 0)
        stopped = True
        if activities == HOST_AND_CUDA:
            with pytest.warns(UserWarning, match="stopped early at step 2"):
                run(prof, 1)
            assert prof.current_action == ProfilerAction.DEVICE_STOPPED
            run(prof, 2)
            assert prof.current_action == ProfilerAction.DEVICE_STOPPED
        else:
            run(prof, 1)
            run(prof, 2)
        stopped = False
        run(prof, 3)
        assert prof.current_action == WARMUP
        for step in range(4, 8):
            run(prof, step)
    first = ["step 1", "step 2", "step 3"] if activities == HOST else ["step 1"]
    assert seen == [first, ["step 5", "step 6", "step 7"]]


@pytest.mark.requires(device="cuda")
@pytest.mark.xfail(
    raises=AssertionError,
    reason="torch 2.11 to 2.13 compute the activities with `use_cuda`, and record those without it"
    " (https://github.com/pytorch/pytorch/blob/v2.13.0/torch/profiler/profiler.py)",
)
@pytest.mark.parametrize("use_cuda", [True, False])
def test_profile_use_cuda_adds_or_removes_the_device(use_cuda: bool) -> None:
    """The deprecated `use_cuda` adds the device to the activities, or removes it."""
    with pytest.warns(FutureWarning, match="use_cuda. is deprecated"):
        prof = profile(activities=HOST if use_cuda else HOST_AND_CUDA, use_cuda=use_cuda)
    assert prof.activities == {*(HOST_AND_CUDA if use_cuda else HOST)}


def test_profile_use_cuda_false_leaves_no_activity_of_a_device_alone() -> None:
    """A profile of the device only, without the device, is refused."""
    with (
        pytest.warns(FutureWarning, match="use_cuda. is deprecated"),
        pytest.raises(AssertionError, match="No valid profiler activities found"),
    ):
        profile(activities=[ProfilerActivity.CUDA], use_cuda=False)


@pytest.mark.parametrize("daemon", ["", "1"])
def test_profiler_step_counts_for_kineto_if_a_daemon_is_used(daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `KINETO_USE_DAEMON`, a profiler's step is a step of Kineto, which a daemon counts; without it, it is not."""
    monkeypatch.setenv("KINETO_USE_DAEMON", daemon)
    count = KinetoStepTracker.current_step()
    with profiler() as prof:
        prof.step()
        prof.step()
    assert KinetoStepTracker.current_step() == count + (2 if daemon else 0)

"""The profiler options that a memory profile requires."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from . import _torch_private as private
from .recordings import record

CONFIG = pytest.mark.covers("test_memory_profiler::TestMemoryProfiler::test_config_check")

NEEDED = ("record_shapes", "profile_memory", "with_stack")
INCOMPLETE = [given for count in range(len(NEEDED)) for given in combinations(NEEDED, count)]


@CONFIG
@pytest.mark.parametrize("given", INCOMPLETE, ids=["+".join(given) or "nothing" for given in INCOMPLETE])
def test_memory_profile_names_an_option_left_out(given: tuple[str, ...]) -> None:
    """Without shapes, memory or stacks, a ValueError names each missing option as an argument, and no others."""
    with profile(activities=[ProfilerActivity.CPU], **dict.fromkeys(given, True)) as prof:
        torch.ones(1)

    with pytest.raises(ValueError, match="required for memory profiling") as caught:
        private.memory_profile(prof)

    assert {option for option in NEEDED if f"{option}=True" in str(caught.value)} == set(NEEDED) - set(given)


@CONFIG
def test_memory_profile_with_every_option() -> None:
    """A profile with all three options has a memory profile, even if it is empty."""
    busy = record(lambda: torch.ones(1).neg())
    idle = record(lambda: None)

    assert private.is_memory_profile(busy.memory)
    assert private.is_memory_profile(idle.memory)
    assert len(busy.timeline) >= 2
    assert busy.named("aten::ones")
    assert (idle.timeline, idle.nodes, idle.categories) == ([], (), {})


def test_memory_profile_before_the_run_is_an_error() -> None:
    """A memory profile of a profile that has not started raises."""
    prof = profile(activities=[ProfilerActivity.CPU], **dict.fromkeys(NEEDED, True))

    with pytest.raises((AssertionError, RuntimeError), match="must be initialized"):
        private.memory_profile(prof)


def test_memory_profile_read_twice_is_equal() -> None:
    """Reading the memory profile twice gives the same data flow, categories and timeline."""
    recording = record(lambda: torch.ones(3).neg().exp_())
    again = private.memory_profile(recording.prof)

    assert recording.nodes
    assert private.nodes(again) == recording.nodes
    assert private.categories(again) == recording.categories
    assert private.timeline(again) == recording.timeline

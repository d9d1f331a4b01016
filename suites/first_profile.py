"""The first profile of a process, which decides what later ones can record."""

from __future__ import annotations

import functools

import pytest


@functools.cache
def take_first_profile() -> None:
    """Once in a process, before any other profile: one of the device too, where torch has CUDA.

    If the first profile of a process has the host alone, no later one has anything of the device: since torch 2.13 that
    profile tells Kineto once and for all to do without (https://github.com/pytorch/pytorch/pull/186036).
    """
    import torch  # here, since conftests import this file, and supervisors must not import torch
    from torch.profiler import ProfilerActivity, profile

    if torch.cuda.is_available():
        # Without `acc_events`, torch 2.11 warns.
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True):
            pass


@pytest.fixture(autouse=True)
def _first_profile() -> None:
    """Cases may run in any order, in one process."""
    take_first_profile()

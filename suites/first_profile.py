"""The first profile of a process, which determines what later profiles can record."""

from __future__ import annotations

import functools

import pytest


@functools.cache
def take_first_profile() -> None:
    """Take one profile before all others in a process, including the device if torch has CUDA.

    If the first profile of a process is for the CPU only, later ones record no device events: since torch 2.13 it makes
    Kineto ignore the device permanently (https://github.com/pytorch/pytorch/pull/186036).
    """
    import torch  # imported here, because conftests import this file, and supervisors must not import torch
    from torch.profiler import ProfilerActivity, profile

    if torch.cuda.is_available():
        # Without `acc_events`, torch 2.11 warns.
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True):
            pass


@pytest.fixture(autouse=True)
def _first_profile() -> None:
    """Take the first profile before each case, because cases may run in any order in one process."""
    take_first_profile()

"""An accelerator's allocator compared with the model: every address and counter, after each step of random programs."""

from __future__ import annotations

import pytest
import torch

from .accelerator import maker
from .programs import Program, check, run_random

pytestmark = pytest.mark.requires(accelerator=True, caching_allocator=True, torch=">=2.11")


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_allocator_fuzz")
@pytest.mark.timeout(300)
def test_random_allocator_programs_follow_the_model(device: torch.device, case_seed: int) -> None:
    """Random programs on three streams follow the model in every address and counter.

    The programs allocate, free, use blocks on other streams, run out of memory, reset and empty the cache. The model
    checks that live blocks never overlap and keep their contents; that sizes are rounded to 512 bytes; that remainders
    are split off and merged again; that a free block serves the next request that fits on its own stream only; that
    memory in use by another stream is kept; and that all counters, peaks and totals match the blocks at every step.
    """
    check(maker(device), number=case_seed, programs=25, steps=40)


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_allocator_fuzz")
@pytest.mark.timeout(300)
def test_long_allocator_program_follows_the_model(device: torch.device, case_seed: int) -> None:
    """A program of 1,000 steps follows the model, with memory that is split, merged and reused many times.

    Contents are checked when a block is freed, and everything is freed at the end.
    """
    run_random(Program(maker(device)()), case_seed, steps=1000)

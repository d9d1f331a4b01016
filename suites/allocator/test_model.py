"""An accelerator's allocator against the model: every address and every counter, after each step of random programs."""

from __future__ import annotations

import pytest
import torch

from .accelerator import maker
from .programs import Program, check, run_random

pytestmark = pytest.mark.requires(accelerator=True, torch=">=2.11")


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_allocator_fuzz")
@pytest.mark.timeout(300)
def test_random_allocator_programs_follow_the_model(device: torch.device, case_seed: int) -> None:
    """Contract: over programs of requests on three streams, frees, uses by other streams, refusals, resets and
    emptying, blocks that live never overlap and keep what was written; sizes are rounded to 512 bytes; what a block
    leaves of a free range is split off and joined again; a free range serves the next request that fits, of its own
    stream and no other; memory that another stream reads is kept until it has; and the counters of bytes, blocks and
    segments, their peaks and their totals are at every step what the blocks add up to.
    """
    check(maker(device), number=case_seed, programs=25, steps=40)


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_allocator_fuzz")
@pytest.mark.timeout(300)
def test_long_allocator_program_follows_the_model(device: torch.device, case_seed: int) -> None:
    """Contract: the same of one program of 1,000 steps, in which memory is cut up, joined and used again many times:
    contents are looked at when a block is freed, and everything goes back at the end."""
    run_random(Program(maker(device)()), case_seed, steps=1000)

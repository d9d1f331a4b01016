"""Sets the number of torch's threads at import, and records each later call."""

import pytest
import torch

really_set = torch.set_num_threads
really_set(1)
POOLS: list[int] = []


def set_num_threads(nthreads: int) -> None:
    POOLS.append(nthreads)
    really_set(nthreads)


torch.set_num_threads = set_num_threads


@pytest.fixture
def pools() -> list[int]:
    return POOLS

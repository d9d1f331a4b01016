"""The thread pool of torch is renewed after a fork.

A pool from before the fork crashes a process in which two threads renew it at the same time.
"""

import torch

EXPECTED = {"test_pool": "passed", "test_pool_of_a_second_case": "passed"}


def test_pool(pools: list[int]) -> None:
    assert pools == [1]
    assert torch.get_num_threads() == 1


def test_pool_of_a_second_case(pools: list[int]) -> None:
    test_pool(pools)

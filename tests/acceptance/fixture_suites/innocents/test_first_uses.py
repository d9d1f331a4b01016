"""Cases that are the first to use something, which then stays: not a leak, regardless of its size."""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import random
import re
import sys
from collections.abc import Iterator

import numpy as np
import torch

EXPECTED = {
    "test_matmul": "passed",
    "test_backward": "passed",
    "test_decomposition": "passed",
    "test_numpy": "passed",
    "test_random_numbers": "passed",
    "test_pool_of_threads_made_once": "passed",
    "test_pool_of_threads_used_again": "passed",
    "test_lru_cache": "passed",
    "test_memoised_tensor": "passed",
    "test_cached_property": "passed",
    "test_constant_made_at_first_use": "passed",
    "test_cache_of_one_entry": "passed",
    "test_import": "passed",
    "test_regular_expression": "passed",
    "test_profile": "passed",
    "test_transform": "passed",
    "test_compile": "passed",
    "test_script": "passed",
    "test_generator_that_goes_on": "passed",
}

MADE: list[torch.Tensor] = []
CACHE: dict[str, torch.Tensor] = {}
POOL: list[concurrent.futures.ThreadPoolExecutor] = []


def test_matmul() -> None:
    torch.randn(500, 500) @ torch.randn(500, 500)


def test_backward() -> None:
    layer = torch.nn.Linear(100, 100)
    layer(torch.randn(5, 100)).sum().backward()


def test_decomposition() -> None:
    torch.linalg.svd(torch.randn(50, 50))
    torch.fft.fft(torch.randn(64))


def test_numpy() -> None:
    np.linalg.inv(np.random.default_rng(0).normal(size=(200, 200)))


def test_random_numbers() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def pool() -> concurrent.futures.ThreadPoolExecutor:
    if not POOL:
        POOL.append(concurrent.futures.ThreadPoolExecutor(1))
    return POOL[0]


def test_pool_of_threads_made_once() -> None:
    assert pool().submit(int, "3").result() == 3


def test_pool_of_threads_used_again() -> None:
    assert pool().submit(int, "4").result() == 4


@functools.lru_cache
def table(size: int) -> torch.Tensor:
    return torch.arange(size)


def test_lru_cache() -> None:
    assert table(100_000)[3] == 3


def test_memoised_tensor() -> None:
    CACHE.setdefault("twiddles", torch.zeros(100_000)).add_(1)


class Tables:
    @functools.cached_property
    def sines(self) -> torch.Tensor:
        return torch.arange(1000).sin()


TABLES = Tables()


def test_cached_property() -> None:
    assert TABLES.sines[0] == 0


def test_constant_made_at_first_use() -> None:
    if not MADE:
        MADE.append(torch.eye(300))
    assert MADE[0].trace() == 300


def test_cache_of_one_entry() -> None:
    CACHE["last"] = torch.zeros(100_000)


def test_import() -> None:
    importlib.import_module("sqlite3")


def test_regular_expression() -> None:
    sys.intern("word" * 20)
    assert re.compile("a(b|c)*d").match("abcd")


def test_profile() -> None:
    with torch.profiler.profile(record_shapes=True) as profile:
        torch.ones(3).sin()
    assert profile.key_averages()


def test_transform() -> None:
    torch.func.vmap(torch.sin)(torch.ones(2, 3))


def test_compile() -> None:
    torch.compile(lambda x: (x * 2 + 1).sin(), backend="eager")(torch.zeros(10))


def test_script() -> None:
    importlib.import_module("warnings").simplefilter("ignore", DeprecationWarning)
    module = torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(2, 3))  # type: ignore[no-untyped-call]
    for _ in range(3):
        module(torch.ones(2, 3))


def counter() -> Iterator[torch.Tensor]:
    values = torch.zeros(1)
    while True:
        yield values.add_(1)


COUNTER = counter()


def test_generator_that_goes_on() -> None:
    assert next(COUNTER) > 0

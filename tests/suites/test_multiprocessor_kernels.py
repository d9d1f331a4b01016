"""The kernels that identify multiprocessors count correctly: compiled as C++, with threads run in turn."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from suites.endurance import multiprocessors
from suites.endurance.multiprocessors import COMPUTE, READ, ROOM, Found

pytestmark = pytest.mark.acceptance  # starts a compiler

#: A device with three multiprocessors, of 64 threads per block.
_HOST = """
#include <cmath>
struct { unsigned x; } threadIdx, blockIdx, blockDim{64};
#define __device__
#define __global__
static unsigned multiprocessor() { return blockIdx.x % 3; }
static void atomicAdd(unsigned* place, unsigned more) { *place += more; }
static void atomicMin(int* place, int value) { if (value < *place) *place = value; }
"""
_LAUNCHES = """
extern "C" void launch_read(const unsigned long long* words, int count, int seed, unsigned* b, unsigned* w, int* f) {
  for (blockIdx.x = 0; blockIdx.x < 6; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) read_words(words, count, seed, 1024, b, w, f);
}
"""
_COMPUTES = """
extern "C" void launch_compute(int steps, int seed, unsigned* b, unsigned* w, int* f) {
  for (blockIdx.x = 0; blockIdx.x < 6; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) compute(steps, seed, 1024, b, w, f);
}
"""


def _library(folder: Path, source: str) -> ctypes.CDLL:
    file = folder / "kernel.cpp"
    file.write_text(_HOST + source)
    subprocess.run(["g++", "-O1", "-w", "-shared", "-fPIC", "-o", folder / "kernel.so", file], check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def _launch(function: Any, *arguments: Any) -> Found:
    blocks, wrong = (np.zeros(ROOM, dtype=np.uint32) for _ in range(2))
    first = np.full(ROOM, np.iinfo(np.int32).max, dtype=np.int32)
    function(*arguments, *(each.ctypes.data_as(ctypes.c_void_p) for each in (blocks, wrong, first)))
    return Found(blocks.tolist(), wrong.tolist(), first.tolist())


def test_each_block_reads_each_word(tmp_path: Path) -> None:
    library = _library(tmp_path, READ + _LAUNCHES)
    words = multiprocessors.written(torch.device("cpu"), 1000, 5)

    found = _launch(library.launch_read, ctypes.c_void_p(words.data_ptr()), 1000, 5)
    assert (found.blocks[:4], found.seen, found.lines()) == ([2, 2, 2, 0], 3, [])

    words[333] ^= 1 << 40
    words[700] = 0
    found = _launch(library.launch_read, ctypes.c_void_p(words.data_ptr()), 1000, 5)
    assert found.lines() == [f"multiprocessor {number}: 4 errors in 2 blocks, the first at 333" for number in range(3)]
    assert _launch(library.launch_read, ctypes.c_void_p(words.data_ptr()), 1000, 6).wrong[:3] == [2000] * 3


def test_arithmetic_of_all_types_agrees(tmp_path: Path) -> None:
    assert _launch(_library(tmp_path, COMPUTE + _COMPUTES).launch_compute, 5000, 7).lines() == []


@pytest.mark.parametrize(
    ("right", "broken"),
    [
        ("single * 1021.0f + 17.0f", "single * 1021.0f + (threadIdx.x == 9 && i == 4321 ? 18.0f : 17.0f)"),
        ("twice * 1021.0 + 17.0", "twice * 1021.0 + (threadIdx.x == 9 && i == 4321 ? 16.0 : 17.0)"),
        ("(whole * 1021 + 17) % 4096", "(whole * 1021 + 17 + (threadIdx.x == 9 && i == 4321)) % 4096"),
    ],
    ids=["float32", "float64", "int32"],
)
def test_one_wrong_step_of_one_thread_is_counted_once(tmp_path: Path, right: str, broken: str) -> None:
    assert right in COMPUTE
    library = _library(tmp_path, COMPUTE.replace(right, broken) + _COMPUTES)
    found = _launch(library.launch_compute, 5000, 7)
    assert found.lines() == [f"multiprocessor {number}: 2 errors in 2 blocks, the first at 4321" for number in range(3)]

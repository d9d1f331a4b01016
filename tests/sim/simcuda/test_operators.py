"""The library's list of the operators that torch has for CUDA."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from harness.sim.simcuda import build
from tests.sim.simcuda.cuda_builds import needs_cuda_build
from tests.sim.simcuda.fake_runtime import run_python

pytestmark = pytest.mark.acceptance

_LIST = """
import ctypes, os, torch
library = ctypes.CDLL(os.environ["SIMCUDA_OPERATORS"])
library.simcuda_list_operators.restype = ctypes.c_char_p
print("operators:", library.simcuda_list_operators().decode(), sep="\\n")
"""


@needs_cuda_build
def test_every_operator_of_this_torch_is_in_a_class() -> None:
    """The class "unknown" means that torch has a kernel for CUDA, but that the simulation has no decision about it."""
    done = run_python(_LIST, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    _, _, listed = done.stdout.partition("operators:\n")
    classes: dict[str, str] = {}
    for line in filter(None, listed.splitlines()):
        name, how, _ = line.split("\t")
        classes[name] = how
    assert len(classes) > 1000, Counter(classes.values())
    assert sorted(name for name, how in classes.items() if how == "unknown") == []


_PRODUCTS = """
import torch
torch.manual_seed(1)
for half in (torch.float16, torch.bfloat16):
    a, b = torch.randn(3, 37, 65).to(half), torch.randn(3, 65, 29).to(half)
    added, vector = torch.randn(3, 37, 29).to(half), torch.randn(65).to(half)
    calls = {
        "mm": (lambda a, b, c, v: torch.mm(a[0], b[0])),
        "mm.out": (lambda a, b, c, v: torch.mm(a[0], b[0], out=torch.empty_like(c[0]))),
        "mm, transposed": (lambda a, b, c, v: torch.mm(b[0].t(), a[0].t())),
        "bmm": (lambda a, b, c, v: torch.bmm(a, b)),
        "addmm": (lambda a, b, c, v: torch.addmm(c[0], a[0], b[0], alpha=0.5, beta=2)),
        "addmm_": (lambda a, b, c, v: c.clone()[0].addmm_(a[0], b[0])),
        "baddbmm": (lambda a, b, c, v: torch.baddbmm(c, a, b)),
        "baddbmm_": (lambda a, b, c, v: c.clone().baddbmm_(a, b)),
        "addmv": (lambda a, b, c, v: torch.addmv(c[0, :, 0], a[0], v)),
        "linear": (lambda a, b, c, v: torch.nn.functional.linear(a, b[0].t(), c[0, 0])),
    }
    for name, call in calls.items():
        found = call(*(each.cuda() for each in (a, b, added, vector)))
        exact = call(*(each.double() for each in (a, b, added, vector)))
        assert found.dtype is half, (name, found.dtype)
        step = torch.finfo(half).eps * exact.abs().clamp(min=1)
        worst = ((found.cpu().double() - exact).abs() / step).max().item()
        assert worst < 0.6, (name, half, worst)
target = torch.zeros(4, 4, dtype=torch.float16, device="cuda")
assert target.addmm_(target, target) is target
print("right")
"""


@needs_cuda_build
def test_products_of_halves_are_rounded_once() -> None:
    """As on CUDA, sums are in float32: the result differs from the exact one by at most its own rounding."""
    done = run_python(_PRODUCTS, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"


_BAGS = """
import itertools
import torch
modes = ("sum", "mean", "max")
kinds, dtypes = (torch.int32, torch.int64), (torch.float16, torch.float32)
cases = itertools.product(kinds, kinds, dtypes, modes, (False, True), (False, True))
for kind, other, dtype, mode, last, sparse in cases:
    if mode == "max" and sparse:
        continue  # torch has none
    found = []
    for device in ("cpu", "cuda"):
        table = torch.arange(20, dtype=dtype, device=device).view(10, 2).requires_grad_()
        indices = torch.tensor([1, 2, 3, 4, 1], dtype=kind, device=device)
        offsets = torch.tensor([0, 0, 2, 5], dtype=other, device=device)
        options = {"mode": mode, "include_last_offset": last, "sparse": sparse}
        bags = torch.nn.functional.embedding_bag(indices, table, offsets, **options)
        bags.sum().backward()
        found.append((bags.detach().cpu(), table.grad.to_dense().cpu()))
    for here, there in zip(*found):
        torch.testing.assert_close(here, there)
print("right")
"""


@needs_cuda_build
def test_bags_of_both_types_of_indices_are_the_cpus() -> None:
    """Indices and offsets of mixed types have a backward pass and sparse gradients, and equal the CPU's results.

    With the end of the last bag among the offsets, there is no device assertion and no index out of range.
    """
    done = run_python(_BAGS, build.simcuda_environment(build.build_simcuda(), os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"

"""The quick tests themselves: with the sizes of GPUs, made small; and what they say about wrong results."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.table import BACKENDS
from harness.devices.health import HealthError
from harness.ready import arithmetic, quick_tests
from harness.ready.bench import MIB, Bench, LacksError, Sizes, ever
from harness.ready.quick_tests import FIRST, TABLE, Entry, plan
from harness.sim.native import provider
from tests.sim.simcuda.cuda_builds import needs_cuda_build

SIZES = Sizes(memory_share=1 / 4096, copy_bytes=MIB, edge=64, allocations=50, timed=True)


class Torch:
    """torch, with some of its functions replaced."""

    def __init__(self, **replaced: Any) -> None:
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        import torch

        return self._replaced.get(name, getattr(torch, name))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    import torch

    monkeypatch.setattr(arithmetic, "_TIMED_EDGE", {"fp64": 64, "fp32": 64, "bf16": 128, "fp16": 128})
    return lambda **replaced: Bench(Torch(**replaced), BACKENDS["cpu"], torch.device("cpu"), 1, SIZES)


@pytest.mark.parametrize("kind", ["fp64", "fp32", "bf16", "fp16"])
def test_a_timed_product_is_exact_and_has_a_rate(bench: Callable[..., Bench], kind: str) -> None:
    made = bench()
    quick_tests.run_test(f"product_{kind}", made)

    assert made.figures[f"product_{kind}"] > 0


@pytest.mark.parametrize("kind", ["fp64", "fp32", "bf16", "fp16"])
def test_a_product_with_one_wrong_element_is_found(bench: Callable[..., Bench], kind: str) -> None:
    import torch

    def wrong(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        made = torch.mm(left, right)
        made[5, 7] += 1
        return made

    with pytest.raises(HealthError, match=r"1 of 4096 elements are wrong; the first, at 327, is "):
        quick_tests.run_test(f"product_{kind}", bench(mm=wrong))


def test_a_wrong_element_of_a_large_product_only_is_found_by_its_row(bench: Callable[..., Bench]) -> None:
    import torch

    def wrong(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        made = torch.mm(left, right)
        if len(left) == 128:
            made[100, 3] -= 1
        return made

    with pytest.raises(HealthError, match=r"1 of 128 elements are wrong; the first, at 100, is "):
        quick_tests.run_test("product_bf16", bench(mm=wrong))


def test_a_result_that_is_no_number_is_wrong(bench: Callable[..., Bench]) -> None:
    import torch

    with pytest.raises(HealthError, match="elements are wrong; the first, at 0, is nan"):
        quick_tests.run_test("product_fp32", bench(mm=lambda left, right: torch.mm(left, right) * float("nan")))


@pytest.mark.parametrize(
    "name", ["context", "copies", "integers", "memory", "convolution", "attention", "fourier", "repeated"]
)
def test_each_test_of_arithmetic_passes_on_the_cpu(bench: Callable[..., Bench], name: str) -> None:
    quick_tests.run_test(name, bench())


def test_memory_that_loses_a_bit_is_found_with_its_address(bench: Callable[..., Bench]) -> None:
    import torch

    def lossy(count: int, **options: Any) -> torch.Tensor:
        class Cell(torch.Tensor):
            def fill_(self, value: Any) -> torch.Tensor:
                filled = super().fill_(value)
                filled.as_subclass(torch.Tensor)[1000] &= ~(1 << 5)
                return filled

        return torch.empty(count, **options).as_subclass(Cell)

    words = r"1 of \d+ words of block 0 are wrong; the first, at address 0x[0-9a-f]+, is 0xffffffffffffffdf instead of "
    with pytest.raises(HealthError, match=words + "0xffffffffffffffff"):
        quick_tests.run_test("memory", bench(empty=lossy))


def test_a_transform_with_a_wrong_factor_is_found(bench: Callable[..., Bench]) -> None:
    import types

    import torch

    wrong = types.SimpleNamespace(fft=lambda x: 2 * torch.fft.fft(x), rfft=torch.fft.rfft, irfft=torch.fft.irfft)
    with pytest.raises(HealthError, match="the spectrum of an impulse is off by 1"):
        quick_tests.run_test("fourier", bench(fft=wrong))


@pytest.mark.parametrize("name", [entry.name for entry in quick_tests.TABLE if entry.function.startswith("order:")])
def test_what_is_cudas_own_is_skipped_elsewhere_or_passes(bench: Callable[..., Bench], name: str) -> None:
    with contextlib.suppress(LacksError):
        quick_tests.run_test(name, bench())


def test_what_must_be_seen_once_is_tried_with_longer_sleeps() -> None:
    slept: list[float] = []

    def trial(milliseconds: float) -> bool:
        slept.append(milliseconds)
        return len(slept) == 3

    assert ever(trial)
    assert slept == [20.0, 40.0, 80.0]
    assert not ever(lambda _: False)


_SCRIPT = """
import torch
from harness.backends.table import BACKENDS
from harness.ready import arithmetic, quick_tests
from harness.ready.bench import MIB, Bench, Sizes
arithmetic._TIMED_EDGE = dict.fromkeys(arithmetic._TIMED_EDGE, 128)
arithmetic._COPIED = 4 * MIB
sizes = Sizes(memory_share=1 / 512, copy_bytes=MIB, edge=64, allocations=50, timed=True)
bench = Bench(torch, BACKENDS["simcuda"], torch.device("cuda", 0), 1, sizes)
for entry in quick_tests.TABLE:
    if not entry.group:
        quick_tests.run_test(entry.name, bench)
print(sorted(bench.figures))
"""


@needs_cuda_build
@pytest.mark.acceptance
def test_all_tests_of_a_gpu_pass_on_the_simulated_cuda_with_measurements() -> None:
    """Also those that a check of simulated devices leaves out: fp8, int8 and Fourier transforms."""
    variables = provider.provider_of(BACKENDS["simcuda"]).provide().variables
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(
        sorted(
            [
                *("d2d_bandwidth", "h2d_pinned_bandwidth", "d2h_pinned_bandwidth", "launch_latency", "memory_bytes"),
                *(f"product_{kind}" for kind in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")),
            ]
        )
    )


def row(name: str, seconds: float, finds: float, *, group: bool = False) -> Entry:
    return Entry(name, "", "", seconds, seconds, finds, "", group)


@pytest.mark.parametrize(
    ("tests", "budget", "gpus", "run", "skipped"),
    [
        pytest.param([row(FIRST, 2, 1)], 10, 1, (FIRST,), {}, id="it fits"),
        pytest.param(
            [row(FIRST, 2, 1), row("a", 1, 3)],
            1,
            1,
            (),
            {
                FIRST: "it takes about 2 s, and 1 s of the budget of 1 s are left",
                "a": "it follows context, which is skipped",
            },
            id="what follows is skipped too",
        ),
        pytest.param(
            [row("few", 1, 1), row("many", 1, 5), row("long", 10, 6), row(FIRST, 50, 1)],
            100,
            1,
            (FIRST, "many", "few", "long"),
            {},
            id="most faults per second first",
        ),
        pytest.param(
            [row("long", 10, 100), row("short", 1, 1)],
            5,
            1,
            ("short",),
            {"long": "it takes about 10 s, and 5 s of the budget of 5 s are left"},
            id="a shorter one may still fit",
        ),
        pytest.param([row("all", 1, 100, group=True), row("one", 1, 1)], 5, 2, ("one", "all"), {}, id="groups last"),
        pytest.param(
            [row("all", 1, 100, group=True)],
            5,
            1,
            (),
            {"all": "it needs two whole GPUs that one process can use together"},
            id="one GPU is no group",
        ),
    ],
)
def test_plan(tests: list[Entry], budget: float, gpus: int, run: tuple[str, ...], skipped: dict[str, str]) -> None:
    made = plan(budget, gpus, full=True, table=tests)

    assert (made.run, made.skipped) == (run, skipped)


def test_a_simulated_device_lacks_what_it_takes_from_the_cpu() -> None:
    tests = [row("fourier", 1, 1)]

    assert plan(5, 1, full=True, table=tests).run == ("fourier",)
    assert plan(5, 1, full=False, table=tests).skipped == {
        "fourier": "a simulated device has no library of its own for it"
    }


@given(st.floats(0, 200), st.integers(0, 8), st.booleans())
def test_each_test_of_the_table_is_run_or_skipped_with_a_reason(budget: float, gpus: int, full: bool) -> None:
    made = plan(budget, gpus, full=full)

    seconds = {entry.name: entry.full if full else entry.small for entry in TABLE}
    assert sorted([*made.run, *made.skipped]) == sorted(seconds)
    assert sum(seconds[name] for name in made.run) <= budget
    assert all(made.skipped.values())
    assert made.run[:1] in ((FIRST,), ())


def test_the_default_budget_has_time_for_all_tests_of_eight_gpus() -> None:
    assert plan(30.0, 8, full=True).skipped == {}


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_each_test_can_be_loaded_and_says_what_it_expects(entry: Entry) -> None:
    assert callable(entry.load())
    assert entry.holds

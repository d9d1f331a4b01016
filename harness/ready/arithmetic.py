"""Quick tests of memory, copies and computations. Every result is known exactly, and compared exactly.

Operands are small integers, of which each type holds every partial sum, in any order: a result that differs in one bit
is a fault of the device, and never rounding.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from harness.devices import health
from harness.devices.health import HealthError
from harness.ready.bench import MIB, Bench, LacksError, same_values

if TYPE_CHECKING:
    import torch

_Multiplication = Callable[[Any, Any], Any]
#: 64-bit words that each bit of memory holds in turn: all zeros, all ones, and alternating bits both ways.
_WORDS = (0, -1, 0x5555555555555555, -0x5555555555555556)
#: Bytes of one block of memory under test.
_BLOCK = 1 << 30
#: One in this many operands of a timed product is not zero, so that its sums stay small integers.
_RARE = 16
#: Figures of `harness.core.figures` and their edges in ``suites/performance``.
_TIMED_EDGE = {"fp64": 4096, "fp32": 4096, "tf32": 8192, "fp16": 8192, "bf16": 8192, "fp8": 8192}
_COPIED = 1 << 30
_REPETITIONS, _CALLS = 8, 4


def context(bench: Bench) -> None:
    """A context is created, a tensor is filled, and its value is read back."""
    x = bench.torch.full((1024,), 7, dtype=bench.torch.int64, device=bench.device)
    bench.synchronize()
    if (total := x.sum().item()) != 7 * 1024:
        raise HealthError(f"the sum of 1024 sevens is {total} instead of {7 * 1024}")


def copies(bench: Bench) -> None:
    """Random bytes arrive on the device, in another place there, and at the host again, pageable and pinned."""
    torch, size = bench.torch, bench.sizes.copy_bytes
    pattern = bench.source.randbytes(size)
    here = torch.frombuffer(bytearray(pattern), dtype=torch.uint8)
    there = here.to(bench.device)
    health.same_bytes(pattern, health.bytes_of(torch, there))
    copied = torch.zeros_like(there)
    copied.copy_(there)
    health.same_bytes(pattern, health.bytes_of(torch, copied))
    if not bench.backend.accelerator:
        return
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pinned.copy_(copied, non_blocking=True)
    bench.synchronize()
    health.same_bytes(pattern, bytearray(pinned.numpy().tobytes()))
    there.zero_()
    there.copy_(pinned, non_blocking=True)
    bench.synchronize()
    if not bool((there == copied).all()):
        raise HealthError("a copy from pinned memory differs from what was copied to it")
    if bench.sizes.timed:
        _time_copies(bench)


def integers(bench: Bench) -> None:
    """Products, sums and bits of 64-bit integers: an invertible function and its inverse; sums and maxima."""
    torch = bench.torch
    pattern = bench.source.randbytes(min(bench.sizes.copy_bytes, 4 * MIB))
    there = torch.frombuffer(bytearray(pattern), dtype=torch.uint8).to(bench.device)
    health.check_integers(torch, bench.source, pattern, there.view(torch.int64))
    health.check_reductions(torch, bench.device, pattern, there)


def memory(bench: Bench) -> None:
    """A stated part of the free memory holds zeros, ones, alternating bits, and each word its own number."""
    torch = bench.torch
    free, _ = torch.cuda.mem_get_info(bench.device) if bench.device.type == "cuda" else (512 * MIB, 0)
    left = max(MIB, int(free * bench.sizes.memory_share)) // 8
    bench.figures["memory_bytes"] = 8 * left
    blocks = []
    while left > 0:
        count = min(left, _BLOCK // 8)
        blocks.append(torch.empty(count, dtype=torch.int64, device=bench.device))
        left -= count
    for word in _WORDS:
        for block in blocks:
            block.fill_(word)
        for number, block in enumerate(blocks):
            _same_words(number, block, block != word, word)
    for number, block in enumerate(blocks):
        torch.arange(number << 40, (number << 40) + block.numel(), dtype=torch.int64, device=bench.device, out=block)
    for number, block in enumerate(blocks):
        low = number << 40
        expected = torch.arange(low, low + block.numel(), dtype=torch.int64, device=bench.device)
        _same_words(number, block, block != expected, low, step=1)


def _same_words(number: int, block: torch.Tensor, wrong: torch.Tensor, first: int, *, step: int = 0) -> None:
    """Raise HealthError if any word is wrong. Word n should be `first` + n * `step`."""
    if not (count := int(wrong.sum().item())):
        return
    place = int(wrong.to(block.dtype).argmax().item())
    found, expected = int(block[place].item()) % 2**64, (first + place * step) % 2**64
    raise HealthError(
        f"{count} of {block.numel()} words of block {number} are wrong; the first, at address "
        f"{block.data_ptr() + 8 * place:#x}, is {found:#018x} instead of {expected:#018x}"
    )


def product(kind: str) -> Callable[[Bench], None]:
    """Return the test of a product of matrices in the type `kind`, such as ``bf16`` or ``int8``."""

    def test(bench: Bench) -> None:
        with _precision(bench.torch, tf32=kind == "tf32"):
            _product(bench, kind)

    test.__doc__ = f"A product of matrices of small integers in {kind} is the exact one."
    return test


#: The types of products, each with the names of its types in torch: of the operands and of the result.
PRODUCTS = {
    "fp64": ("float64", "float64"),
    "fp32": ("float32", "float32"),
    "tf32": ("float32", "float32"),
    "fp16": ("float16", "float16"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp8": ("float8_e4m3fn", "bfloat16"),
    "int8": ("int8", "int32"),
}
#: The least compute capability of a GPU that has the type.
_NEEDS = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "int8": (7, 5)}


def _product(bench: Bench, kind: str) -> None:
    torch = bench.torch
    needed = _NEEDS.get(kind)
    if needed and bench.device.type == "cuda" and torch.cuda.get_device_capability(bench.device) < needed:
        raise LacksError(f"the card has no {kind}: it needs compute capability {needed[0]}.{needed[1]}")
    multiply = _multiplication(bench, kind)
    edge = bench.sizes.edge
    generator = torch.Generator().manual_seed(bench.seed)
    left, right = (torch.randint(-1, 2, (edge, edge), generator=generator).to(torch.float64) for _ in range(2))
    wanted = left @ right  # on the host
    dtype, out = (getattr(torch, name) for name in PRODUCTS[kind])
    # Column-major, as products of 8-bit types require it of the right operand.
    found = multiply(left.to(dtype).to(bench.device), right.t().contiguous().to(dtype).to(bench.device).t())
    if found.dtype != out:
        raise HealthError(f"the product has type {found.dtype} instead of {out}")
    same_values(found.to("cpu").to(torch.float64), wanted.to(out).to(torch.float64))
    if bench.sizes.timed and kind in _TIMED_EDGE:
        _time_product(bench, kind, multiply, dtype, _TIMED_EDGE[kind])


def _multiplication(bench: Bench, kind: str) -> _Multiplication:
    torch = bench.torch
    if kind not in ("fp8", "int8"):
        return cast(_Multiplication, torch.mm)
    name = "_scaled_mm" if kind == "fp8" else "_int_mm"
    function = getattr(torch, name, None)
    if function is None or (kind == "fp8" and not hasattr(torch, "float8_e4m3fn")):
        raise LacksError(f"this torch has no product of {kind}")
    if kind == "int8":
        return lambda left, right: function(left, right)
    one = torch.ones((), device=bench.device)
    # Fast accumulation, as where the floors were measured. It holds the sums of these operands exactly.
    return lambda left, right: function(
        left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _time_product(bench: Bench, kind: str, multiply: _Multiplication, dtype: Any, edge: int) -> None:
    """Measure a large product, and check it by Freivalds' method with float64: the rows' sums, weighted by integers.

    Few operands differ from zero, so that the sums are small integers, which every type holds.
    """
    torch = bench.torch
    left, right = (_rare(bench, edge, number) for number in range(2))
    weights = torch.arange(edge, dtype=torch.float64, device=bench.device) % 8
    operands = left.to(dtype), right.t().contiguous().to(dtype).t()
    results: list[Any] = []

    def work() -> None:
        results[:] = [multiply(*operands)]

    bench.figures[f"product_{kind}"] = 2 * edge**3 / _seconds_per_call(bench, work)
    found = results[0].to(torch.float64) @ weights
    same_values(found.cpu(), (left.to(torch.float64) @ (right.to(torch.float64) @ weights)).cpu())


def _rare(bench: Bench, edge: int, number: int) -> Any:
    """Return a matrix of zeros, and few ones of either sign. float32 holds them, and torch makes them on any device."""
    torch = bench.torch
    generator = torch.Generator(bench.device).manual_seed(bench.seed + number)
    made = torch.randint(0, 2 * _RARE, (edge, edge), generator=generator, device=bench.device)
    return (made == 0).to(torch.float32) - (made == 1).to(torch.float32)


@contextlib.contextmanager
def _precision(torch: Any, *, tf32: bool) -> Iterator[None]:
    """Allow or forbid TF32, and forbid sums in narrow types."""
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in names}
    try:
        for name, value in zip(names, (tf32, False, False), strict=True):
            setattr(matmul, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)


def convolution(bench: Bench) -> None:
    """A convolution of small integers in float32 is the exact one, computed in float64 on the host.

    cuDNN may choose Winograd's algorithm, whose factors are no binary fractions: the result is rounded to integers.
    """
    torch = bench.torch
    generator = torch.Generator().manual_seed(bench.seed)
    x = torch.randint(-2, 3, (4, 8, 16, 16), generator=generator).double()
    weight = torch.randint(-2, 3, (8, 8, 3, 3), generator=generator).double()
    wanted = torch.nn.functional.conv2d(x, weight, padding=1)
    with _precision(torch, tf32=False):
        found = torch.nn.functional.conv2d(x.float().to(bench.device), weight.float().to(bench.device), padding=1)
    found = found.cpu().double()
    same_values(found.round(), wanted)
    _near("a convolution of integers", (found - wanted).abs().max().item(), 0.05)


def attention(bench: Bench) -> None:
    """Causal attention over equal keys is the running mean of the values: of 0, 1, 2, … the half of each."""
    torch, count = bench.torch, 64
    query = torch.zeros(2, 4, count, 32, device=bench.device)
    numbers = torch.arange(count, dtype=torch.float32, device=bench.device).view(1, 1, count, 1)
    value = numbers.expand(2, 4, count, 32).contiguous()
    found = torch.nn.functional.scaled_dot_product_attention(query, query, value, is_causal=True)
    # A kernel may use TF32, which rounds weights to a relative 2**-11 of numbers below 64. A wrong mask is off by 0.5.
    _near("causal attention over equal keys", (found - numbers / 2).abs().max().item(), 0.125)


def fourier(bench: Bench) -> None:
    """The Fourier transform of one impulse has only ones, and of a wave two peaks; the inverse restores the input."""
    torch, count = bench.torch, 1024
    impulse = torch.zeros(count, dtype=torch.complex64, device=bench.device)
    impulse[0] = 1
    spectrum = torch.fft.fft(impulse)
    _near("the spectrum of an impulse", (spectrum - 1).abs().max().item(), 1e-5)
    times = torch.arange(count, dtype=torch.float64, device=bench.device)
    wave = torch.cos(2 * math.pi * 5 * times / count).to(torch.float32)
    spectrum = torch.fft.rfft(wave).abs()
    _near("the peak of a wave", abs(spectrum[5].item() - count / 2), 1e-2)
    spectrum[5] = 0
    _near("the rest of the spectrum of a wave", spectrum.max().item(), 1e-2)
    restored = torch.fft.irfft(torch.fft.rfft(wave), n=count)
    _near("a wave that was transformed and restored", (restored - wave).abs().max().item(), 1e-4)


def _near(what: str, error: float, most: float) -> None:
    if not error <= most:
        raise HealthError(f"{what} is off by {error:g}, expected at most {most:g}")


def repeated(bench: Bench) -> None:
    """The same product has the same bits again and again, beside copies that keep the memory busy."""
    torch, edge = bench.torch, bench.sizes.edge
    generator = torch.Generator().manual_seed(bench.seed)
    x = torch.randn(edge, edge, generator=generator).to(bench.device)
    first = x @ x
    moved = torch.empty_like(x)
    for number in range(4):
        moved.copy_(x)
        if not bool((x @ x == first).all()):
            raise HealthError(f"repetition {number + 1} of a product has other bits than the first")
    if not bool((moved == x).all()):
        raise HealthError("a copy on the device beside products differs from its source")


def _time_copies(bench: Bench) -> None:
    torch = bench.torch
    source = torch.empty(_COPIED, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    bench.figures["d2d_bandwidth"] = 2 * source.numel() / _seconds_per_call(bench, lambda: target.copy_(source))
    size = bench.sizes.copy_bytes
    pinned, there = torch.empty(size, dtype=torch.uint8, pin_memory=True), target[:size]
    for name, work in (
        ("h2d_pinned_bandwidth", lambda: there.copy_(pinned, non_blocking=True)),
        ("d2h_pinned_bandwidth", lambda: pinned.copy_(there, non_blocking=True)),
    ):
        bench.figures[name] = size / _seconds_per_call(bench, work)


def _seconds_per_call(bench: Bench, work: Callable[[], object]) -> float:
    """Return the seconds per call, from an idle device to an idle device: the best of several repetitions.

    The first ones raise the clocks of an idle GPU, and other work of the host slows some of them.
    """
    times = []
    for _ in range(_REPETITIONS):
        bench.synchronize()
        begin = time.perf_counter()
        for _ in range(_CALLS):
            work()
        bench.synchronize()
        times.append((time.perf_counter() - begin) / _CALLS)
    return min(times)

"""Checks that a device computes and copies correctly, in a disposable process and never in this one.

`examine_device` runs in that process; `check_device` starts one and judges its end. As a program
(``python -m harness.devices.health --kind cpu``) this module examines the first visible device. It prints one line of
JSON per step, and last the result.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import operator
import os
import random
import signal
import sys
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.core.disposable import LADDER, DisposableRun, json_objects, run_disposable
from harness.core.errors import HarnessError
from harness.core.text import format_exit_code, single_line
from harness.devices.device import Device, masks_for

if TYPE_CHECKING:
    import torch

# Computations and copies whose exact results are known, for the examination of a device.
#
# All functions raise HealthError with the first difference. They change no setting of torch, and none of them depends
# on TF32: floating point holds all integers that occur.

_SUMMED_BYTES = 1 << 20
_COUNTED = 1 << 22
_EDGE = 512  # rows and columns of the matrices
_LARGEST = 8  # largest element; 512 * 8 * 8 is far below 2**24, and float32 holds every integer up to 2**24
#: Maps a random byte to an element of a matrix, from -8 to 8.
_ELEMENTS = bytes((byte % (2 * _LARGEST + 1) - _LARGEST) % 256 for byte in range(256))
_SAMPLES = 4096
_WORD = 1 << 64


class HealthError(HarnessError):
    """A step of the examination failed on the device. The text names the step and the error."""


def bytes_of(torch: Any, there: torch.Tensor) -> bytearray:
    """Return the bytes of a uint8 tensor, copied to host memory."""
    fetched = bytearray(there.numel())
    torch.frombuffer(fetched, dtype=torch.uint8).copy_(there)
    return fetched


def same_bytes(wanted: bytes, actual: bytearray) -> None:
    """Compare bytes by their checksum, and count the bits that differ."""
    if zlib.crc32(wanted) == zlib.crc32(actual):
        return
    difference = int.from_bytes(wanted, "little") ^ int.from_bytes(actual, "little")
    first = ((difference & -difference).bit_length() - 1) // 8
    raise HealthError(
        f"{difference.bit_count()} of {8 * len(wanted)} bits differ; "
        f"the first is in byte {first}: {actual[first]:#04x} instead of {wanted[first]:#04x}"
    )


def check_integers(torch: Any, source: random.Random, pattern: bytes, words: torch.Tensor) -> None:
    """Scramble 64-bit words with an invertible function. Compare samples with Python; undo it and compare all words."""
    key, factor, term = source.getrandbits(63), source.getrandbits(62) | 1, source.getrandbits(63)
    scrambled = (words ^ key) * factor + term
    count = words.numel()
    places = range(0, count, count // _SAMPLES)
    for place, actual in zip(places, scrambled[:: places.step].tolist(), strict=True):
        word = int.from_bytes(pattern[8 * place : 8 * place + 8], sys.byteorder)
        wanted = ((word ^ key) * factor + term) % _WORD
        if actual % _WORD != wanted:
            raise HealthError(f"word {place} is {actual % _WORD:#018x} instead of {wanted:#018x}")
    inverse = _signed(pow(factor, -1, _WORD))
    restored = ((scrambled - term) * inverse) ^ key
    same_bytes(pattern, bytes_of(torch, restored.view(torch.uint8)))


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD // 2 else word


def check_reductions(torch: Any, device: torch.device, pattern: bytes, there: torch.Tensor) -> None:
    """Compare sums and maxima of a range and of the pattern, which `there` has on the device, with Python's."""
    counted = torch.arange(_COUNTED, dtype=torch.int64, device=device)
    part = pattern[:_SUMMED_BYTES]
    for name, actual, wanted in (
        ("the sum of arange", counted.sum(), _COUNTED * (_COUNTED - 1) // 2),
        ("the maximum of arange", counted.max(), _COUNTED - 1),
        ("the sum of the pattern", there[:_SUMMED_BYTES].sum(dtype=torch.int64), sum(part)),
        ("the maximum of the pattern", there[:_SUMMED_BYTES].max(), max(part)),
    ):
        if int(actual.item()) != wanted:
            raise HealthError(f"{name} is {int(actual.item())} instead of {wanted}")


def check_product(torch: Any, source: random.Random, device: torch.device, dtype: torch.dtype) -> None:
    """Check a product of matrices of small integers with Freivalds' method: C v = A (B v) in Python's integers.

    A single wrong element is always found; other errors are missed with a probability of one in 2**30.
    """
    left, right = (array("b", source.randbytes(_EDGE * _EDGE).translate(_ELEMENTS)) for _ in range(2))
    here = [torch.frombuffer(matrix, dtype=torch.int8).view(_EDGE, _EDGE).to(dtype) for matrix in (left, right)]
    product = here[0].to(device) @ here[1].to(device)
    vector = [source.randint(1, 1 << 30) for _ in range(_EDGE)]
    wanted = _times(left, _times(right, vector))
    for number, (row, expected) in enumerate(zip(product.tolist(), wanted, strict=True)):
        if not all(map(float.is_integer, row)):
            element = next(element for element in row if not element.is_integer())
            raise HealthError(f"row {number} has the element {element!r}, expected a whole number")
        if sum(map(operator.mul, map(int, row), vector)) != expected:
            raise HealthError(f"row {number} of {_EDGE} is wrong")


def _times(matrix: array[int], vector: Sequence[int]) -> list[int]:
    """Return the product of a matrix, row by row, and a vector."""
    edge = len(vector)
    return [sum(map(operator.mul, matrix[first : first + edge], vector)) for first in range(0, len(matrix), edge)]


_PATTERN_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of a device: the verdict, the reason, the seconds of the check, and the result of `examine_device`."""

    healthy: bool
    text: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)


def check_device(
    device: Device, *, timeout: float = 60.0, environ: Mapping[str, str] | None = None, seed: int = 0
) -> DeviceHealth:
    """Examine `device` in a new process and judge the result. No fault of the device raises an error.

    `environ` defaults to ``os.environ``; its mask of visible devices is replaced. After `timeout` seconds the process
    and its group are killed. A device with a known fault is unhealthy without an examination.
    """
    if device.fault is not None:
        return DeviceHealth(False, f"at fault: {device.fault}", 0.0)
    variables = {**(os.environ if environ is None else environ), **masks_for([device])}
    # The child ends itself after this limit, in case its parent has been killed.
    limit = timeout + sum(grace for _, grace in LADDER)
    command = [sys.executable, "-m", "harness.devices.health"]
    command += ["--kind", device.kind, "--seed", str(seed), "--limit", str(limit)]
    try:
        return judge_examination(run_disposable(command, timeout, environ=variables, ladder=LADDER))
    except OSError as error:
        return DeviceHealth(False, f"the examination process does not start: {error.strerror}", 0.0)


def judge_examination(run: DisposableRun) -> DeviceHealth:
    """Judge the health of a device from the end of the child process and its output."""
    step, answer = "process start", None
    for message in json_objects(run.output.splitlines()):
        step = str(message.get("step", step))
        if "healthy" in message:
            answer, step = message, "process exit"
    where = f"during {single_line(step)}"
    status, seconds = run.status, run.seconds
    output = f"; last output: {single_line(run.last_error)}" if run.last_error else ""
    if status is None:
        return DeviceHealth(False, f"hangs {where} and could not be killed{output}", seconds)
    if not run.in_time:
        return DeviceHealth(False, f"hangs {where}: did not end within {seconds:.0f} s{output}", seconds)
    if answer is None:
        return DeviceHealth(False, f"ended with {format_exit_code(status)} {where}, without a result{output}", seconds)
    if answer["healthy"] is not True:
        return DeviceHealth(False, single_line(str(answer.get("text"))), seconds)
    if status != 0:
        return DeviceHealth(False, f"passed, but the process ended with {format_exit_code(status)}{output}", seconds)
    facts = answer.get("facts")
    facts = facts if isinstance(facts, dict) else {}
    text = "computes and copies correctly"
    if isinstance(unchecked := facts.get("unchecked"), list) and unchecked:
        text = f"copies correctly; torch has no operators on it for {', '.join(map(str, unchecked))}"
    return DeviceHealth(True, text, seconds, facts)


def examine_device(backend: Backend, seed: int, *, tell: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Create a context on the first visible device, copy and compute there, and compare with results from Python.

    Call it in a disposable process: a sick device may hang or kill the process. All results are exact: integers, or
    floating point that holds these integers exactly, with or without TF32. Global settings of torch are neither needed
    nor changed. The examination takes less than 256 MiB of device memory, and frees it. `tell` gets each step before it
    begins.

    Return the bytes checked, their checksum, the seconds, torch's version, and the steps for which the device lacks
    operators. Raise HealthError.
    """
    began = time.monotonic()
    with _step("import of torch", tell):
        torch = backend.import_torch()
    with _step("creation of a context", tell):
        device = backend.first_device(torch)
        torch.zeros(1, dtype=torch.int64, device=device)
        backend.synchronize(torch, 0)
    source = random.Random(seed)
    pattern = source.randbytes(_PATTERN_BYTES)
    here = torch.frombuffer(bytearray(pattern), dtype=torch.uint8)
    with _step("copy to the device and back", tell):
        there = torch.empty(len(pattern), dtype=torch.uint8, device=device)
        there.copy_(here)
        same_bytes(pattern, bytes_of(torch, there))
    with _step("copy on the device", tell):
        copied = torch.zeros_like(there)
        copied.copy_(there)
        same_bytes(pattern, bytes_of(torch, copied))
    unchecked: list[str] = []
    with _optional("integer arithmetic", tell, unchecked):
        check_integers(torch, source, pattern, copied.view(torch.int64))
    with _optional("reductions", tell, unchecked):
        check_reductions(torch, device, pattern, there)
    for dtype in (torch.float32, torch.float64):
        with _optional(f"matrix product in {str(dtype).removeprefix('torch.')}", tell, unchecked):
            check_product(torch, source, device, dtype)
    with _step("release of memory", tell):
        del there, copied
        backend.synchronize(torch, 0)
        backend.empty_cache(torch)
    return {
        "bytes": len(pattern),
        "checksum": f"crc32:{zlib.crc32(pattern):08x}",
        "seconds": round(time.monotonic() - began, 3),
        "torch": str(torch.__version__),
        "unchecked": unchecked,
    }


@contextlib.contextmanager
def _step(name: str, tell: Callable[[str], object]) -> Iterator[None]:
    tell(name)
    try:
        yield
    except (HealthError, RuntimeError, AssertionError, ImportError, OSError) as error:
        # A torch built without CUDA raises AssertionError; every CUDA error is a RuntimeError.
        raise HealthError(name) from error


@contextlib.contextmanager
def _optional(name: str, tell: Callable[[str], object], unchecked: list[str]) -> Iterator[None]:
    """Run a step that needs operators. A device without these operators is not sick: the step goes to `unchecked`."""
    with _step(name, tell):
        try:
            yield
        except NotImplementedError:
            unchecked.append(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the first visible device, and print the steps and the result. Return 0 if it is healthy."""
    parser = argparse.ArgumentParser(prog="python -m harness.devices.health", description="Examine a device.")
    parser.add_argument("--kind", required=True, help="the kind of device: the first visible one, or the CPU")
    parser.add_argument("--seed", type=int, default=0, help="seed of the pattern and the numbers")
    parser.add_argument("--limit", type=float, help="seconds after which the process ends itself with SIGALRM")
    options = parser.parse_args(arguments)
    if options.limit is not None:
        signal.setitimer(signal.ITIMER_REAL, options.limit)

    def say(**message: object) -> None:
        print(json.dumps(message), flush=True)

    try:
        facts = examine_device(BACKENDS.add(options.kind), options.seed, tell=lambda step: say(step=step))
    except HealthError as error:
        say(healthy=False, text=str(error))
        return 1
    say(healthy=True, facts=facts)
    return 0


if __name__ == "__main__":
    gc.disable()  # the import of torch takes a tenth longer with it
    sys.exit(main())

"""Whether a device still computes and copies rightly: asked of a disposable process, never of this one.

`examine` is what such a process does; `check` starts one and judges how it went. Run as a program
(``python -m harness.devices.health --kind cpu``) this module examines the first visible device and prints one line of
JSON a step, the last being the answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import operator
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from harness.backends.backend import Backend
from harness.backends.cuda import MASK
from harness.backends.table import BACKENDS
from harness.devices.device import Device
from harness.devices.visibility import mask_for
from harness.errors import HarnessError
from harness.text import exit_text, one_line

if TYPE_CHECKING:
    import torch

#: The kill ladder: signals in order, each with the seconds to wait for the end before the next.
LADDER = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0))

_PATTERN_BYTES = 32 << 20
_SUMMED_BYTES = 1 << 20
_COUNTED = 1 << 22
_EDGE = 512  # rows and columns of the matrices
_LARGEST = 8  # in a matrix; 512 * 8 * 8 is far below 2**24, up to which float32 holds every integer
_SAMPLES = 4096
_WORD = 1 << 64
_PAUSE = 0.02  # seconds between two looks at a process; importing torch alone takes a hundred times as long
_ANSWER_KEPT, _ERRORS_KEPT = 1 << 16, 1 << 13  # bytes read of what a child wrote


class HealthError(HarnessError):
    """A device did not do what every device does. Names the step, and what was wrong there."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a device is fit for use, in words why, how many seconds it took to know, and what `examine` returned."""

    healthy: bool
    text: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)


def check(device: Device, *, timeout: float = 60.0, environ: Mapping[str, str] | None = None, seed: int = 0) -> Health:
    """Have a new process examine `device`, and judge how that went. Raises nothing on account of the device.

    `environ` is ``os.environ`` unless given; the mask of visible devices in it is replaced. After `timeout` seconds the
    process is ended, its group with it. A device that is known to be at fault is sick without a look.
    """
    if device.fault is not None:
        return Health(False, f"at fault: {device.fault}", 0.0)
    variables = {**(os.environ if environ is None else environ), MASK: mask_for([device])}
    # The child ends itself if nobody is left to end it: its parent is killed, say.
    limit = timeout + sum(grace for _, grace in LADDER)
    command = [sys.executable, "-m", "harness.devices.health"]
    command += ["--kind", device.kind, "--seed", str(seed), "--limit", str(limit)]
    began = time.monotonic()
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=answers,  # files, since a pipe fills up and may be held open by another process
                stderr=errors,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            return Health(False, f"no process could be started to examine it: {error.strerror}", 0.0)
        in_time = _ended(child, began + timeout)
        status = _end(child, LADDER)
        seconds = time.monotonic() - began
        lines = _tail(answers, _ANSWER_KEPT).splitlines()
        return judge(in_time, status, lines, _tail(errors, _ERRORS_KEPT), seconds)


def judge(in_time: bool, status: int | None, lines: Sequence[bytes], errors: bytes, seconds: float) -> Health:
    """What the end of a child and what it wrote make of its device.

    `status` is that of ``os.waitstatus_to_exitcode``, None when the child could not be killed. `lines` are those of its
    standard output, `errors` is the tail of its standard error.
    """
    step, answer = "its start", None
    for message in _messages(lines):
        step = str(message.get("step", step))
        if "healthy" in message:
            answer, step = message, "its end"
    where = f"during {one_line(step)}"
    last = next((line for line in reversed(errors.decode(errors="backslashreplace").splitlines()) if line.strip()), "")
    said = f"; it last said: {one_line(last)}" if last else ""
    if status is None:
        return Health(False, f"hangs {where}, and could not be killed{said}", seconds)
    if not in_time:
        return Health(False, f"hangs: no end within {seconds:.0f} s, {where}{said}", seconds)
    if answer is None:
        return Health(False, f"ended with {exit_text(status)} {where}, without an answer{said}", seconds)
    if answer["healthy"] is not True:
        return Health(False, one_line(str(answer.get("text"))), seconds)
    if status != 0:
        return Health(False, f"passed, and ended with {exit_text(status)} all the same{said}", seconds)
    facts = answer.get("facts")
    return Health(True, "computes and copies rightly", seconds, facts if isinstance(facts, dict) else {})


def examine(backend: Backend, seed: int, *, tell: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Make a context on the first visible device, copy and compute there, and compare with what Python says.

    For a process that is thrown away afterwards: a sick device may hang it or end it. Everything is exact, in integers,
    or in floating point that holds all of them whatever TF32 does; global settings of torch are neither needed nor
    changed. Less than 256 MiB of device memory are taken, and freed. `tell` hears of each step before it begins.

    Returns the bytes checked, their checksum, the seconds, and torch's version. Raises HealthError.
    """
    began = time.monotonic()
    with _step("the import of torch", tell):
        import torch
    with _step("the making of a context", tell):
        device = backend.first_device(torch)
        torch.zeros(1, dtype=torch.int64, device=device)
        backend.synchronize(torch, 0)
    source = random.Random(seed)
    pattern = source.randbytes(_PATTERN_BYTES)
    here = torch.frombuffer(bytearray(pattern), dtype=torch.uint8)
    with _step("the copy to the device and back", tell):
        there = torch.empty(len(pattern), dtype=torch.uint8, device=device)
        there.copy_(here)
        _same(pattern, _bytes_of(torch, there))
    with _step("the copy on the device", tell):
        copied = torch.zeros_like(there)
        copied.copy_(there)
        _same(pattern, _bytes_of(torch, copied))
    with _step("integer arithmetic", tell):
        _integers(torch, source, pattern, copied.view(torch.int64))
    with _step("reductions", tell):
        _reductions(torch, device, pattern, there)
    for dtype in (torch.float32, torch.float64):
        with _step(f"a matrix product in {str(dtype).removeprefix('torch.')}", tell):
            _product(torch, source, device, dtype)
    with _step("the freeing of memory", tell):
        del there, copied
        backend.synchronize(torch, 0)
        backend.empty_cache(torch)
    return {
        "bytes": len(pattern),
        "checksum": f"crc32:{zlib.crc32(pattern):08x}",
        "seconds": round(time.monotonic() - began, 3),
        "torch": str(torch.__version__),
    }


@contextlib.contextmanager
def _step(name: str, tell: Callable[[str], object]) -> Iterator[None]:
    tell(name)
    try:
        yield
    except (HealthError, RuntimeError, AssertionError, ImportError, OSError) as error:
        # A torch that is built without CUDA raises AssertionError; every error of CUDA is a RuntimeError.
        raise HealthError(name) from error


def _bytes_of(torch: Any, there: torch.Tensor) -> bytearray:
    """The bytes of a uint8 tensor, fetched into memory of the host."""
    fetched = bytearray(there.numel())
    torch.frombuffer(fetched, dtype=torch.uint8).copy_(there)
    return fetched


def _same(wanted: bytes, found: bytearray) -> None:
    if zlib.crc32(wanted) == zlib.crc32(found):
        return
    difference = int.from_bytes(wanted, "little") ^ int.from_bytes(found, "little")
    first = ((difference & -difference).bit_length() - 1) // 8
    raise HealthError(
        f"{difference.bit_count()} of {8 * len(wanted)} bits differ, the first in byte {first}, "
        f"which is {found[first]:#04x} and should be {wanted[first]:#04x}"
    )


def _integers(torch: Any, source: random.Random, pattern: bytes, words: torch.Tensor) -> None:
    """A scramble of 64-bit words that can be undone: all of it comes back, and samples are as Python has them."""
    key, factor, term = source.getrandbits(63), source.getrandbits(62) | 1, source.getrandbits(63)
    scrambled = (words ^ key) * factor + term
    count = words.numel()
    places = range(0, count, count // _SAMPLES)
    for place, found in zip(places, scrambled[:: places.step].tolist(), strict=True):
        word = int.from_bytes(pattern[8 * place : 8 * place + 8], sys.byteorder)
        wanted = ((word ^ key) * factor + term) % _WORD
        if found % _WORD != wanted:
            raise HealthError(f"word {place} is {found % _WORD:#018x} and should be {wanted:#018x}")
    inverse = _signed(pow(factor, -1, _WORD))
    restored = ((scrambled - term) * inverse) ^ key
    _same(pattern, _bytes_of(torch, restored.view(torch.uint8)))


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD // 2 else word


def _reductions(torch: Any, device: torch.device, pattern: bytes, there: torch.Tensor) -> None:
    counted = torch.arange(_COUNTED, dtype=torch.int64, device=device)
    part = pattern[:_SUMMED_BYTES]
    for name, found, wanted in (
        ("the sum of a count", counted.sum(), _COUNTED * (_COUNTED - 1) // 2),
        ("the largest of a count", counted.max(), _COUNTED - 1),
        ("the sum of the pattern", there[:_SUMMED_BYTES].sum(dtype=torch.int64), sum(part)),
        ("the largest of the pattern", there[:_SUMMED_BYTES].max(), max(part)),
    ):
        if int(found.item()) != wanted:
            raise HealthError(f"{name} is {int(found.item())} and should be {wanted}")


def _product(torch: Any, source: random.Random, device: torch.device, dtype: torch.dtype) -> None:
    """A product of matrices of small integers, tested with Freivalds' method: C v = A (B v) in Python's integers.

    One wrong element is always found; of other errors one in 2**30 is missed.
    """
    values = range(-_LARGEST, _LARGEST + 1)
    left, right = ([source.choices(values, k=_EDGE) for _ in range(_EDGE)] for _ in range(2))
    found = torch.tensor(left, dtype=dtype, device=device) @ torch.tensor(right, dtype=dtype, device=device)
    rows: list[list[float]] = found.tolist()
    vector = [source.randint(1, 1 << 30) for _ in range(_EDGE)]
    wanted = _times(left, _times(right, vector))
    for number, (row, expected) in enumerate(zip(rows, wanted, strict=True)):
        for element in row:
            if not element.is_integer():
                raise HealthError(f"row {number} holds {element!r}, where every element should be a whole number")
        if _times([[int(element) for element in row]], vector) != [expected]:
            raise HealthError(f"row {number} of {len(rows)} is wrong")


def _times(matrix: Sequence[Sequence[int]], vector: Sequence[int]) -> list[int]:
    return [sum(map(operator.mul, row, vector)) for row in matrix]


def _ended(child: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait until the child has ended or the time is `deadline`. It is not reaped, so that its number stays its own."""
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE)
    return True


def _end(child: subprocess.Popen[bytes], ladder: Sequence[tuple[int, float]]) -> int | None:
    """End the child's group by the ladder, and what is left of it once the child has ended; its status, or None."""
    for number, grace in ladder:
        if _ended(child, time.monotonic()):
            break
        os.killpg(child.pid, number)
        _ended(child, time.monotonic() + grace)
    if not _ended(child, time.monotonic()):
        child.returncode = 0  # given up: subprocess would warn of a process that still runs
        return None
    os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _tail(file: IO[bytes], limit: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), limit, max(0, size - limit))


def _messages(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue  # a library prints as it likes, and a killed writer leaves half a line
        if isinstance(message, dict):
            yield message


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the first visible device, and print steps and answer. Returns 0 when it is healthy."""
    parser = argparse.ArgumentParser(prog="python -m harness.devices.health", description="Examine a device.")
    parser.add_argument("--kind", choices=tuple(BACKENDS), required=True, help="the first visible GPU, or the CPU")
    parser.add_argument("--seed", type=int, default=0, help="of the pattern and the numbers")
    parser.add_argument("--limit", type=float, help="seconds after which the process ends itself with SIGALRM")
    options = parser.parse_args(arguments)
    if options.limit is not None:
        signal.setitimer(signal.ITIMER_REAL, options.limit)

    def say(**message: object) -> None:
        print(json.dumps(message), flush=True)

    try:
        facts = examine(BACKENDS[options.kind], options.seed, tell=lambda step: say(step=step))
    except HealthError as error:
        say(healthy=False, text=str(error))
        return 1
    say(healthy=True, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())

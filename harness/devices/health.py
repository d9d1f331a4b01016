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
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.core.disposable import LADDER, DisposableRun, json_objects, run_disposable
from harness.core.text import format_exit_code, single_line
from harness.devices import known_answers
from harness.devices.device import Device
from harness.devices.known_answers import HealthError
from harness.devices.visibility import masks_for

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
        known_answers.same_bytes(pattern, known_answers.bytes_of(torch, there))
    with _step("copy on the device", tell):
        copied = torch.zeros_like(there)
        copied.copy_(there)
        known_answers.same_bytes(pattern, known_answers.bytes_of(torch, copied))
    unchecked: list[str] = []
    with _optional("integer arithmetic", tell, unchecked):
        known_answers.check_integers(torch, source, pattern, copied.view(torch.int64))
    with _optional("reductions", tell, unchecked):
        known_answers.check_reductions(torch, device, pattern, there)
    for dtype in (torch.float32, torch.float64):
        with _optional(f"matrix product in {str(dtype).removeprefix('torch.')}", tell, unchecked):
            known_answers.check_product(torch, source, device, dtype)
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

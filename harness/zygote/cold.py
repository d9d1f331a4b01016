"""Cold executors: fresh interpreters that collect the cases, for runs whose collecting process must not be forked.

Import-time effects of a test file (a thread pool, parallel work, an initialised device) then happen in each executor,
and end with it. The cost of each executor is an import of torch and a collection.

Command line: ``python -m harness.zygote.cold ORDER CONTROL OUT ERR STACKS FACTS PHASES``. All arguments are
descriptors. The first is a file with a `ZygoteSpec` and the supervisor's order as lines of JSON. The others are those
of `harness.executor.become.become_executor`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import pytest

from harness.backends import cuda
from harness.backends.table import BACKENDS
from harness.configuration.rootdir import RootError
from harness.devices import guard
from harness.executor.become import become_executor
from harness.executor.session import CollectedSession
from harness.protocol.wire import Message
from harness.zygote.collecting import collect_cases, freeze_baseline, import_preload
from harness.zygote.spec import COLLECTION_ENVIRONMENT, ZygoteSpec


def exec_cold_executor(spec: ZygoteSpec, order: Message, descriptors: Sequence[int]) -> NoReturn:
    """Make this process the cold executor that `order` describes. Raise OSError.

    It collects with all devices in sight, as every other process of the run does, unless `spec` is `masked`.
    """
    order_file = os.memfd_create("order")
    os.write(order_file, f"{spec.to_json()}\n{json.dumps(order)}\n".encode())
    os.lseek(order_file, 0, os.SEEK_SET)
    kept = (order_file, *descriptors)
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # otherwise imported code could read from the zygote's life line
    later = () if spec.masked else _masks_for_later(order)
    own = {name: value for name, value in order["env"].items() if name not in later}
    environment = {**os.environ, **own, "TMPDIR": order["temp"]}
    if later:
        environment |= COLLECTION_ENVIRONMENT
    os.execve(
        sys.executable,
        [sys.executable, "-m", "harness.zygote.cold", *map(str, kept)],
        {name: value for name, value in environment.items() if value is not None},
    )


def _masks_for_later(order: Message) -> tuple[str, ...]:
    """Return the variables that select devices and have an effect until a device is first used: those of CUDA."""
    mask = BACKENDS[order["kind"]].mask
    return (mask,) if mask == cuda.MASK else ()


def main() -> None:
    """Import, collect, serve as an executor."""
    order_file, *descriptors = (int(word) for word in sys.argv[1:])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    with os.fdopen(order_file, encoding="utf-8") as file:
        spec, order = ZygoteSpec.from_json(file.readline()), json.loads(file.readline())

    def serve(collected: CollectedSession) -> NoReturn:
        if not spec.masked and _masks_for_later(order) and guard.cuda_in_use():
            # The import of a test file has used devices that may not be those of the lease.
            exec_cold_executor(replace(spec, masked=True), order, descriptors)
        freeze_baseline(collected)
        become_executor(collected, order, descriptors, cold=True)

    try:
        sys.exit(collect_cases(spec, import_preload(spec), serve))
    except RootError:
        sys.exit(pytest.ExitCode.USAGE_ERROR)  # pytest has printed the error


if __name__ == "__main__":
    main()

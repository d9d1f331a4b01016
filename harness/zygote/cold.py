"""Cold executors: fresh interpreters that collect by themselves, where a process that has collected must not be forked.

What a test file does when it is imported (a pool of threads, parallel work, a device woken) is then done in each
executor, as in any process that runs the file, and lost with it. Costs as much as an import of torch and a collection.

Started as ``python -m harness.zygote.cold ORDER CONTROL OUT ERR STACKS FACTS``: descriptors, of which the first is
a file with a `ZygoteSpec` and the supervisor's order as lines of JSON, and the others are those of
`harness.executor.executor.become_executor`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import pytest

from harness.executor.become import become_executor
from harness.executor.session import CollectedSession
from harness.protocol.wire import Message
from harness.rootdir import RootError
from harness.zygote.collecting import collect, freeze_baseline, prepare
from harness.zygote.spec import ZygoteSpec


def execute(spec: ZygoteSpec, order: Message, descriptors: Sequence[int]) -> NoReturn:
    """Make this forked process the cold executor that `order` describes. Raises OSError."""
    told = os.memfd_create("order")
    os.write(told, f"{spec.to_json()}\n{json.dumps(order)}\n".encode())
    os.lseek(told, 0, os.SEEK_SET)
    kept = (told, *descriptors)
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # else what is imported could read from the zygote's life line
    environment = {**os.environ, **order["env"], "TMPDIR": order["temp"]}
    os.execve(
        sys.executable,
        [sys.executable, "-m", "harness.zygote.cold", *map(str, kept)],
        {name: value for name, value in environment.items() if value is not None},
    )


def main() -> None:
    """Import, collect, serve as an executor."""
    told, *descriptors = (int(word) for word in sys.argv[1:])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    with os.fdopen(told, encoding="utf-8") as file:
        spec, order = ZygoteSpec.from_json(file.readline()), json.loads(file.readline())

    def serve(collected: CollectedSession) -> NoReturn:
        freeze_baseline(collected)
        become_executor(collected, order, descriptors, cold=True)

    try:
        sys.exit(collect(spec, prepare(spec), serve))
    except RootError:
        sys.exit(pytest.ExitCode.USAGE_ERROR)  # pytest has said it


if __name__ == "__main__":
    main()

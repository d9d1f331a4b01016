"""Examines a device in an executor. The zygote has already imported torch, so no new interpreter is started."""

from __future__ import annotations

import json

from harness.core import clock
from harness.core.disposable import DisposableRun
from harness.devices import health
from harness.devices.health import DeviceHealth
from harness.protocol.exit_status import WATCHDOG_SIGNAL
from harness.supervisor.attempt import GRACE, leave
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage

#: The most seconds for an examination.
LIMIT = 60.0
_ERRORS_KEPT = 1 << 13


def examine(handle: ExecutorHandle, *, seed: int, limit: float) -> DeviceHealth:
    """Have a fresh executor examine its one device, then end the executor. Raises ZygoteError."""
    began = clock.monotonic()
    handle.send({"op": "examine", "seed": seed, "limit": limit})
    deadline = began + limit + GRACE
    answers: list[bytes] = []
    in_time = True
    while True:
        message = handle.receive(deadline)
        if not isinstance(message, dict):
            in_time = message is not NoMessage.DEADLINE
            break
        answers.append(json.dumps(message).encode())
        if "healthy" in message:
            in_time = leave(handle, limit, light=False)
            break
    if handle.exit_status is None:
        handle.kill()
    in_time = in_time and handle.exit_status != -WATCHDOG_SIGNAL
    errors = handle.outputs.err
    stderr = errors.read(max(0, errors.size() - _ERRORS_KEPT), errors.size(), _ERRORS_KEPT).encode()
    seconds = clock.monotonic() - began
    return health.judge_examination(DisposableRun(handle.exit_status, in_time, seconds, b"\n".join(answers), stderr))

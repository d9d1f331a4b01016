"""The passive part: reads GPUs and host in two disposable processes at once, and returns what they say.

No process of it imports torch or creates a CUDA context, so that it may run beside a job. `harness.ready.judge_node`
judges the result.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from harness.core.disposable import KILL, DisposableRun, json_objects, run_disposable
from harness.core.text import format_exit_code
from harness.devices.device import Device, Inventory
from harness.devices.kernel_log import KMSG
from harness.devices.nvml import QUERIES, QUERY_OF, Answer
from harness.ready.judge_gpu import GpuFacts
from harness.ready.reader import CALL_LIMIT, LIST_LIMIT

#: Seconds for all readings, if the caller states no budget: less than the 60 s after which Slurm kills a check.
MOST_SECONDS = 40.0
#: Seconds by which the program that reads ends before it is killed, so that it can say what it waits for.
_SPARE = 1.0
_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ReaderEnd:
    """How a program that reads has ended. `text`: why its output is incomplete; "" if it is complete.

    `killable`: False if it could not be killed. `seconds`: how long it ran.
    """

    text: str = ""
    killable: bool = True
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What was read on a node: plain values.

    `inventory`: None if NVML did not start, or did not list the devices. `nvml`: its error at the start, status and
    text. `hang`: the call that did not return before there was a list. `host`: see `harness.ready.reader`.
    """

    gpus: tuple[GpuFacts, ...] = ()
    inventory: Inventory | None = None
    nvml: tuple[int, str] | None = None
    hang: str = ""
    host: Mapping[str, Any] = field(default_factory=dict)
    gpus_end: ReaderEnd = ReaderEnd()
    host_end: ReaderEnd = ReaderEnd()


def read_node(
    *,
    environ: Mapping[str, str] | None = None,
    limit: float = MOST_SECONDS,
    log: Path = KMSG,
    folder: Path | None = None,
    devices: Inventory | None = None,
) -> NodeFacts:
    """Read the GPUs and the host, within `limit` seconds and the time to kill a process. Raise OSError.

    `environ` of the programs that read defaults to this process's. `folder`: whose disk is read. `devices`: the
    inventory to use instead of NVML's, for simulated GPUs.
    """
    own = max(limit - _SPARE, 0.1)
    limits = ["--call-limit", str(min(CALL_LIMIT, own)), "--list-limit", str(min(LIST_LIMIT, own))]
    where = ["--log", str(log), *(["--folder", str(folder)] if folder else [])]
    gpus = _Reader(["gpus", *limits], limit, environ)
    host = _Reader(["host", *where], limit, environ)
    return parse_node(*gpus.result(), *host.result(), devices)


class _Reader(threading.Thread):
    """Runs a program that reads. A daemon thread: an interrupted command ends at once, and the program with it."""

    def __init__(self, words: list[str], limit: float, environ: Mapping[str, str] | None) -> None:
        super().__init__(name=words[0], daemon=True)
        self._arguments = words, limit, environ
        self._answer: tuple[list[dict[str, Any]], ReaderEnd] | OSError = OSError("it did not run")
        self.start()

    def run(self) -> None:
        try:
            self._answer = _run(*self._arguments)
        except OSError as error:
            self._answer = error

    def result(self) -> tuple[list[dict[str, Any]], ReaderEnd]:
        """Wait for the program; return its messages and how it ended. Raise OSError if it does not start."""
        self.join()
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer


def _run(words: list[str], limit: float, environ: Mapping[str, str] | None) -> tuple[list[dict[str, Any]], ReaderEnd]:
    command = [sys.executable, "-m", "harness.ready.reader", *words, "--parent", str(os.getpid())]
    with tempfile.TemporaryFile() as file:
        end = run_disposable(command, limit, environ=environ or os.environ, ladder=KILL, both_into=file)
        lines = os.pread(file.fileno(), _MOST_BYTES, 0).splitlines()
    messages = list(json_objects(lines))
    last = next((line.decode(errors="replace") for line in reversed(lines) if not any(json_objects([line]))), "")
    return messages, ReaderEnd(_why(end, messages, last, limit), end.status is not None, end.seconds)


def _why(end: DisposableRun, messages: list[dict[str, Any]], last: str, limit: float) -> str:
    if messages and "done" in messages[-1]:
        return ""
    if end.status is None:
        return f"the program that reads did not end within {limit:g} s, and cannot be killed"
    if not end.in_time:
        return f"the program that reads did not end within {limit:g} s"
    return f"the program that reads ended with {format_exit_code(end.status)}{f': {last}' if last else ''}"


def parse_node(
    gpu_messages: Iterable[Mapping[str, Any]],
    gpus_end: ReaderEnd,
    host_messages: Iterable[Mapping[str, Any]],
    host_end: ReaderEnd,
    devices: Inventory | None = None,
) -> NodeFacts:
    """Return the facts in the messages of the two programs."""
    gpu_messages = list(gpu_messages)
    host: dict[str, Any] = {}
    for message in host_messages:
        host |= message.get("host", {})
    facts = NodeFacts(host=host, gpus_end=gpus_end, host_end=host_end)
    for message in gpu_messages:
        match message:
            case {"nvml": int(status), "text": str(text)}:
                facts = replace(facts, nvml=(status, text))
            case {"inventory": dict(listed)}:
                facts = replace(facts, inventory=devices or msgspec.convert(listed, Inventory))
            case {"hang": str(call)} if "gpu" not in message:
                facts = replace(facts, hang=call)
    if facts.inventory is None:
        return facts
    whole: dict[str, Device] = {}
    for device in facts.inventory.devices:
        if device.backend.nvml or device.backend.kind == "simcuda":
            uuid = device.mig_parent or device.uuid
            if uuid not in whole or device.fault is not None:
                whole[uuid] = device
    return replace(facts, gpus=tuple(_gpu(uuid, device, gpu_messages, facts) for uuid, device in whole.items()))


def _gpu(uuid: str, device: Device, messages: list[Mapping[str, Any]], facts: NodeFacts) -> GpuFacts:
    answers: dict[str, Answer] = {}
    errors: dict[str, tuple[str, str]] = {}
    names: dict[str, str] = {}
    hang = ""
    for message in messages:
        if message.get("gpu") != uuid:
            continue
        if "readings" in message:
            answers |= message["readings"]
            names |= message["names"]
        elif "error" in message:
            errors[message["query"]] = (message["error"], message["text"])
        elif "hang" in message:
            hang = f"{message['hang']} within {message['seconds']:g} s"
    if not hang and facts.gpus_end.text and len(answers) + len(errors) < len(QUERIES):
        # The program was killed, or crashed, before this GPU had answered everything.
        known = {QUERY_OF[name].label for name in (*answers, *errors) if name in QUERY_OF}
        hang = next((query.label for query in QUERIES if query.label not in known), "")
    host = {
        "uptime_minutes": int(facts.host.get("uptime", 0)) // 60,
        "all_processes": bool(facts.host.get("all_processes")),
    }
    return GpuFacts(uuid, {**answers, **host}, errors, device.fault or "", hang, names)

"""A producer of shared tensors in a child process, and its consumers.

A case runs a scene, a function of `scenes`, in a child, so that what a killed consumer leaves behind ends with the
child. The scene starts consumers, which keep, read, fill and drop tensors on request.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from suites import children
from suites.synchronizing import synchronize

#: Seconds to wait for an answer or for the end of a process.
PATIENCE = 60.0


def play(scene: Callable[[str], Any], device: torch.device, **environ: str) -> Any:
    """Run the scene in a child, and return its result, passed as JSON."""
    # One thread, because a fork would wait for OpenMP threads that it does not have.
    begin = f"import json, torch\nfrom {scene.__module__} import {scene.__name__} as scene\ntorch.set_num_threads(1)"
    begin += f"\nfrom {__name__} import remove_counters"
    # The child ends without Python's finalization, because a killed consumer leaves threads of queues.
    script = f"{begin}\nprint(json.dumps(scene(DEVICE)))\nremove_counters(){children.AT_ONCE}"
    with tempfile.TemporaryDirectory() as folder:  # for the sockets of the queues
        ended = children.fork(script, device, environ={"TMPDIR": folder, **environ})
    return json.loads(ended.lines()[-1])


#: The process ids of the consumers. They share tensors with this process.
_PIDS: list[int] = []


def remove_counters() -> None:
    """Remove the files in which torch counts the holders of shared tensors.

    Otherwise only finalization removes them.
    """
    for pid in (os.getpid(), *_PIDS):
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)


class Consumer:
    """A process that receives tensors: a fork if a fork can use the device, otherwise a new interpreter.

    A process that has used an accelerator cannot be forked, so scenes create their consumers first. With `interpreter`,
    the consumer of an accelerator's tensors is a new interpreter, as torch's documentation recommends.
    """

    def __init__(self, device: str, *, interpreter: bool = False) -> None:
        is_forked = device == "cpu" or (not interpreter and children.can_be_forked(torch.device(device)))
        context = multiprocessing.get_context("fork" if is_forked else "spawn")
        self._to, self._back = context.Queue(), context.Queue()
        self.process = context.Process(target=_serve, args=(self._to, self._back), daemon=True)
        self.process.start()
        _PIDS.append(self.process.pid or 0)

    def ask(self, verb: str, *given: Any) -> Any:
        """Send a request, and return its answer."""
        self.tell(verb, *given)
        return self.answer()

    def tell(self, verb: str, *given: Any) -> None:
        """Send a request whose answer is fetched later."""
        self._to.put((verb, given))

    def answer(self) -> Any:
        """Return the answer to the oldest unanswered request. An exception of the consumer is returned as text."""
        return self._back.get(timeout=PATIENCE)

    def end(self) -> int | None:
        """Ask the process to end, and return its exit status."""
        self._to.put(None)
        self.process.join(PATIENCE)
        return self.process.exitcode

    def kill(self) -> None:
        """Kill the process."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(PATIENCE)


def _serve(requests: Any, answers: Any) -> None:
    children.import_device_modules()
    kept: dict[str, Any] = {}
    while (request := requests.get()) is not None:
        verb, given = request
        try:
            answer = _VERBS[verb](kept, *given)
        except Exception as error:  # noqa: BLE001 - the producer judges it
            answer = f"{type(error).__name__}: {error}"
        del request, given
        answers.put(answer)


def _values(value: Any) -> Any:
    return [value.device.type, value.device.index, str(value.dtype), list(value.shape), value.float().tolist()]


def _fill(kept: dict[str, Any], name: str, value: float) -> str:
    kept[name].detach().fill_(value)
    synchronize(kept[name].device)
    return "filled"


def _again(kept: dict[str, Any], name: str) -> str:
    """Share a received tensor again."""
    multiprocessing.reductions.reduce_tensor(kept[name])
    return "shared again"


def _drop(kept: dict[str, Any], *names: str) -> int:
    for name in names or list(kept):
        del kept[name]
    return len(kept)


def _read_after(kept: dict[str, Any], name: str, event: Any) -> Any:
    """Read on a stream that waits for the event, if any, and for nothing else."""
    stream = torch.cuda.Stream(kept[name].device)
    if event is not None:
        stream.wait_event(event)
    with torch.cuda.stream(stream):
        found = kept[name].sum()
    stream.synchronize()
    return found.item()


_VERBS: dict[str, Callable[..., Any]] = {
    "take": lambda kept, tensors: [*map(_values, [kept.setdefault(name, each) for name, each in tensors.items()])],
    "hold": lambda kept, tensors: kept.update(tensors) or len(kept),
    "read": lambda kept, name: kept[name].float().tolist(),
    "fill": _fill,
    "drop": _drop,
    "kinds": lambda kept: [[type(each).__name__, each.requires_grad, each.is_leaf] for each in kept.values()],
    "storages": lambda kept: len({each.untyped_storage().data_ptr() for each in kept.values()}),
    "shared": lambda kept, name: kept[name].is_shared(),
    "read_after": _read_after,
    "again": _again,
}


def held(device: str) -> int:
    """Return the bytes in use of the device's allocator; on the CPU, the number of mappings of shared memory."""
    if device == "cpu":
        return sum("/torch_" in line for line in Path("/proc/self/maps").read_text().splitlines())
    torch.accelerator.synchronize(device)
    torch.cuda.ipc_collect()
    return torch.accelerator.memory_allocated(device)


def settles(device: str, wanted: int) -> bool:
    """Return whether at most `wanted` is held soon: memory that a consumer drops is returned a moment later."""
    gc.collect()
    deadline = time.monotonic() + PATIENCE / 3
    while held(device) > wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

"""A rank: one of the processes of a case that needs several.

This module has the argument of its body, and the code around the body.

Beside its output, the process writes two files into the ranks' common folder: its report, complete or absent, and its
stacks, on a crash or on request.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn

import pytest

from harness.core import clock, linux
from harness.core.plain_values import safe_repr, safe_str
from harness.core.text import truncate_middle
from harness.protocol.endings import WATCHDOG_SIGNAL

if TYPE_CHECKING:
    import torch

#: The signal that makes a rank write the stacks of all its threads and continue.
STACKS_SIGNAL = WATCHDOG_SIGNAL
#: The exit status of a rank whose report says that its body has raised.
EXIT_RAISED = 1
#: Characters kept of a traceback.
_TRACEBACK_LIMIT = 16 << 10


@dataclass(frozen=True, slots=True)
class Rank:
    """The first argument of the body of a rank.

    `number` is in [0, `world`). `device_name`: the rank's own device. `folder`: a folder that all ranks of this case
    share, and no other case. `seed`: the seed of each rank's generators.
    """

    number: int
    world: int
    device_name: str
    folder: Path
    seed: int

    @property
    def device(self) -> torch.device:
        """The device of this rank: ``cpu``, or the device with the number of the rank."""
        import torch

        return torch.device(self.device_name)

    def rendezvous(self, name: str = "rendezvous") -> str:
        """Return an ``init_method`` for `torch.distributed.init_process_group`: a file of the shared folder.

        Each process group needs its own file.
        """
        return f"file://{self.folder}/{name}"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank in the common folder."""

    folder: Path
    number: int

    @property
    def output(self) -> Path:
        """Standard output and standard error."""
        return self.folder / f"rank-{self.number}.out.txt"

    @property
    def stacks(self) -> Path:
        return self.folder / f"rank-{self.number}.stacks.txt"

    @property
    def report(self) -> Path:
        return self.folder / f"rank-{self.number}.report"

    @property
    def order(self) -> Path:
        """The order for a rank that is a fresh interpreter."""
        return self.folder / f"rank-{self.number}.order"


@dataclass(frozen=True, slots=True)
class RankReport:
    """The end of the body of a rank, written by the rank. `at` is on the machine's monotonic clock.

    `value`: the body's return value. `error`: an exception in one line, or the reason of a skip.
    """

    how: Literal["returned", "raised", "skipped"]
    at: float
    value: Any = None
    error: str = ""
    traceback: str = ""


def run_rank(rank: Rank, body: Callable[..., Any], arguments: bytes, parent: int) -> NoReturn:
    """Run the body in this process, which has no other use, and exit.

    `arguments`: the further arguments, pickled. `parent`: the kernel kills this process when that one ends. The exit
    skips the finalisation of the interpreter, in which torch may abort while threads of a process group still run.
    """
    files = RankFiles(rank.folder, rank.number)
    status = 70
    try:
        linux.die_with_parent(parent)
        stacks = _prepare(files)
        _introduce(rank)
        report = _outcome(rank, body, arguments)
        write_report(files.report, report)
        status = EXIT_RAISED if report.how == "raised" else 0
        _flush()
        stacks.flush()
    except BaseException:  # noqa: BLE001 - of this file's own code: the output of the rank has it
        traceback.print_exc()
        _flush()
    finally:
        os._exit(status)


def write_order(path: Path, rank: Rank, body: Callable[..., Any], arguments: bytes, loading: str) -> None:
    """Write the instructions for `execute_order`. `loading`: code that makes a third-party device usable."""
    order = {"rank": rank, "module": body.__module__, "name": body.__qualname__, "arguments": arguments}
    path.write_bytes(
        pickle.dumps({**order, "loading": loading, "parent": os.getpid(), "torch": "torch" in sys.modules})
    )


def execute_order(path: str) -> NoReturn:
    """Make this process, a fresh interpreter, a rank. A process that uses a device must not be forked."""
    order: Mapping[str, Any] = pickle.loads(Path(path).read_bytes())
    if order["torch"]:  # before the rank begins, because the rank seeds imported libraries
        importlib.import_module("torch")
    exec(order["loading"], {})
    body = getattr(importlib.import_module(order["module"]), order["name"])
    run_rank(order["rank"], body, order["arguments"], order["parent"])


def write_report(path: Path, report: RankReport) -> None:
    """Write a report so that it is complete or absent.

    A value that cannot be pickled turns the report into a failure.
    """
    try:
        data = pickle.dumps(report)
    except Exception as error:  # noqa: BLE001 - whatever the value's own code raises
        text = f"the body returned {type(report.value).__name__}, which cannot be sent: {safe_repr(error)}"
        data = pickle.dumps(RankReport("raised", report.at, error=text))
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.rename(path)


def read_report(path: Path) -> RankReport | None:
    """Return the report of a rank; None if it has written none."""
    try:
        report = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever the code of the value raises here
        return RankReport(
            "raised", clock.monotonic(), error=f"what the body returned cannot be read: {safe_repr(error)}"
        )
    assert isinstance(report, RankReport)
    return report


def _outcome(rank: Rank, body: Callable[..., Any], arguments: bytes) -> RankReport:
    try:
        value = body(rank, *pickle.loads(arguments))
    except BaseException as error:  # noqa: BLE001 - SystemExit and the exceptions of pytest are no Exceptions
        skipped = isinstance(error, pytest.skip.Exception)
        line = safe_str(error) if skipped else f"{type(error).__name__}: {safe_str(error)}".rstrip(": ")
        text = "" if skipped else _traceback(error)
        return RankReport("skipped" if skipped else "raised", clock.monotonic(), error=line, traceback=text)
    return RankReport("returned", clock.monotonic(), value)


def _traceback(error: BaseException) -> str:
    """Return the traceback without the frame of this file."""
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return truncate_middle("".join(traceback.format_exception(type(error), error, below)), _TRACEBACK_LIMIT)


def _prepare(files: RankFiles) -> IO[str]:
    """Give the process its own streams, stacks and signals, and disable core files. Return the file of stacks."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    output = os.open(files.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    linux.line_buffer_c_stdio()
    # The parent's streams may have buffered text, which the parent itself writes.
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), _writer(1), _writer(2)  # noqa: SIM115
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    stacks = open(files.stacks, "a")  # noqa: SIM115
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)
    return stacks


def _writer(descriptor: int) -> IO[str]:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _introduce(rank: Rank) -> None:
    """Set the inputs of libraries: torchrun's variables, the interface of gloo, the number of threads, the seeds."""
    for name, value in (("RANK", rank.number), ("LOCAL_RANK", rank.number), ("WORLD_SIZE", rank.world)):
        os.environ[name] = str(value)
    # Ranks of one host use the loopback interface, since the name of the host may have no address.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    random.seed(rank.seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(rank.seed & 0xFFFFFFFF)
    if torch := sys.modules.get("torch"):
        # As in a fork by torch's DataLoader, which loses the pool of GNU OpenMP: one thread needs no pool.
        torch.set_num_threads(1)
        torch.manual_seed(rank.seed)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 - a stream that the body has closed
            continue
    linux.flush_c_stdio()


def pickled(body: Callable[..., Any], arguments: Sequence[object]) -> bytes:
    """Return the arguments of a body, pickled.

    Raise ValueError if body or arguments cannot be sent to another process.
    """
    module, name = getattr(body, "__module__", ""), getattr(body, "__qualname__", "")
    if getattr(sys.modules.get(module), name, None) is not body:
        raise ValueError(f"the body of ranks is {safe_repr(body)}: expected a function of a module, not an inner one")
    try:
        return pickle.dumps(tuple(arguments))
    except Exception as error:
        raise ValueError(f"the arguments of {name} cannot be sent to ranks: {safe_repr(error)}") from error

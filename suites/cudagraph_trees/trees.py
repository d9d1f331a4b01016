"""Functions that `torch.compile` runs as CUDA graphs, compared with eager runs, with a count of each kind of call.

A call of a compiled graph is a *warm-up* (a plain run in the pool of the trees), a *recording* (captured, then replayed
once) or a *replay*. A call whose graph was *skipped* is none of these, and runs as if there were no CUDA graphs.
Without a GPU, all graphs are skipped.

Two compilers use trees: "cudagraphs" records torch's own operators and needs only the device; "inductor" is
`mode="reduce-overhead"`, which generates kernels first.
"""

from __future__ import annotations

import gc
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from suites._torch_private_compiled import compiler_warnings_ignored, reset_compiler

from . import _torch_private as private

CUDAGRAPHS, INDUCTOR = "cudagraphs", "inductor"

#: Compiling with inductor takes seconds, several times per case, and longer on a busy machine.
LIMIT = 600

on_cuda = pytest.mark.requires(device="cuda")
with_triton = pytest.mark.requires(device="cuda", triton=True)

#: Runs a case with both compilers; inductor's GPU kernels need Triton.
both_compilers = pytest.mark.parametrize("compiler", [CUDAGRAPHS, pytest.param(INDUCTOR, marks=with_triton)])


@dataclass(frozen=True)
class Counts:
    """The number of calls that were warm-ups, recordings and replays, and the number of skipped graphs."""

    warm_ups: int = 0
    recordings: int = 0
    replays: int = 0
    skips: int = 0


class Watch:
    """Counts calls by kind since its creation or the last query, in all threads, and collects the reasons of skips."""

    def __init__(self, messages: list[str]) -> None:
        self._messages = messages
        self._lock = threading.Lock()
        self._warm_ups = self._recordings = self._replays = 0
        self._skips = private.skips()

    def saw(self, kind: str) -> None:
        with self._lock:
            setattr(self, kind, getattr(self, kind) + 1)

    def counts(self) -> Counts:
        """Return the counts since the last call of this method."""
        skips = private.skips()
        found = Counts(self._warm_ups, self._recordings, self._replays, skips - self._skips)
        self._warm_ups = self._recordings = self._replays = 0
        self._skips = skips
        return found

    def reasons(self) -> list[str]:
        """Return the reasons of the graphs skipped so far."""
        return [message for message in self._messages if "cudagraph" in message.lower() and "due to" in message]

    def messages(self) -> list[str]:
        """Return all CUDA graph log messages so far."""
        return list(self._messages)


@contextmanager
def watched(*, debug: bool = False, **settings: Any) -> Iterator[Watch]:
    """Watch the compiled functions of the block; the compiler is reset before and after it.

    `settings` are inductor's, with `__` for the dot (`triton__cudagraph_trees=False`). With `debug`, the messages
    include torch's debug log.
    """
    reset_compiler()
    with ExitStack() as stack:
        stack.enter_context(private.generated_modules_stay())
        stack.enter_context(compiler_warnings_ignored())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        stack.enter_context(private.config({name.replace("__", "."): value for name, value in settings.items()}))
        messages = stack.enter_context(private.messages(logging.DEBUG if debug else logging.WARNING))
        watch = Watch(messages)
        stack.enter_context(_counted(watch))
        stack.callback(reset_compiler)
        yield watch


@contextmanager
def _counted(watch: Watch) -> Iterator[None]:
    """Make the manager's methods report their calls to the watch in the block."""
    manager = private.manager_class()
    kinds = {"run_eager": "_warm_ups", "record_function": "_recordings", "execute_node": "_replays"}

    def telling(method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def reported(*arguments: Any, **keywords: Any) -> Any:
            watch.saw(kind)
            return method(*arguments, **keywords)

        return reported

    with pytest.MonkeyPatch.context() as patch:
        for name, kind in kinds.items():
            patch.setattr(manager, name, telling(getattr(manager, name), kind))
        yield


def compiled(work: Any, compiler: str, **options: Any) -> Any:
    """Return the function or module compiled by `torch.compile`."""
    if compiler == CUDAGRAPHS:
        return torch.compile(work, backend="cudagraphs", **options)
    return torch.compile(work, mode="reduce-overhead", **options)


def values(found: object) -> list[object]:
    """Return the tensors and plain values of a function's result, flattened, with tensors copied."""
    if isinstance(found, torch.Tensor):
        return [found.detach().clone()]
    if isinstance(found, list | tuple):
        return [value for one in found for value in values(one)]
    return [found]


def assert_same(found: Sequence[object], wanted: Sequence[object], where: str, *, within: float = 0) -> None:
    """Check that two lists of `values` are equal; tensors by value (to `within`), dtype, shape and device."""
    assert len(found) == len(wanted), f"{where}: {len(found)} values, not {len(wanted)}"
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(other, torch.Tensor):
            assert isinstance(one, torch.Tensor), f"{where}: value {index} is {one!r}, not a tensor"
            torch.testing.assert_close(
                one,
                other,
                rtol=0,
                atol=within,
                equal_nan=True,
                msg=lambda message, index=index: f"{where}: value {index}: {message}",  # type: ignore[misc]
            )
        else:
            assert one == other, f"{where}: value {index} is {one!r}, not {other!r}"


def compare(
    work: Callable[..., object],
    calls: Sequence[Sequence[object]],
    compiler: str,
    watch: Watch,
    *,
    eager: Callable[..., object] | None = None,
    within: float = 0,
    **options: Any,
) -> Counts:
    """Call `work` compiled with each of the argument lists, in order, and compare with `eager` (or itself).

    The outputs of a call are dropped before the next one, as in a typical program. Tensor arguments are copied for each
    run, so that either run may mutate them, and must be equal afterwards. Return the counts.
    """
    fast = compiled(work, compiler, **options)
    watch.counts()
    for number, arguments in enumerate(calls):
        theirs, ours = copied(arguments), copied(arguments)
        wanted = values((eager or work)(*theirs))
        found = values(fast(*ours))
        assert_same(found, wanted, f"call {number}", within=within)
        assert_same(values(ours), values(theirs), f"arguments of call {number}")
    return watch.counts()


def copied(arguments: Sequence[object]) -> list[object]:
    """Return the same arguments, with tensors cloned."""
    return [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in arguments]


def whole_numbers(*shape: int, device: torch.device, start: int = 0) -> torch.Tensor:
    """Return float32 tensors of small whole numbers, for which sums and products are exact in any order."""
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count, dtype=torch.float32) + start) % 17 - 8).reshape(shape).to(device)


def repeated(make: Callable[[int], Sequence[object]], times: int) -> list[Sequence[object]]:
    """Return one argument list per call number, so that a stale input or output is visible."""
    return [make(number) for number in range(times)]


def assert_nothing_left() -> None:
    """Check that no graph pool holds memory after the compilers are reset and tensors are freed.

    Without a GPU in use, there is nothing to check.
    """
    if not torch.cuda.is_initialized():
        return
    reset_compiler()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert private.live_bytes_of_graphs() == 0, "memory of graphs' pools is still held"
    assert not private.graph_segments(), "graphs' pools still have segments"

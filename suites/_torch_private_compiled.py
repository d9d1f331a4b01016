"""The names of torch, undocumented, that cases about compiled backward passes depend on. Nothing else reaches for one.

Compiled autograd's documented switch is `torch._dynamo.config.compiled_autograd`, which acts through `torch.compile`
alone. To capture one backward pass and look at what was captured, a context manager is needed that has been renamed
once; how often it captured is told by a counter only. A release that lacks a name makes the case *skipped*, with the
name in the reason.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
import torch._dynamo

from suites.reaching import reach

#: What runs a captured backward pass, and what makes it of the graph.
Compiled: TypeAlias = Callable[..., Any]
Compiler: TypeAlias = Callable[[torch.fx.GraphModule], Compiled]

_OF_THE_COMPILER: tuple[tuple[str, type[Warning]], ...] = (
    (r"The \.grad attribute of a Tensor that is not a leaf", UserWarning),
    (r"`torch\.jit\.", Warning),
    (r"The CUDA Graph is empty", UserWarning),
    (r"TensorFloat32 tensor cores", UserWarning),  # inductor's advice on every GPU that has them
    (r"<class 'torch\.autograd\.function\.Function'> should not", DeprecationWarning),
)


@contextmanager
def compiler_unheard() -> Iterator[None]:
    """A block without warnings that torch gives only itself.

    Of gradients that it reads while it traces, which it only hides from being shown; of old functions in modules that
    inductor imports when it first compiles; of a function that it instantiates to stand for one that breaks the graph;
    of the graph without nodes by which the trees of CUDA graphs keep their pool, which it only hides as well. A filter
    that makes errors of warnings, as that of this project does, would make them failures of the compiler.
    """
    with warnings.catch_warnings():
        for message, category in _OF_THE_COMPILER:
            warnings.filterwarnings("ignore", message, category)
        yield


def reset_compiler() -> None:
    """Make the compiler forget all that it has seen.

    Where there is CUDA, this imports inductor (for the trees of CUDA graphs, which it resets too), and with it the
    modules whose warnings `compiler_unheard` leaves out.
    """
    with compiler_unheard():
        torch.compiler.reset()


@contextmanager
def enable(compile_graph: Compiler, *, any_size: bool = True) -> Iterator[None]:
    """A context in which each new backward pass is captured as a graph, and run as what `compile_graph` makes of it.

    It is captured for any size; without `any_size` for its own, and for any when another size has come.
    """
    with compiler_unheard(), reach("torch._dynamo.compiled_autograd._enable")(compile_graph, dynamic=any_size):
        yield


def disable() -> AbstractContextManager[None]:
    """A context in which backward passes are not captured, whatever is around it."""
    context: AbstractContextManager[None] = reach("torch._dynamo.compiled_autograd._disable")()
    return context


def enabled() -> bool:
    """Whether backward passes are captured now."""
    found: bool = reach("torch._dynamo.compiled_autograd.compiled_autograd_enabled")
    return found


def config(**settings: Any) -> AbstractContextManager[None]:
    """A context in which `torch._dynamo.config` has these settings."""
    context: AbstractContextManager[None] = reach("torch._dynamo.config.patch")(**settings)
    return context


def inductor_config(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """A context in which `torch._inductor.config` has these settings."""
    import torch._inductor.config as inductor  # a second, which most cases do without

    context: AbstractContextManager[None] = inductor.patch(settings)
    return context


def counter(group: str, name: str) -> int:
    """What one of the compiler's counters stands at: passes captured, graphs that CUDA graphs skipped, …"""
    found: int = reach("torch._dynamo.utils.counters")[group][name]
    return found


def back_end(name: str) -> Callable[..., Any]:
    """The function that stands behind a back end of `torch.compile`: graph and examples in, something to call out."""
    found: Callable[..., Any] = reach("torch._dynamo.lookup_backend")(name)
    return found


def steal(graph: torch.fx.GraphModule, names: list[str]) -> None:
    """Tell the compiler that the graph may empty these of its arguments, lists, so that what they hold can go early."""
    reach("torch._dynamo.utils.set_locals_to_steal")(graph, names)


def is_accumulation(node: torch.fx.Node) -> bool:
    """Whether this node of a captured pass accumulates into a leaf's gradient."""
    return node.op == "call_function" and node.target is reach("torch._dynamo.external_utils.call_accumulate_grad")


def queue_callback(callback: Callable[[], None]) -> None:
    """Have the engine call this when the backward pass that runs now has ended."""
    reach("torch.autograd.Variable._execution_engine.queue_callback")(callback)


class Watch:
    """Whether the memory of a tensor is still there; holds neither the tensor nor its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        import torch.multiprocessing.reductions as reductions

        self._reference = reductions.StorageWeakRef(tensor.untyped_storage())

    def gone(self) -> bool:
        expired: bool = self._reference.expired()
        return expired


def higher_order(name: str) -> Callable[..., Any]:
    """An operator that takes functions, and that torch has no public name for."""
    importlib.import_module("torch._higher_order_ops")
    found: Callable[..., Any] = reach(f"torch._higher_order_ops.{name}")
    return found


@contextmanager
def log_switched_on(artifact: str) -> Iterator[logging.Logger]:
    """A block in which an artifact of compiled autograd is logged; gives its logger.

    torch changes levels, handlers and propagation of many loggers when a log is switched on, and again when it is
    switched off, which leaves them otherwise than they were: so they are put back here.
    """
    switch = reach("torch._logging.set_logs")
    state = reach("torch._logging._internal.log_state")
    loggers = [logging.getLogger(name) for name in (None, "torch", *logging.Logger.manager.loggerDict)]
    before = [(logger, logger.level, logger.handlers[:], logger.propagate, logger.filters[:]) for logger in loggers]
    qualified, artifacts = dict(state.log_qname_to_level), set(state.artifact_names)
    switch(**{artifact: True})
    try:
        yield reach("torch._logging.getArtifactLogger")("torch._dynamo.compiled_autograd", artifact)
    finally:
        switch(**{artifact: False})
        state.log_qname_to_level, state.artifact_names = qualified, artifacts
        for logger, level, handlers, propagate, filters in before:
            logger.setLevel(level)
            logger.handlers[:], logger.propagate, logger.filters[:] = handlers, propagate, filters

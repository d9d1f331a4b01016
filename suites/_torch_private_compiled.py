"""The undocumented torch names used for compiled backward passes. No other module looks one up.

The documented switch of compiled autograd, `torch._dynamo.config.compiled_autograd`, only acts through `torch.compile`.
Capturing a single backward pass for inspection needs a context manager that has been renamed once; the number of
captures is only available from a counter. A case that needs a name that the torch release lacks is skipped, with the
name in the reason.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
import torch._dynamo

from suites.reaching import reach

#: A function that runs a captured backward pass, and the function that creates it from the graph.
Compiled: TypeAlias = Callable[..., Any]
Compiler: TypeAlias = Callable[[torch.fx.GraphModule], Compiled]

_OF_THE_COMPILER: tuple[tuple[str, type[Warning]], ...] = (
    (r"The \.grad attribute of a Tensor that is not a leaf", UserWarning),
    (r"`torch\.jit\.", Warning),
    (r"The CUDA Graph is empty", UserWarning),
    (r"TensorFloat32 tensor cores", UserWarning),  # inductor's advice on every GPU that supports it
    (r"<class 'torch\.autograd\.function\.Function'> should not", DeprecationWarning),
)


@contextmanager
def compiler_warnings_ignored() -> Iterator[None]:
    """Ignore the warnings that torch's compiler causes itself.

    These warnings concern gradients that it reads while tracing, old functions in modules that inductor imports, a
    function that it instantiates in place of one that breaks the graph, and the empty graph with which CUDA graph trees
    keep their pool. A filter that turns warnings into errors, such as this project's, would make them compiler
    failures.
    """
    with warnings.catch_warnings():
        for message, category in _OF_THE_COMPILER:
            warnings.filterwarnings("ignore", message, category)
        yield


def reset_compiler() -> None:
    """Reset the compiler's state.

    With CUDA, this imports inductor (for the CUDA graph trees, which it resets too), and the modules whose warnings
    `compiler_warnings_ignored` ignores.
    """
    with compiler_warnings_ignored():
        torch.compiler.reset()


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler before and after the block, and ignore its warnings within."""
    reset_compiler()
    try:
        with compiler_warnings_ignored():
            yield
    finally:
        reset_compiler()


@contextmanager
def enable(compile_graph: Compiler, *, any_size: bool = True) -> Iterator[None]:
    """Capture each new backward pass in the block as a graph, and run it as compiled by `compile_graph`.

    A capture is valid for any size. Without `any_size`, it is first valid for its own size, and becomes dynamic once
    another size occurs.
    """
    with compiler_warnings_ignored(), reach("torch._dynamo.compiled_autograd._enable")(compile_graph, dynamic=any_size):
        yield


def disable() -> AbstractContextManager[None]:
    """Return a context in which backward passes are not captured, even within `enable`."""
    context: AbstractContextManager[None] = reach("torch._dynamo.compiled_autograd._disable")()
    return context


def enabled() -> bool:
    """Return whether backward passes are currently captured."""
    found: bool = reach("torch._dynamo.compiled_autograd.compiled_autograd_enabled")
    return found


def config(**settings: Any) -> AbstractContextManager[None]:
    """Return a context in which `torch._dynamo.config` has these settings."""
    context: AbstractContextManager[None] = reach("torch._dynamo.config.patch")(**settings)
    return context


def inductor_config(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context in which `torch._inductor.config` has these settings."""
    import torch._inductor.config as inductor  # takes a second, and most cases do not need it

    context: AbstractContextManager[None] = inductor.patch(settings)
    return context


def memory_budget(share: float) -> AbstractContextManager[None]:
    """Return a context in which compiled functions save this share of their tensors, and compute the rest anew."""
    context: AbstractContextManager[None] = reach("torch._functorch.config.patch")(activation_memory_budget=share)
    return context


def counter(group: str, name: str) -> int:
    """Return one of the compiler's counters, such as captured passes or graphs skipped by CUDA graphs."""
    found: int = reach("torch._dynamo.utils.counters")[group][name]
    return found


def back_end(name: str) -> Callable[..., Any]:
    """Return the function of a `torch.compile` backend, from graph and example inputs to a callable."""
    found: Callable[..., Any] = reach("torch._dynamo.lookup_backend")(name)
    return found


def steal(graph: torch.fx.GraphModule, names: list[str]) -> None:
    """Declare that the graph may empty these list arguments, so that their contents can be freed early."""
    reach("torch._dynamo.utils.set_locals_to_steal")(graph, names)


def is_accumulation(node: torch.fx.Node) -> bool:
    """Return whether this node of a captured pass accumulates into a leaf's gradient."""
    return node.op == "call_function" and node.target is reach("torch._dynamo.external_utils.call_accumulate_grad")


def is_hook(node: torch.fx.Node) -> bool:
    """Return whether this node of a captured pass calls a hook."""
    return node.op == "call_function" and node.target is reach("torch._dynamo.external_utils.call_hook")


class Watch:
    """Tells whether a tensor's memory still exists, and keeps neither the tensor nor its memory alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        import torch.multiprocessing.reductions as reductions

        self._reference = reductions.StorageWeakRef(tensor.untyped_storage())

    def gone(self) -> bool:
        expired: bool = self._reference.expired()
        return expired


def higher_order(name: str) -> Callable[..., Any]:
    """Return a higher-order operator that has no public name in torch."""
    importlib.import_module("torch._higher_order_ops")
    found: Callable[..., Any] = reach(f"torch._higher_order_ops.{name}")
    return found


@contextmanager
def log_switched_on(artifact: str) -> Iterator[logging.Logger]:
    """Log an artifact of compiled autograd within the block; yield its logger.

    When torch switches a log on and off, it changes levels, handlers and propagation of many loggers and does not
    restore them, so they are restored here. With its variable in the environment, it would not switch any.
    """
    switch = reach("torch._logging.set_logs")
    state = reach("torch._logging._internal.log_state")
    loggers = [logging.getLogger(name) for name in (None, "torch", *logging.Logger.manager.loggerDict)]
    before = [(logger, logger.level, logger.handlers[:], logger.propagate, logger.filters[:]) for logger in loggers]
    qualified, artifacts = dict(state.log_qname_to_level), set(state.artifact_names)
    variable = os.environ.pop("TORCH_LOGS", None)
    try:
        switch(**{artifact: True})
        yield reach("torch._logging.getArtifactLogger")("torch._dynamo.compiled_autograd", artifact)
    finally:
        switch(**{artifact: False})
        if variable is not None:
            os.environ["TORCH_LOGS"] = variable
        state.log_qname_to_level, state.artifact_names = qualified, artifacts
        for logger, level, handlers, propagate, filters in before:
            logger.setLevel(level)
            logger.handlers[:], logger.propagate, logger.filters[:] = handlers, propagate, filters

"""Private names of pytest, CPython and torch without a public equivalent. For each, a test fails if it changes."""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import weakref
from _signal import getsignal, pthread_sigmask  # type: ignore[import-not-found]
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from _pytest.config.findpaths import determine_setup

#: `signal.getsignal` without the conversion to an enum, which takes ten times as long.
bare_signal_handler: Callable[[int], object] = getsignal
#: `signal.pthread_sigmask` without that conversion.
bare_signal_mask: Callable[[int, tuple[int, ...]], set[int]] = pthread_sigmask


# Bound here, because a case may have replaced these functions when its process ends.
_Finalize: Any = weakref.finalize
_run_exit_functions: Callable[[], None] = atexit._run_exitfuncs
_join_threads: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]

#: The offset of a dictionary's version in CPython up to 3.13: after the object's header and the number of entries.
_VERSION_OFFSET = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)


def dict_version(mapping: dict[Any, Any]) -> ctypes.c_uint64 | None:
    """Return the version of a dictionary. Its `value` differs after each change. None if this Python has no versions.

    The result must not be used after the dictionary has been freed.
    """
    return ctypes.c_uint64.from_address(id(mapping) + _VERSION_OFFSET) if _HAS_VERSIONS else None


def _has_versions() -> bool:
    """Return whether dictionaries have versions, by an experiment.

    A value that changes with the number of entries only, or at each reading, is no version.
    """
    tried: dict[str, object] = {"key": object()}
    version = ctypes.c_uint64.from_address(id(tried) + _VERSION_OFFSET)
    seen = [version.value, version.value]
    tried["key"] = object()  # the number of entries stays the same
    seen += [version.value, version.value]
    tried["other"] = None
    seen.append(version.value)
    return seen[0] == seen[1] != seen[2] == seen[3] != seen[4] != seen[0]


_HAS_VERSIONS = _has_versions()


def root_of(options: Any, arguments: Sequence[str], folder: Path) -> tuple[Path, Path | None]:
    """Return the root folder and the ini file that pytest finds with these `arguments` if it is started in `folder`.

    `options`: the values of pytest's own options. Raises pytest.UsageError.
    """
    setup = determine_setup(
        inifile=options.inifilename,
        override_ini=None,
        args=arguments,
        rootdir_cmd_arg=options.rootdir or None,
        invocation_dir=folder,
    )
    return setup[0], setup[1]


def is_set_up(session: pytest.Session) -> bool:
    """Return whether fixtures or collectors of `session` are set up."""
    return bool(session._setupstate.stack)


def tear_down_all(session: pytest.Session) -> None:
    """Tear down every fixture and collector that is still set up in `session`.

    pytest does this in its ``pytest_sessionfinish``, which also writes caches and reports. A process that ran only a
    part of a session must not write these.
    """
    session._setupstate.teardown_exact(None)


def use_basetemp(config: pytest.Config, folder: Path) -> None:
    """Have ``tmp_path_factory`` and ``tmpdir_factory`` make their folders in `folder`, unless they have made one.

    ``--basetemp`` does the same before pytest is configured, which is too early for a process that is forked later.
    """
    factory: Any = getattr(config, "_tmp_path_factory", None)  # None with `-p no:tmpdir`
    if factory is not None:
        factory._given_basetemp = folder


def import_without_rewriting(manager: pytest.PytestPluginManager, package: str) -> None:
    """Have Python import the modules of `package`, although a plugin of pytest belongs to it.

    pytest rewrites the assert statements of all modules of a plugin's distribution. Where it cannot keep the result
    (PYTHONDONTWRITEBYTECODE, a folder without write permission), each process compiles all of them again.
    """
    hook = manager.rewrite_hook
    if isinstance(hook, AssertionRewritingHook):  # it is not with `--assert=plain`
        hook._must_rewrite.discard(package)
        hook._marked_for_rewrite_cache.clear()


def add_to_last_line(reporter: pytest.TerminalReporter, word: str, things: Sequence[object]) -> None:
    """Make pytest's last line count these things under this word. The line is then red.

    `stats` is public, but the words of the line are chosen when a test is reported.
    """
    reporter._add_stats("error", ())  # the line is red if there is such a list, even an empty one
    reporter._add_stats(word, things)


def leave_out_of_short_summary(reporter: pytest.TerminalReporter, letters: str) -> None:
    """Leave out these kinds of results (the letters of ``-r``) of pytest's short summary, which is not printed yet."""
    reporter.reportchars = "".join(letter for letter in reporter.reportchars if letter not in letters)


def xdist_sender(config: pytest.Config) -> object | None:
    """Return the plugin of an xdist worker that sends pytest's reports to the controller. None if there is none."""
    # Look through all plugins: execnet sends and runs the module's source, so the module has no name to look up.
    plugins = config.pluginmanager.get_plugins()
    return next((plugin for plugin in plugins if type(plugin).__name__ == "WorkerInteractor"), None)


def run_exit_callbacks(after: weakref.finalize[..., Any] | None) -> None:
    """Run the `atexit` callbacks, last registered first, as the interpreter does at its end.

    Of the `weakref.finalize` objects, only those made after the object `after` are run; all of them if it is None or no
    longer alive. Earlier ones are not even read, since that would copy the memory page of each in a forked process.
    """
    made = list(takewhile(lambda finalizer: finalizer is not after, reversed(_Finalize._registry)))
    _Finalize._registry = {finalizer: _Finalize._registry[finalizer] for finalizer in reversed(made)}
    _run_exit_functions()


def join_threads() -> None:
    """Make thread pools end, and wait for the threads that the interpreter waits for at its end."""
    _join_threads()


def finalizers() -> list[weakref.finalize[..., Any]]:
    """Return the live `weakref.finalize` objects, oldest first. Each of them may run at the end of the interpreter."""
    return list(_Finalize._registry)


def compiled_autograd(compiler: Callable[..., Any]) -> AbstractContextManager[None]:
    """Return a context in which torch captures each backward pass of this thread and passes it to `compiler`.

    The public setting, ``torch._dynamo.config.compiled_autograd``, only affects code that ``torch.compile`` compiled.
    """
    from torch._dynamo import compiled_autograd

    context: AbstractContextManager[None] = compiled_autograd._enable(compiler)
    return context


def set_node_id(node: pytest.Collector, nodeid: str) -> None:
    """Give a collector, of which nothing has been collected, another id. Those of its items begin with it."""
    changed: Any = node
    try:
        from _pytest.nodeid import coerce_node_id
    except ImportError:  # pytest before 9.2
        changed._nodeid = nodeid
    else:
        changed._id = coerce_node_id(nodeid)


def has_inductor(device_type: str) -> bool:
    """Return whether inductor, the compiler of ``torch.compile``, generates code for devices of this type."""
    from torch._inductor.codegen import common

    common.init_backend_registration()
    return common.get_scheduling_for_device(device_type) is not None


def release_cuda_caches(torch: ModuleType) -> None:
    """Free memory that torch caches with CUDA and releases only on request.

    Not every release has a public function for this.

    This is the workspace of cuBLAS for each handle and stream (33 MiB on an H100), and, for each freed graph, a pool in
    the allocator of pinned memory (48 KiB of the heap). A graph refers to the workspaces that its matrix products were
    captured with (https://github.com/pytorch/pytorch/issues/193402), so call this only if no graph is alive.
    """
    for name in ("_cuda_clearCublasWorkspaces", "_host_emptyCache"):
        release = getattr(torch._C, name, None)  # builds without CUDA have none of these
        if release is not None:
            release()


def has_cuda_context(torch: ModuleType, index: int) -> bool:
    """Return whether this process has a context on a CUDA device; True if this torch does not tell."""
    ask = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return ask is None or bool(ask(index))


def kept_by_dynamo() -> Sequence[object]:
    """Return the objects that TorchDynamo keeps of its last compiled graph: streams and events.

    It keeps them until it compiles another graph.
    """
    inputs = sys.modules.get("torch._dynamo.graph_bytecode_inputs")
    kept = getattr(inputs, "keep_alive", None)
    return kept if type(kept) is list else ()

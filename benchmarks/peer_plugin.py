"""A pytest plugin that counts what TorchCTS and `suites/operators` check, and breaks torch for both.

`peer_operators.py` loads it in more runs, which are not timed. Each event is a line in the file that `COUNTS` names:

- ``sample``: an operator has run on a sample, forward or with its gradients, without an error.
  In `suites/operators`: a call of `oracles.verify`, or of `gradients.compare` that found a derivative.
  In TorchCTS: a forward case synchronizes the device once per sample, a backward case twice.
- ``compared``: the values of one tensor were compared with expected ones.
  In `suites/operators`: a call of `comparison.check_tensor`, or a sample whose result is checked by an identity, or as
  indices that point to values. In TorchCTS: a call of its `compare_tensors`.
- ``red NAME``: a test failed, in a process that reports it.

`BREAK` names breaks of the catalogue (`python -m tests.breaks list`). With `THREADS` they apply only in threads other
than the main one: these are the threads of the software device and of its gradients, and the CPU stays intact. TorchCTS
compares a device with the CPU, so it can detect only such breaks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.breaks import breaks

COUNTS, BREAK, THREADS = "PEERS_COUNTS", "PEERS_BREAK", "PEERS_THREADS"


def _note(text: str) -> None:
    """Append a line; processes that are forked or started later append to the same file."""
    place = os.environ.get(COUNTS)
    if place:
        file = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{text}\n".encode())
        os.close(file)


def _wrap(owner: Any, name: str, text: str, *, counts: Callable[[Any], bool] = lambda _: True) -> None:
    """Note `text` after each call of a function that returns without an error, if `counts` accepts its result."""
    function = getattr(owner, name)
    if getattr(function, "peers_counts", False):
        return

    def counted(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if counts(result):
            _note(text)
        return result

    counted.peers_counts = True  # type: ignore[attr-defined]
    setattr(owner, name, counted)


def _runs_cases(session: pytest.Session) -> bool:
    """Return whether this process imports test files: supervisors of the harness do not."""
    plugins = session.config.pluginmanager.get_plugins()
    return "PEERS_PEER" in os.environ or any(getattr(plugin, "is_harness_zygote", False) for plugin in plugins)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Break torch, and wrap the counted functions of `suites/operators`, before the first test file is imported."""
    if not _runs_cases(session):
        return
    for name in filter(None, os.environ.get(BREAK, "").split(",")):
        _break(name)
    if "PEERS_PEER" in os.environ:
        from torchcts.core import comparer

        _wrap(comparer, "compare_tensors", "compared")
        return
    from suites.operators import comparison, gradients, identities, oracles

    _wrap(oracles, "verify", "sample")
    _wrap(gradients, "compare", "sample", counts=bool)
    _wrap(comparison, "check_tensor", "compared")
    _wrap(identities, "picks", "compared")
    for name in list(oracles.IDENTITIES):
        check = oracles.IDENTITIES[name]
        oracles.IDENTITIES[name] = lambda *given, check=check: (check(*given), _note("compared"))[0]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Wrap the functions that TorchCTS calls once or twice per sample."""
    if "PEERS_PEER" not in os.environ:
        return
    for module in {getattr(item, "module", None) for item in session.items} - {None}:
        if hasattr(module, "synchronize"):
            _wrap(module, "synchronize", "half" if "backward" in module.__name__ else "sample")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note each failed test, unless the cause is an exception of the break itself."""
    if report.failed and not breaks.is_mistake(_message(report)):
        _note(f"red {report.nodeid}")


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else str(report.longrepr)


def _break(name: str) -> None:
    from tests.breaks.catalogue import operators
    from tests.breaks.source import chosen

    if THREADS in os.environ:
        main, plain = threading.get_ident(), breaks.replace_kernel

        def replace(operator: str, around: Callable[..., Any], keys: Any = ("CPU",)) -> None:
            def elsewhere(kernel: Any, *arguments: Any, **named: Any) -> Any:
                if threading.get_ident() == main:
                    return kernel(*arguments, **named)
                return around(kernel, *arguments, **named)

            plain(operator, elsewhere, keys)

        operators.replace_kernel = replace
    apply = chosen(name).apply
    assert apply is not None
    apply()

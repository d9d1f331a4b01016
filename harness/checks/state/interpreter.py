"""State of the interpreter and the process: settings, environment, signal handlers, log handlers, warnings filters.

Left out on purpose: random number generators, which are seeded for every case; the working folder, limits and
descriptors, which `harness.checks.process` checks; state that only C code can see (signal handlers not set through
`signal`, variables set with ``setenv`` of C).
"""

from __future__ import annotations

import functools
import gc
import locale
import logging
import multiprocessing
import operator
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import _compat
from harness.checks.state.section import (
    ABSENT,
    SectionValues,
    StateChange,
    StateRow,
    StateSection,
)
from harness.core.text import signal_name


def process_settings() -> Sequence[StateRow]:
    """Return the settings of the interpreter and the process that are read one by one."""
    rows = [
        StateRow("the umask", _umask, lambda old: os.umask(int(old, 8))),
        StateRow(
            "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda old: locale.setlocale(locale.LC_ALL, old)
        ),
        StateRow("the time zone", lambda: [time.tzname, time.timezone]),
        StateRow("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, ignore=_raised_by_compiler),
        StateRow("the thread switch interval", sys.getswitchinterval, sys.setswitchinterval),
        StateRow("sys.get_int_max_str_digits()", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        StateRow("the dlopen flags", sys.getdlopenflags, sys.setdlopenflags),
        StateRow("gc.isenabled()", gc.isenabled, lambda old: gc.enable() if old else gc.disable()),
        StateRow("the garbage collector's thresholds", lambda: list(gc.get_threshold()), _set_thresholds),
        StateRow("the garbage collector's debug flags", gc.get_debug, gc.set_debug),
        StateRow(
            "the garbage collector's callbacks",
            lambda: tuple(gc.callbacks),
            _list_setter(lambda: gc.callbacks),
            ignore=_callback_of_hypothesis,
        ),
        StateRow("the trace function", sys.gettrace, sys.settrace),
        StateRow("the profile function", sys.getprofile, sys.setprofile),
        StateRow("the trace function of new threads", threading.gettrace, threading.settrace),
        StateRow("the profile function of new threads", threading.getprofile, threading.setprofile),
        StateRow("sys.path", lambda: tuple(sys.path), _list_setter(lambda: sys.path), ignore=_added_by_imports),
        StateRow(
            "sys.meta_path", lambda: tuple(sys.meta_path), _list_setter(lambda: sys.meta_path), ignore=_finder_of_import
        ),
        StateRow(
            "sys.path_hooks",
            lambda: tuple(sys.path_hooks),
            _list_setter(lambda: sys.path_hooks),
            ignore=_finder_of_import,
        ),
        StateRow("sys.argv", lambda: tuple(sys.argv), _list_setter(lambda: sys.argv)),
        StateRow("the floating-point mode", _floating_point),
        StateRow("the default socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
        StateRow("the stack size of new threads", threading.stack_size, threading.stack_size),
        StateRow("tempfile.tempdir", lambda: tempfile.tempdir, _temp_setter, ignore=_first_use_of_tempfile),
        StateRow(
            "the multiprocessing start method",
            lambda: multiprocessing.get_start_method(allow_none=True),
            lambda old: multiprocessing.set_start_method(old, force=True),
            ignore=_default_start_method,
        ),
        StateRow("the level of the root logger", lambda: logging.root.level, logging.root.setLevel),
        StateRow("the level of logging.disable()", lambda: logging.root.manager.disable, logging.disable),
        StateRow("the filters of the root logger", lambda: tuple(logging.root.filters)),
        StateRow("the logger class", logging.getLoggerClass, logging.setLoggerClass),
        StateRow("the log record factory", logging.getLogRecordFactory, logging.setLogRecordFactory),
        *(_attribute(sys, "sys", name) for name in _HOOKS),
    ]
    if monitoring := getattr(sys, "monitoring", None):
        rows += [
            StateRow(f"the monitoring tool {number}", functools.partial(monitoring.get_tool, number))
            for number in range(6)
        ]
    return rows


_HOOKS = ("excepthook", "displayhook", "unraisablehook", "breakpointhook", "tracebacklimit", "dont_write_bytecode")


def decimal_settings() -> Sequence[StateRow] | None:
    """Return the decimal context, without its flags, which every calculation sets."""
    decimal = sys.modules.get("decimal")
    if decimal is None:
        return None
    default = decimal.DefaultContext

    def row(noun: str, name: str) -> StateRow:
        return StateRow(
            f"the {noun} of the decimal context",
            lambda: getattr(decimal.getcontext(), name),
            lambda old: setattr(decimal.getcontext(), name, old),
            getattr(default, name),
        )

    def traps() -> object:
        return tuple(kind for kind, on in decimal.getcontext().traps.items() if on)

    return [
        row("precision", "prec"),
        row("rounding", "rounding"),
        row("smallest exponent", "Emin"),
        row("largest exponent", "Emax"),
        row("capitals", "capitals"),
        row("clamp", "clamp"),
        StateRow(
            "the traps of the decimal context", traps, initial=tuple(kind for kind, on in default.traps.items() if on)
        ),
    ]


def asyncio_settings() -> Sequence[StateRow] | None:
    """Return the event loop policy of asyncio.

    The row reads the variable in which asyncio keeps the policy: asyncio's getter would create one.
    """
    events = sys.modules.get("asyncio.events")
    if events is None:
        return None

    def policy() -> object:
        return getattr(events, "_event_loop_policy", None)

    def ignore(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
        default = getattr(sys.modules.get("asyncio"), "DefaultEventLoopPolicy", None)
        return old is None and type(new) is default

    return [StateRow("the asyncio event loop policy", policy, events.set_event_loop_policy, None, ignore)]


def _umask() -> str:
    """Return the umask in octal. Linux returns the umask only when it is set.

    The temporary value is strict, since another thread may create a file.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    return oct(mask)


def _set_thresholds(old: Any) -> None:
    gc.set_threshold(*old)


def _attribute(owner: Any, path: str, name: str) -> StateRow:
    return StateRow(
        f"{path}.{name}",
        lambda: getattr(owner, name, None),
        lambda old: setattr(owner, name, old),
        ignore=_excepthook_of_torch,
    )


def _list_setter(find: Callable[[], list[Any]]) -> Callable[[Any], None]:
    def restore(old: Any) -> None:
        find()[:] = old

    return restore


def _temp_setter(old: Any) -> None:
    tempfile.tempdir = old


_SMALLEST_NORMAL = [sys.float_info.min]
_ONE = [1.0]


def _floating_point() -> str:
    """Return the floating-point mode of this thread, from the results of calculations: only C can read the flags."""
    one = _ONE[0]
    flushed = _SMALLEST_NORMAL[0] / 2 == 0.0
    half_an_ulp = sys.float_info.epsilon / 2
    up, down = one + half_an_ulp > one, one - half_an_ulp / 2 < one
    rounding = {(False, False): "to nearest", (True, False): "upwards", (False, True): "downwards"}.get((up, down), "?")
    return f"{'denormals flushed to zero' if flushed else 'denormals kept'}, rounding {rounding}"


def _excepthook_of_torch(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    """Ignore the excepthook that torch's process groups set to name the rank. The hook outlives them."""
    return getattr(new, "__module__", None) == "torch.distributed.distributed_c10d"


def _callback_of_hypothesis(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    """Ignore the callback with which Hypothesis measures garbage collections from its first test on."""
    if not isinstance(old, tuple) or not isinstance(new, tuple):
        return False
    kept = tuple(entry for entry in new if not _module_of(entry).startswith("hypothesis."))
    return kept == tuple(entry for entry in old if not _module_of(entry).startswith("hypothesis."))


def _module_of(value: object) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _raised_by_compiler(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    """Ignore the limit of 2000 that torch's compiler sets at its first run and does not restore."""
    return new == 2000 and isinstance(old, int) and old < 2000 and "torch._inductor.compile_fx" in sys.modules


def _added_by_imports(old: object, new: object, imported: frozenset[str]) -> bool:
    """Ignore folders that pytest prepends again when it sets up a package, and folders that libraries add."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(new) > len(old):
        front, rest = new[: len(new) - len(old)], new[len(new) - len(old) :]
        if rest == old and all(entry in old for entry in front):
            return True
    return _vendored_folder(old, new, imported)


def _vendored_folder(old: object, new: object, imported: frozenset[str]) -> bool:
    """Ignore the folder that a library adds when it is imported: a folder below an existing one."""
    if not imported or not isinstance(old, tuple) or not isinstance(new, tuple):
        return False
    below = tuple(f"{entry}{os.sep}" for entry in old if entry)
    return _only_adds(old, new, lambda entry: isinstance(entry, str) and entry.startswith(below))


def _only_adds(old: tuple[Any, ...], new: tuple[Any, ...], fits: Callable[[Any], bool]) -> bool:
    """Return whether `new` has all entries of `old` in their order, and others that fit."""
    return tuple(entry for entry in new if entry in old) == old and all(fits(each) for each in new if each not in old)


def _finder_of_import(old: object, new: object, imported: frozenset[str]) -> bool:
    """Ignore module finders that a library adds when it is imported."""
    if not imported or not isinstance(old, tuple) or not isinstance(new, tuple):
        return False
    return tuple(entry for entry in new if entry in old) == old


def _first_use_of_tempfile(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    """Ignore the folder that `tempfile` chooses at its first use."""
    named = [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if name in os.environ]
    return old is None and new in [*map(os.path.abspath, named), "/tmp", "/var/tmp", "/usr/tmp"]


def _default_start_method(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    """Ignore the default start method, which `multiprocessing` sets at its first use."""
    return old is None and new == multiprocessing.get_all_start_methods()[0]


#: Variables that libraries set for themselves in the process that first uses them: which library, and when.
_SET_BY_LIBRARIES: Mapping[str, str] = {
    "CUDA_MODULE_LOADING": "torch, when it initialises CUDA",
    "DISABLE_CUPTI_LAZY_REINIT": "torch.profiler, with CUDA graphs",
    "TEARDOWN_CUPTI": "torch.profiler, with CUDA graphs",
    "TORCHINDUCTOR_CACHE_DIR": "torch's compiler, when it first compiles",
    "TRITON_CACHE_DIR": "torch's compiler, when it first compiles for a GPU",
    "TRITON_LIBDEVICE_PATH": "torch's compiler, when it first compiles for a GPU",
    "TRITON_PTXAS_PATH": "torch's compiler, when it first compiles for a GPU",
    "TORCH_WARM_POOL": "torch's compiler, when it cannot warm up its process pool",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR": "torch's compiler, when it first compiles C++",
    "KMP_DUPLICATE_LIB_OK": "torch's compiler, where two OpenMP libraries are loaded",
    "KMP_INIT_AT_FORK": "MKL's threading layer, when it is imported",
}
#: The same for variables with this value.
_VALUES_OF_LIBRARIES: Mapping[str, str] = {
    "PYTHONHASHSEED": "6640",  # dask, when it first starts processes (https://github.com/dask/dask/issues/6640)
}
#: Set by pytest: the running phase, and its version.
_SET_BY_PYTEST = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})
_ENVIRON = os.environ


class Environment(StateSection):
    """The environment variables, as Python sees them."""

    def __init__(self) -> None:
        self._raw: dict[Any, Any] = {}
        self._last: dict[str, object] = {}

    def read(self) -> SectionValues:
        # The undecoded bytes inside os.environ: decoding them each time would cost more than all other readings
        # together.
        raw: dict[Any, Any] | None = getattr(_ENVIRON, "_data", None)
        if raw is None or raw != self._raw or not self._last:
            self._raw = {} if raw is None else raw.copy()
            self._last = {_VARIABLE + name: value for name, value in _ENVIRON.copy().items()}
        return self._last

    def ignores(self, change: StateChange, before: SectionValues, imported: frozenset[str]) -> bool:  # noqa: ARG002
        name = change.name.removeprefix(_VARIABLE)
        by_library = name in _SET_BY_LIBRARIES or _VALUES_OF_LIBRARIES.get(name) == change.new
        return name in _SET_BY_PYTEST or (change.old is ABSENT and by_library)

    def restore(self, change: StateChange) -> None:
        name = change.name.removeprefix(_VARIABLE)
        if isinstance(change.old, str):
            _ENVIRON[name] = change.old
        else:
            _ENVIRON.pop(name, None)


_VARIABLE = "the environment variable "


class SignalHandlers(StateSection):
    """The handler that Python calls for each signal; None for a handler that C code has set."""

    def __init__(self) -> None:
        numbers = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
        self._numbers = {f"the handler of {signal_name(number)}": int(number) for number in numbers}
        self._handlers: list[object] = []
        self._last: dict[str, object] = {}

    def read(self) -> SectionValues:
        handlers = list(map(_compat.bare_signal_handler, self._numbers.values()))
        if not self._last or not all(map(operator.is_, handlers, self._handlers)):
            self._handlers = handlers
            self._last = {name: signal.getsignal(number) for name, number in self._numbers.items()}
        return self._last

    def ignores(self, change: StateChange, before: SectionValues, imported: frozenset[str]) -> bool:  # noqa: ARG002
        # torch's data loader sets one for SIGCHLD with its first worker, permanently.
        module = getattr(change.new, "__module__", None)
        return module == "torch.utils.data._utils.signal_handling" or not before

    def restore(self, change: StateChange) -> None:
        if change.old is not None:  # Python cannot set a handler of C code again
            signal.signal(self._numbers[change.name], change.old)  # type: ignore[arg-type]


class WarningFilters(StateSection):
    """The warnings filters. By default pytest saves and restores them around each phase."""

    restored_by_pytest = True

    def read(self) -> SectionValues:
        return {
            "the warnings filters": tuple(warnings.filters),
            "warnings.showwarning": warnings.showwarning,
        }

    def ignores(self, change: StateChange, before: SectionValues, imported: frozenset[str]) -> bool:  # noqa: ARG002
        """Ignore that imported libraries added filters for their own warnings.

        A filter for all warnings of all modules is no such filter.
        """
        old, new = change.old, change.new
        if not imported or not isinstance(old, tuple) or not isinstance(new, tuple):
            return False
        return _only_adds(old, new, lambda entry: bool(entry[1] or entry[3] or entry[2] is not Warning))

    def restore(self, change: StateChange) -> None:
        if isinstance(change.old, tuple):
            warnings.filters[:] = change.old  # type: ignore[index]
            # Otherwise Python continues to use its cache of the other filters.
            getattr(warnings, "_filters_mutated", warnings.resetwarnings)()
        else:
            warnings.showwarning = change.old  # type: ignore[assignment]


class LogHandlers(StateSection):
    """The handlers of the root logger, each with its level, without those that pytest adds for each phase."""

    def __init__(self) -> None:
        self._handlers: dict[str, logging.Handler] = {}

    def read(self) -> SectionValues:
        handlers = {_handler_name(handler): handler for handler in logging.root.handlers if not _is_pytests(handler)}
        self._handlers.update(handlers)
        return {name: handler.level for name, handler in handlers.items()}

    def ignores(self, change: StateChange, before: SectionValues, imported: frozenset[str]) -> bool:  # noqa: ARG002
        """Ignore the handler that `logging.warning` or a similar function has added because there was none."""
        handler = self._handlers[change.name]
        return (
            not before
            and type(handler) is logging.StreamHandler
            and handler.stream is sys.stderr
            and getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT
        )

    def restore(self, change: StateChange) -> None:
        handler = self._handlers[change.name]
        if change.old is ABSENT:
            logging.root.removeHandler(handler)
        elif isinstance(change.old, int):
            logging.root.addHandler(handler)
            handler.setLevel(change.old)


def _is_pytests(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest.")


def _handler_name(handler: logging.Handler) -> str:
    kind = type(handler)
    return f"the root log handler {kind.__module__}.{kind.__qualname__} at {id(handler):#x}"

"""State of the zygote that an executor must not take over as it is: exit handlers, and process ids in variables.

Test files are imported once, in the zygote. What they register with `atexit` at import belongs to that process and runs
there, once, when all executors have ended. Otherwise the first executor that ends would, for example, delete a folder
that all of them use. A variable of a test file with the result of ``os.getpid()`` gets the executor's own id.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Generator, Iterable
from typing import Any

from harness import _compat

#: The folders of the standard library and of installed packages. Their handlers clean up what a process has used, so
#: they run in each.
_LIBRARIES = tuple(
    {f"{os.path.realpath(sysconfig.get_path(name))}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class ZygotePid(int):
    """The process id of the zygote, as ``os.getpid()`` returns it while test files are imported."""


class ExitHandlers:
    """The exit handlers that project files, not libraries, have registered in this process."""

    def __init__(self) -> None:
        self._registered: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []
        self._last_finalizer: weakref.finalize[..., Any] | None = None

    def install(self) -> None:
        """Replace ``atexit.register`` by a function that does the same, and records the call."""
        register = atexit.register
        self._last_finalizer = next(reversed(_compat.finalizers()), None)

        def recorded(func: Callable[..., object], *args: Any, **kwargs: Any) -> Callable[..., object]:
            register(func, *args, **kwargs)
            if not _is_of_library(sys._getframe(1).f_code.co_filename):
                self._registered.append((func, args, kwargs))
            return func

        atexit.register = recorded  # type: ignore[assignment]

    def leave_to_parent(self) -> None:
        """Forget, in a fork, what was registered before."""
        for func, _, _ in self._registered:
            atexit.unregister(func)
        self._registered.clear()
        for finalizer in self._finalizers():
            finalizer.atexit = False

    def run(self) -> None:
        """Run the handlers, last registered first. The error of one is printed, and the others run."""
        for func, args, kwargs in reversed(self._registered):
            try:
                func(*args, **kwargs)
            except Exception:  # noqa: BLE001 - as the interpreter does at its end
                sys.excepthook(*sys.exc_info())
        for finalizer in self._finalizers():
            if finalizer.atexit:
                finalizer()

    def _finalizers(self) -> list[weakref.finalize[..., Any]]:
        """Return the finalizers made since `install`, last made first."""
        made = []
        for finalizer in reversed(_compat.finalizers()):
            if finalizer is self._last_finalizer:
                break
            made.append(finalizer)
        return made


EXIT_HANDLERS = ExitHandlers()


def _is_of_library(file: str) -> bool:
    return file.startswith("<") or os.path.realpath(file).startswith(_LIBRARIES)


@contextlib.contextmanager
def marked_pid() -> Generator[None]:
    """Have ``os.getpid()`` return a `ZygotePid` in this context."""
    bare = os.getpid
    active = True

    def getpid() -> int:
        return ZygotePid(bare()) if active else bare()

    os.getpid = getpid
    try:
        yield
    finally:
        active = False
        if os.getpid is getpid:
            os.getpid = bare


def variables_with_pid(modules: Iterable[object]) -> list[tuple[object, str]]:
    """Return the variables with a `ZygotePid` in modules, and in the classes that they define: owner and name."""
    found: list[tuple[object, str]] = []
    for module in modules:
        if not isinstance(module, types.ModuleType):
            continue
        # By its real type: `isinstance` also asks a value for its class, and torch's deprecated names warn then.
        owners = [module, *(value for value in vars(module).values() if issubclass(type(value), type))]
        for owner in owners:
            if owner is module or getattr(owner, "__module__", None) == module.__name__:
                found += [(owner, name) for name, value in vars(owner).items() if type(value) is ZygotePid]
    return found

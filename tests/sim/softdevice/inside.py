"""Runs functions in a process that has loaded the soft device, which would never leave the tests' process.

Loading takes seconds, so all checks of a module with the same environment run in one process, in order. A check is a
function marked with `check`; the test is one line, parametrised over `checks(module)`, that calls `verdict`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from harness.devices import software
from harness.sim.softdevice import build

Check = Callable[[], None]
#: The fixture `once`: the checks of a process run once, whichever worker has their tests.
Once = Callable[[str, Callable[[], str]], str]

ROOT = Path(__file__).resolve().parents[3]
_LIMIT = 300.0  # seconds for a process of checks; only a hanging process takes so long
_MARK = "_soft_setting"
_GRAPHS_FROM = (2, 13)


@dataclass(frozen=True, slots=True)
class Setting:
    """The process of a check. `alone`: its own fork, since the check leaves the process unusable."""

    environ: tuple[tuple[str, str], ...] = ()
    alone: bool = False


def check(alone: bool = False, **environ: str) -> Callable[[Check], Check]:
    """Mark a function as a check that runs in a process with these variables."""

    def mark(function: Check) -> Check:
        setattr(function, _MARK, Setting(tuple(sorted(environ.items())), alone))
        return function

    return mark


def checks(module: ModuleType) -> list[Check]:
    """Return the checks of a module in source order."""
    return [value for value in vars(module).values() if hasattr(value, _MARK)]


def verdict(function: Check, once: Once) -> None:
    """Fail with the other process's traceback unless the check passed there. Checks of graphs need torch 2.13."""
    setting: Setting = getattr(function, _MARK)
    torch = software.torch_version().value
    if "graph" in function.__name__ and isinstance(torch, tuple) and torch < _GRAPHS_FROM:
        pytest.skip("this torch has no torch.accelerator.Graph")
    module = sys.modules[function.__module__]
    company = [one for one in checks(module) if getattr(one, _MARK) == setting]
    names = tuple(one.__name__ for one in company)
    text = once(f"{function.__module__}.{names[0]}.json", lambda: json.dumps(_run(function.__module__, names, setting)))
    trouble = json.loads(text)[function.__name__]
    if trouble:
        pytest.fail(trouble, pytrace=False)


@functools.cache
def library() -> Path:
    """Return the soft device's library, built now if necessary. Skip the test if no compiler can build it."""
    compiler = software.cpp_compiler_version()
    if compiler.value is None:
        pytest.skip(f"the soft device cannot be built: {compiler.detail}")
    return build.build_softdevice()


def run_script(script: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script in its own process, with the soft device loaded."""
    prelude = (
        f"from harness.sim.softdevice import build\nbuild.load_software_device({str(library())!r})\nimport torch\n"
    )
    return _start([sys.executable, "-c", prelude + script], environ or {})


def _run(module: str, names: tuple[str, ...], setting: Setting) -> dict[str, str]:
    """Return the error of each check; empty if it passed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        results.touch()
        how = "alone" if setting.alone else "together"
        command = [sys.executable, "-m", __name__, str(library()), str(results), how, module, *names]
        try:
            done = _start(command, dict(setting.environ))
            end = f"status {done.returncode}"
            output = done.stdout + done.stderr
        except subprocess.TimeoutExpired as expired:
            end = f"no end in {_LIMIT:.0f} s"
            output = str(expired.stdout or "") + str(expired.stderr or "")
        problems: dict[str, str] = {}
        for name, trouble in _read(results):
            problems[name] = (
                problems.get(name) or trouble
            )  # the check's own error says more than its process's exit status
    if end != "status 0" and len(problems) == len(names):
        return {
            name: trouble or f"the process went wrong at its end: {end}\n{output}" for name, trouble in problems.items()
        }
    return {name: problems.get(name, f"not finished: {end}\n{output}") for name in names}


def _start(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SOFT_")}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**inherited, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_LIMIT,
        check=False,
    )


def _read(results: Path) -> Iterator[tuple[str, str]]:
    for line in results.read_text().splitlines():
        name, trouble = json.loads(line)
        yield name, trouble


def _main(path: str, results: str, how: str, module: str, *names: str) -> None:
    from harness.sim.softdevice import build

    build.load_software_device(path)
    functions = importlib.import_module(module)
    for name in names:
        if how == "alone" and (child := os.fork()):
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status:
                _tell(results, name, f"the process ended with status {status}")
            continue
        trouble = ""
        try:
            getattr(functions, name)()
        except BaseException:  # noqa: BLE001 - the other process reports any error
            trouble = traceback.format_exc()
        _tell(results, name, trouble)
        if how == "alone":
            return  # ends through the interpreter's finalisation, as any process does


def _tell(results: str, name: str, trouble: str) -> None:
    with open(results, "a") as file:
        file.write(json.dumps([name, trouble]) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])

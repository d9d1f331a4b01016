"""Show that breaks take effect, each in its own process, forked from this one.

Command line: ``python -m tests.breaks.demonstration CATALOGUE DEVICE LIBRARY NAME...``. CATALOGUE is a file
or empty. LIBRARY is the library of a software device, or empty. The output has one line of JSON per break: its name,
and why it cannot be used (empty if it can).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from harness.backends.table import BACKENDS
from harness.core.text import single_line
from harness.sim.native import provider
from harness.sim.native.provider import ProvidedDevice
from tests.breaks.breaks import Break, BreakError, is_mistake
from tests.breaks.engine import environment
from tests.breaks.source import read_source

#: Time limit of one demonstration, in seconds.
LIMIT = 120


def judge_outcomes(before: str, again: str, after: str) -> str:
    """Return what is wrong with a demonstration, or "". Its value is taken twice before the break and once after it."""
    if before != again:
        return f"its demonstration differs without the break: {single_line(before)} and {single_line(again)}"
    if before == after:
        return f"its demonstration shows nothing: {single_line(before)} without the break and with it"
    if is_mistake(after) and not is_mistake(before):
        return f"it changes no value, but has a bug: its demonstration raises {single_line(after)}"
    return ""


def observe(shows: Callable[[], object]) -> str:
    """Return the value of a demonstration as text, or the error that it raises."""
    try:
        return repr(shows())
    except Exception as error:  # noqa: BLE001 - a break may make torch raise anything: this is an effect
        return f"{type(error).__name__}: {error}"


def demonstrate(entry: Break) -> str:
    """Break torch in this process. Return what is wrong with the demonstration, or an empty text."""
    assert entry.shows is not None
    assert entry.apply is not None
    before, again = observe(entry.shows), observe(entry.shows)
    try:
        entry.apply()
    except Exception as error:  # noqa: BLE001 - after any error, the break cannot be used
        return f"it cannot be made with this torch: {error!r}"
    return judge_outcomes(before, again, observe(entry.shows))


def unusable(names: Sequence[str], device: str, catalogue: Path | None) -> Mapping[str, str]:
    """Return the unusable breaks, with reasons. Raise BreakError."""
    if not names:
        return {}
    backend = BACKENDS[device]
    provided = provider.provider_of(backend).provide() if backend.provider else ProvidedDevice(None, {})
    command = [
        sys.executable,
        "-m",
        "tests.breaks.demonstration",
        str(catalogue or ""),
        device,
        provided.library or "",
    ]
    done = subprocess.run(
        [*command, *names],
        env={**environment(os.environ), **provided.variables},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    answers = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    if done.returncode or answers.keys() != set(names):
        last = " ".join(done.stderr.strip().splitlines()[-3:])
        raise BreakError(f"the demonstrations do not run (exit status {done.returncode}): {last!r}")
    return {name: why for name, why in answers.items() if why}


def main(catalogue: str, device: str, library: str, names: Sequence[str]) -> None:
    """Fork one process per break, one at a time."""
    import torch  # noqa: F401 - once, before the forks

    breaks = read_source(Path(catalogue) if catalogue else None)
    for name in names:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _child(breaks[name], device, library, writer)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as file:
            why = file.read()
        _, status = os.waitpid(child, 0)
        if code := os.waitstatus_to_exitcode(status):
            why = f"its demonstration ended the process ({code})"
        print(json.dumps([name, why]), flush=True)


def _child(entry: Break, device: str, library: str, writer: int) -> NoReturn:
    signal.alarm(LIMIT)
    os.dup2(2, 1)  # torch may print
    if library:
        provider.provider_of(BACKENDS[device]).enter(library)
    with os.fdopen(writer, "w", encoding="utf-8") as file:
        file.write(demonstrate(entry))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])

"""Scripts of tests, each in a process of its own that begins with torch imported.

Importing torch takes 1.7 s of processor time. A server imports it once per worker of the tests, and each script runs in
a fork of the server.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def run_script(code: str, *arguments: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run `code` as ``python -c CODE ARGUMENTS`` would, in the root folder of the project.

    Raise subprocess.TimeoutExpired after `timeout` seconds.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = context.Process(target=_become, args=(code, arguments, out, err))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(code, timeout, out.read_text(), err.read_text())
        status = process.exitcode
        process.close()
        return subprocess.CompletedProcess(["-c", *arguments], status, out.read_text(), err.read_text())


def _become(code: str, arguments: tuple[str, ...], out: Path, err: Path) -> None:
    """Run the script in this process, with the files as its standard output and error."""
    for number, path in ((1, out), (2, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["-c", *arguments]
    os.chdir(_ROOT)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status: object = 0
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
    except SystemExit as error:
        status = error.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.exit(status)  # type: ignore[arg-type]

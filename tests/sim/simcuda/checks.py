"""Programs of checks for simulated devices. A program is a file with functions `check_*` and a function `run`.

`run` calls one of them; the checks run one after the other in one process.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.sim.simcuda.fake_runtime import run_python

_MAIN = """

def _all():
    import json, traceback

    outcomes = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                run(check)
            except Exception:
                outcomes[name.removeprefix("check_")] = traceback.format_exc()
            else:
                outcomes[name.removeprefix("check_")] = "ok"
    print(json.dumps(outcomes))


_all()
"""


def names(program: Path) -> list[str]:
    """Return the checks of a program, without `check_`."""
    lines = program.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("def check_").partition("(")[0] for line in lines if line.startswith("def check_")]


def outcomes(program: Path, environ: Mapping[str, str], timeout: float = 120) -> dict[str, str]:
    """Return the result of each check: "ok", or a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / program.name  # Triton reads the source of kernels
        file.write_text(program.read_text(encoding="utf-8") + _MAIN, encoding="utf-8")
        done = run_python(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')", environ, timeout)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found

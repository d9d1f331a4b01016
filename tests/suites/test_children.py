"""Children of cases: a fork ends like an interpreter with the same script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

#: Runs scripts in forks, and prints their results and whether each was a fork.
FORKS = """
import json, os, subprocess, sys, threading, warnings
from suites import children

warnings.simplefilter("error")
os.environ["LEFT"] = "1"
found = {}
for name, script in json.loads(sys.argv[1]).items():
    script = f"import os, sys; print(os.getppid() == {os.getpid()} and 'suites' in sys.modules)\\n{script}"
    ended = children.fork(script, environ={"GIVEN": "2"}, limit=20)
    found[name] = [ended.status, *ended.out.splitlines(), ended.err]
try:
    children.fork("import time; time.sleep(600)", limit=0.2)
except subprocess.TimeoutExpired as error:
    found["limit"] = [error.timeout, len(os.listdir("/proc/self/task"))]
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
found["threads"] = [children.fork("import sys; print('suites' in sys.modules)").out]
stop.set()
print(json.dumps(found))
"""

SCRIPTS = {
    "output": "import sys; print(DEVICE if 'DEVICE' in globals() else 'no device'); print('err', file=sys.stderr)",
    "main": "def f(): return g()\ndef g(): return __name__\nprint(f(), os.environ['LEFT'], os.environ['GIVEN'])",
    "raises": "print('before')\n1 / 0",
    "exit": "raise SystemExit(3)",
    "exit_with_text": "import sys\nsys.exit('a reason')",
    "signal": "import signal\nprint('flushed', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
    "warning": "import warnings\nwarnings.warn('no error')\nprint('went on')",
    "input": "import sys\nprint(repr(sys.stdin.read()))",
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    ended = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(SCRIPTS)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy then has no threads of its own, as in an executor
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answers: dict[str, list[Any]] = json.loads(ended.stdout)
    return answers


@pytest.mark.parametrize(
    ("name", "status", "lines", "text"),
    [
        ("output", 0, ["no device"], "err\n"),
        ("main", 0, ["__main__ 1 2"], ""),
        ("raises", 1, ["before"], "ZeroDivisionError"),
        ("exit", 3, [], ""),
        ("exit_with_text", 1, [], "a reason\n"),
        ("signal", -9, ["flushed"], ""),
        ("warning", 0, ["went on"], "no error"),
        ("input", 0, ["''"], ""),
    ],
)
def test_fork_ends_as_an_interpreter_would(
    found: dict[str, list[Any]], name: str, status: int, lines: list[str], text: str
) -> None:
    assert found[name][:-1] == [status, "True", *lines]
    assert text in found[name][-1]


def test_fork_is_killed_at_its_limit(found: dict[str, list[Any]]) -> None:
    assert found["limit"] == [0.2, 1]


def test_fork_is_an_interpreter_where_a_fork_would_lack_threads(found: dict[str, list[Any]]) -> None:
    assert found["threads"] == ["False\n"]

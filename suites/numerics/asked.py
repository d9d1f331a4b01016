"""Settings in a new process: they apply to the process, some are read from the environment once, and some cannot be
restored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from suites import children

SCRIPT = """
import json, os, warnings
import torch
B = torch.backends

def tell(steps):
    told = []
    for step in steps:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                try:
                    code = compile(step, "step", "eval")
                except SyntaxError:
                    exec(compile(step, "step", "exec"), globals())
                    continue
                value = eval(code)
            except Exception as error:
                value = type(error).__name__
        if value is None:
            value = "warned" if caught else None
        told.append(value if isinstance(value, (bool, int, str, type(None))) else str(value))
    print(json.dumps(told), flush=True)

for steps in json.loads(SCENES):
    child = os.fork()  # nothing has been used yet: each scene has settings as a fresh process has them
    if not child:
        tell(steps)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def told_each(*scenes: Sequence[str], environ: Mapping[str, str] | None = None) -> list[list[Any]]:
    """Run each scene, a sequence of steps, in its own process, and return the values of the steps that are expressions.

    `B` is `torch.backends`. An exception gives its class name, and None after a warning gives "warned". Statements have
    no value.
    """
    ended = children.run(f"SCENES = {json.dumps(json.dumps(scenes))}\n{SCRIPT}", environ=environ)
    found: list[list[Any]] = [json.loads(line) for line in ended.lines()]
    assert len(found) == len(scenes), ended.text()
    return found


def told(*steps: str, environ: Mapping[str, str] | None = None) -> list[Any]:
    """The same for one scene."""
    return told_each(steps, environ=environ)[0]

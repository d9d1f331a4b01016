"""Scripts that run in a separate process, because allocator settings cannot be reverted in this one.

A case that uses this module has the mark `own_process`.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from .. import children

#: Helpers for scripts. `tell` reports the result.
PREAMBLE = """
import gc, json, torch
MIB = 1 << 20
def tell(answer):
    print(json.dumps(answer), flush=True)
def counter(name, what="current"):
    statistics = torch.accelerator.memory_stats(DEVICE)
    # A device has no statistics before its first use.
    return statistics[f"{name}.all.{what}"] if statistics else 0
def new(size):
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)
def failure(action):
    try:
        action()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
"""


def ask(script: str, device: torch.device | None = None, conf: str = "", *, interpreter: bool = False) -> Any:
    """Return the last value that a script reported, from a process with the allocator settings `conf`.

    They replace this process's own settings. With `interpreter`, a new interpreter has them in its environment.
    """
    if interpreter:
        environ = dict.fromkeys(children.SETTINGS, conf)
        ended = children.run(PREAMBLE + script + children.AT_ONCE, device, environ=environ)
    else:
        ended = children.fork(PREAMBLE + script, device, settings=conf)
    return json.loads(ended.lines()[-1])

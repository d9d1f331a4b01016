"""Settings in a process that has not used torch yet, since some are read only once and some cannot be restored.

A case that uses this module has the mark `own_process`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from suites import children


def answers_each(*scenes: Sequence[str], environ: Mapping[str, str] | None = None) -> list[list[Any]]:
    """Run each scene, a sequence of steps, in its own fork of this process, and return the values of its expressions.

    With `environ`, a new interpreter with these variables forks instead. A step can use `torch`, `B` for
    `torch.backends`, `os` and `warnings`. An exception gives its class name, and None after a warning gives "warned".
    Statements have no value.
    """
    if environ:
        asking = (
            f"import json\nfrom suites.numerics.asked import answers_each\nprint(json.dumps(answers_each(*{scenes!r})))"
        )
        found: list[list[Any]] = json.loads("\n".join(children.run(asking + children.AT_ONCE, environ=environ).lines()))
        return found
    return [_answers_by_a_fork(steps) for steps in scenes]


def answers(*steps: str, environ: Mapping[str, str] | None = None) -> list[Any]:
    """Run one scene like `answers_each`."""
    return answers_each(steps, environ=environ)[0]


def _answers_by_a_fork(steps: Sequence[str]) -> list[Any]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            with open(writing, "w", encoding="utf-8") as pipe:
                json.dump(_tell(steps), pipe)
            status = 0
        except BaseException:  # noqa: BLE001 - the fork must not go on as the case
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found: list[Any] = json.loads(answer)
    return found


def _tell(steps: Sequence[str]) -> list[Any]:
    names = {"B": torch.backends, "torch": torch, "os": os, "warnings": warnings}
    values = []
    for step in steps:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                try:
                    code = compile(step, "step", "eval")
                except SyntaxError:
                    exec(compile(step, "step", "exec"), names)
                    continue
                value = eval(code, names)
            except Exception as error:  # noqa: BLE001 - the case says which one it expects
                value = type(error).__name__
        if value is None:
            value = "warned" if caught else None
        values.append(value if isinstance(value, bool | int | str | None) else str(value))
    return values

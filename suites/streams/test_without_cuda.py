"""Streams and events in a process without a visible CUDA device.

The process is separate, so that the cases apply to every machine, and a crash is a result.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from .. import children

ANSWERS = """
import json, sys, torch
answers = {}
for expression in json.load(sys.stdin):
    try:
        answers[expression] = ["value", repr(eval(expression))]
    except Exception as error:
        answers[expression] = [type(error).__name__, str(error)]
json.dump(answers, sys.stdout)
"""


def ask(*expressions: str) -> dict[str, tuple[str, str]]:
    """Return each expression's result in a new process without a GPU: ("value", repr) or (error class, message)."""
    child = subprocess.run(
        [sys.executable, "-c", ANSWERS],
        input=json.dumps(expressions),
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | children.HIDDEN,
        check=False,
    )
    assert child.returncode == 0, f"the process ended with {child.returncode}: {child.stderr[-2000:]}"
    return {expression: (kind, text) for expression, (kind, text) in json.loads(child.stdout).items()}


@pytest.mark.timeout(120)
def test_cuda_stream_and_event_without_a_device_are_refused_clearly() -> None:
    """Without a visible CUDA device, everything that needs one raises an error about CUDA, its driver or the device.

    No call crashes or returns an object that appears to work.
    """
    answers = ask(
        "torch.cuda.Stream().synchronize()",
        "torch.cuda.Event().record()",
        "torch.cuda.current_stream()",
        "torch.cuda.default_stream()",
        "torch.cuda.synchronize()",
        "torch.accelerator.current_stream()",
        "torch.Stream('cuda').synchronize()",
        "torch.Stream('cuda:0').synchronize()",
        "torch.Event('cuda').record()",
        "torch.ones(1).cuda(non_blocking=True)",
        "torch.ones(1).to('cuda', non_blocking=True)",
    )

    # A build without CUDA raises for an event with the name of its placeholder class.
    clear = re.compile(r"(?i)cuda|nvidia|hip|accelerator|device|dummy base class Event")
    unclear = {e: (kind, text) for e, (kind, text) in answers.items() if kind == "value" or not clear.search(text)}
    assert unclear == {}
    assert {kind for kind, _ in answers.values()} <= {"RuntimeError", "AssertionError", "AcceleratorError"}


@pytest.mark.timeout(120)
def test_is_available_and_stream_none_work_without_a_device() -> None:
    """Without a device, `is_available` and selecting no stream do not raise."""
    answers = ask(
        "torch.cuda.is_available()",
        "torch.cuda.device_count()",
        "torch.cuda.is_initialized()",
        "torch.cuda.stream(None).__enter__()",
    )

    assert answers == {
        "torch.cuda.is_available()": ("value", "False"),
        "torch.cuda.device_count()": ("value", "0"),
        "torch.cuda.is_initialized()": ("value", "False"),
        "torch.cuda.stream(None).__enter__()": ("value", "None"),
    }

"""What streams and events say where no CUDA device is to be seen.

Asked in a process of its own that sees none, so that the cases hold on every machine, and a crash is a result.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

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

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


def ask(*expressions: str) -> dict[str, tuple[str, str]]:
    """What each expression gives in a fresh process that sees no GPU: ("value", repr) or (error class, its text)."""
    child = subprocess.run(
        [sys.executable, "-c", ANSWERS],
        input=json.dumps(expressions),
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | HIDDEN,
        check=False,
    )
    assert child.returncode == 0, f"the process ended with {child.returncode}: {child.stderr[-2000:]}"
    return {expression: (kind, text) for expression, (kind, text) in json.loads(child.stdout).items()}


@pytest.mark.timeout(120)
def test_cuda_stream_and_event_without_a_device_are_refused_clearly() -> None:
    """Contract: with no CUDA device to be seen, whatever would need one raises an error that speaks of CUDA, of its
    driver, of the accelerator or of the device. None crashes, none gives an object that seems to work."""
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

    # A build without CUDA refuses an event by the name of the class that stands in for it.
    clear = re.compile(r"(?i)cuda|nvidia|hip|accelerator|device|dummy base class Event")
    unclear = {e: (kind, text) for e, (kind, text) in answers.items() if kind == "value" or not clear.search(text)}
    assert unclear == {}
    assert {kind for kind, _ in answers.values()} <= {"RuntimeError", "AssertionError", "AcceleratorError"}


@pytest.mark.timeout(120)
def test_is_available_and_stream_none_work_without_a_device() -> None:
    """Contract: asking whether there is a device, or selecting no stream, is no error where there is none."""
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

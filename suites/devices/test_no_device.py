"""Behavior without an accelerator: errors name what is missing, and no call appears to work.

Each case uses a process without visible devices, so that it applies to every machine.
"""

from __future__ import annotations

import json
import re

import pytest
import torch

from .. import children

ANSWER = """
import json, torch, warnings
warnings.simplefilter("error")
for expression in {expressions!r}:
    try:
        print(json.dumps([expression, "value", repr(eval(expression))]))
    except Exception as error:
        print(json.dumps([expression, type(error).__name__, str(error)]))
"""


def ask(*expressions: str) -> dict[str, tuple[str, str]]:
    """Return the result of each expression in such a process: ("value", repr) or (exception class, message)."""
    ended = children.run(ANSWER.format(expressions=expressions) + children.AT_ONCE, environ=children.HIDDEN)
    return {expression: (kind, text) for expression, kind, text in map(json.loads, ended.lines())}


@pytest.mark.timeout(150)
def test_using_a_missing_accelerator_is_refused_and_named() -> None:
    """Everything that needs an accelerator raises an error about CUDA, its driver or the accelerator."""
    answers = ask(
        "torch.empty(1, device='cuda')",
        "torch.ones(1).to('cuda:0')",
        "torch.ones(1).cuda()",
        "torch.nn.Linear(1, 1).cuda()",
        "torch.ones(1).pin_memory()",
        "torch.empty(1, pin_memory=True)",
        "torch.cuda.get_device_name()",
        "torch.cuda.get_device_properties(0)",
        "torch.cuda.get_device_capability()",
        "torch.cuda.current_device()",
        "torch.cuda.mem_get_info()",
        "torch.cuda.get_rng_state()",
        "torch.cuda.initial_seed()",
        "torch.cuda.init()",
        "torch.Generator('cuda').manual_seed(1)",
        "torch.accelerator.set_device_index(0)",
        "torch.accelerator.current_device_index()",
        "torch.accelerator.synchronize()",
    )

    clear = re.compile(r"(?i)cuda|nvidia|hip|accelerator")
    unclear = {e: (kind, text) for e, (kind, text) in answers.items() if kind == "value" or not clear.search(text)}
    assert unclear == {}
    assert {kind for kind, _ in answers.values()} <= {"RuntimeError", "AssertionError", "AcceleratorError"}


@pytest.mark.timeout(150)
@pytest.mark.covers("test_cuda::TestCuda::test_manual_seed", "test_cuda::TestCuda::test_lazy_init")
def test_is_available_manual_seed_and_empty_cache_work_without_a_device() -> None:
    """Availability queries, seeding and emptying the cache do not raise, and initialize nothing."""
    answers = ask(
        "torch.cuda.is_available()",
        "torch.cuda.device_count()",
        "torch.accelerator.is_available()",
        "torch.accelerator.device_count()",
        "torch.accelerator.current_accelerator(check_available=True)",
        "torch.cuda.manual_seed(1)",
        "torch.cuda.manual_seed_all(1)",
        "torch.manual_seed(7).initial_seed()",
        "torch.cuda.empty_cache()",
        "torch.cuda.memory_allocated()",
        "torch.ones(1).is_pinned()",
        "torch.cuda.is_initialized()",
    )

    assert {expression: text for expression, (kind, text) in answers.items() if kind == "value"} == {
        "torch.cuda.is_available()": "False",
        "torch.cuda.device_count()": "0",
        "torch.accelerator.is_available()": "False",
        "torch.accelerator.device_count()": "0",
        "torch.accelerator.current_accelerator(check_available=True)": "None",
        "torch.cuda.manual_seed(1)": "None",
        "torch.cuda.manual_seed_all(1)": "None",
        "torch.manual_seed(7).initial_seed()": "7",
        "torch.cuda.empty_cache()": "None",
        "torch.cuda.memory_allocated()": "0",
        "torch.ones(1).is_pinned()": "False",
        "torch.cuda.is_initialized()": "False",
    }, {expression: answer for expression, answer in answers.items() if answer[0] != "value"}


@pytest.mark.requires(torch=">=2.13")  # in 2.11 the list is empty without a device
@pytest.mark.timeout(150)
@pytest.mark.covers("test_cuda::TestCudaArchList::test_get_arch_list_does_not_require_cuda_is_available")
def test_get_arch_list_without_a_visible_device() -> None:
    """The architecture list is a property of the build, and is the same without a visible device."""
    import torch

    answers = ask("torch.cuda.get_arch_list()")

    assert answers["torch.cuda.get_arch_list()"] == ("value", repr(torch.cuda.get_arch_list()))


@pytest.mark.requires(cuda=False, rocm=False)
def test_build_without_cuda_has_no_architectures_and_statistics() -> None:
    """A build without CUDA has an empty architecture list, and no statistics of pinned memory."""
    assert torch.cuda.get_arch_list() == []
    assert torch.cuda.host_memory_stats_as_nested_dict() == {}
    assert torch.cuda.host_memory_stats() == {}

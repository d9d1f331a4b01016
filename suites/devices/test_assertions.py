"""Device-side assertions: the error is sticky in its process, and does not affect other processes.

A failed assertion makes the device unusable for its process. Each case therefore uses a child process, and a second
process that uses the device before and afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch

from .. import children

# A synchronous device may raise the error itself, and remain usable.
pytestmark = [
    pytest.mark.requires(accelerator=True, asynchronous=True),
    pytest.mark.own_process,
    pytest.mark.timeout(300),
]

#: Starts a process that first uses the device, and computes again once this process has ended in any way. It prints
#: "unharmed", and exits with this process's status.
BYSTANDER = """
import os, signal, torch
waiting, begun = os.pipe()
attempting = os.fork()
if attempting:
    x = torch.arange(1000.0, device=DEVICE)
    torch.accelerator.synchronize()
    os.write(begun, b"1")
    status = os.waitstatus_to_exitcode(os.waitpid(attempting, 0)[1])
    assert (x + 1).sum().item() == 500500
    torch.accelerator.synchronize()
    os.write(1, b"unharmed\\n")
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)
os.close(begun)
assert os.read(waiting, 1), "the other process cannot use the device"
"""

#: The error on a GPU or another accelerator, or on standard error; with ROCm, the output of the process that dies.
TOLD = re.compile(r"(?i)device-side assert|assertion .*failed|HSA_STATUS_ERROR_EXCEPTION")

#: Runs `attempt`, synchronizes the device, and prints the result: "launched" if the call itself returned, then "raised
#: CLASS" or "nothing" after the synchronize, and whether the device works.
HARNESS = """
import torch
def tell(attempt):
    try:
        attempt()
        print("launched", flush=True)
        torch.accelerator.synchronize()
        print("nothing", flush=True)
    except RuntimeError as error:
        print("raised", type(error).__name__, "/", str(error).splitlines()[0], flush=True)
    try:
        print("works", (torch.ones(3, device=DEVICE) + 1).sum().item(), flush=True)
    except RuntimeError as error:
        print("unusable", type(error).__name__, "/", str(error).splitlines()[0], flush=True)
"""

FAILING: dict[str, str] = {
    "index": "torch.zeros(4, device=DEVICE)[torch.tensor([11], device=DEVICE)]",
    "negative_index": "torch.zeros(4, device=DEVICE)[torch.tensor([-5], device=DEVICE)]",
    "gather": "torch.zeros(4, device=DEVICE).gather(0, torch.tensor([4], device=DEVICE))",
    "scatter": "torch.zeros(4, device=DEVICE).scatter_(0, torch.tensor([4], device=DEVICE), 1.0)",
    "index_select": "torch.zeros(4, device=DEVICE).index_select(0, torch.tensor([4], device=DEVICE))",
    "embedding": "torch.nn.functional.embedding(torch.tensor([7], device=DEVICE), torch.zeros(4, 2, device=DEVICE))",
}

PROBABILITIES = {
    "negative": "[1.0, -1.0, 1.0]",
    "infinite": "[1.0, float('inf'), 1.0]",
    "minus_infinite": "[1.0, float('-inf'), 1.0]",
    "nan": "[1.0, 1.0, float('nan')]",
}

ZEROS = {"int": "0", "float": "0.0", "bool": "False", "complex": "0 + 0j"}


#: Uses the device in four ways, and prints the exception of each.
FURTHER = """
for use in (torch.accelerator.synchronize, lambda: kept.cpu(), lambda: kept.add_(1), lambda: kept.copy_(kept + 1)):
    try:
        use()
        print("went through", flush=True)
    except RuntimeError as error:
        print(type(error).__name__, flush=True)
"""


def attempt(script: str, device: torch.device, environ: Mapping[str, str] | None = None) -> children.Ended:
    """Run a script beside a second process, and check that the second one is not affected."""
    ended = children.fork(BYSTANDER + HARNESS + script, device, environ=environ)
    *said, last = ended.out.splitlines() or [""]
    assert last == "unharmed", ended.text()[-2000:]
    return children.Ended(ended.status, "\n".join(said), ended.err)


def failed(device: torch.device, expression: str, further: str = "") -> children.Ended:
    """Run a process in which the expression must make the device fail, but not immediately.

    `further` is code that runs afterwards, with a tensor `kept`.
    """
    ended = attempt(f"kept = torch.ones(4, device=DEVICE)\ntell(lambda: {expression})\n{further}", device)
    said = ended.out.splitlines()
    assert TOLD.search(ended.text()), f"the output does not mention the assertion: {ended.text()[-2000:]!r}"
    assert "nothing" not in said, "the device did not fail, although it was synchronized"
    if ended.status == 0:
        assert any(line.startswith("raised ") for line in said), said
    return ended


@pytest.mark.covers("test_cuda::TestCuda::test_index_out_of_bounds_exception_cuda")
@pytest.mark.parametrize("expression", FAILING.values(), ids=FAILING.keys())
def test_device_assert_for_an_index_past_the_end_fails_the_device(device: torch.device, expression: str) -> None:
    """An out-of-bounds index fails an assertion in the kernel.

    The error is raised at the synchronize at the latest, or the process ends with the message on standard error.
    Another process on the device is not affected.
    """
    failed(device, expression)


@pytest.mark.covers("test_cuda::TestCuda::test_index_out_of_bounds_exception_cuda")
def test_device_assert_passes_an_index_within_bounds(device: torch.device) -> None:
    """Control: reading the first and the last element does not fail."""
    read = "torch.arange(4, device=DEVICE)[torch.tensor([3, 0, -4], device=DEVICE)]"
    ended = attempt(f"tell(lambda: print({read}.tolist()))", device)

    assert ended.lines() == ["[3, 0, 0]", "launched", "nothing", "works 6.0"]


def test_device_assert_makes_every_further_use_fail(device: torch.device) -> None:
    """After a device-side assertion, every further use of the device in that process raises torch.AcceleratorError."""
    ended = failed(device, FAILING["index"], FURTHER)
    if ended.status == 0:
        said = ended.out.splitlines()
        assert any(line.startswith("raised AcceleratorError / ") for line in said)
        assert said[-5].startswith("unusable AcceleratorError / "), said
        assert said[-4:] == ["AcceleratorError"] * 4


@pytest.mark.requires(asynchronous=True)
def test_device_assert_does_not_delay_the_launch(device: torch.device) -> None:
    """The call that fails an assertion returns immediately behind queued work, and the synchronize raises."""
    ended = attempt(
        """
x, wrong = torch.zeros(4, device=DEVICE), torch.tensor([11], device=DEVICE)
big = torch.ones(1 << 22, device=DEVICE)
torch.accelerator.synchronize()
def attempt():
    for _ in range(200):
        big.mul_(1.0)
    x.index_select(0, wrong)
tell(attempt)
""",
        device,
        environ={"CUDA_LAUNCH_BLOCKING": "0"},
    )

    assert TOLD.search(ended.text())
    said = ended.out.splitlines()
    assert said[0] == "launched"
    if ended.status == 0:
        assert said[1].startswith("raised "), said


@pytest.mark.covers("test_cuda::TestCuda::test_multinomial_invalid_probs_cuda")
@pytest.mark.parametrize("probabilities", PROBABILITIES.values(), ids=PROBABILITIES.keys())
def test_multinomial_refuses_negative_infinite_and_nan_probabilities(device: torch.device, probabilities: str) -> None:
    """`multinomial` with a negative, infinite or NaN probability raises, or fails an assertion.

    It never returns a sample.
    """
    drawn = f"torch.multinomial(torch.tensor({probabilities}, device=DEVICE), 2, True)"
    ended = attempt(f"tell(lambda: print({drawn}.tolist()))", device)

    assert TOLD.search(ended.text()) or re.search(r"inf.*nan.*< 0", ended.text()), ended.text()[-2000:]
    assert "nothing" not in ended.out.splitlines()
    assert "launched" not in ended.out.splitlines()


@pytest.mark.covers("test_cuda::TestCuda::test_fixed_cuda_assert_async")
@pytest.mark.parametrize("zero", ZEROS.values(), ids=ZEROS.keys())
def test_assert_async_of_zero_fails(device: torch.device, zero: str) -> None:
    """`torch._assert_async` of zero, of any dtype, fails at the synchronize at the latest."""
    ended = attempt(f"tell(lambda: torch._assert_async(torch.tensor({zero}, device=DEVICE)))", device)

    assert TOLD.search(ended.text()) or "nonzero value" in ended.text(), ended.text()[-2000:]
    assert "nothing" not in ended.out.splitlines()


@pytest.mark.covers("test_cuda::TestCuda::test_fixed_cuda_assert_async")
def test_assert_async_of_anything_else_holds(device: torch.device) -> None:
    """`torch._assert_async` of a nonzero value, of any dtype, has no effect."""
    for value in (1, -1, 0.1, -0.1, True, 0.1j, float("nan"), float("inf")):
        torch._assert_async(torch.tensor(value, device=device))
    torch.accelerator.synchronize(device)


@pytest.mark.covers("test_cuda::TestCuda::test_fixed_cuda_assert_async")
@pytest.mark.parametrize(("values", "said"), [([], "no values"), ([0, 0], "more than one value")])
def test_assert_async_needs_one_value(device: torch.device, values: list[int], said: str) -> None:
    """`torch._assert_async` of an empty tensor or of several values raises.

    On CUDA the call itself raises, and the device works.
    """
    ended = attempt(f"tell(lambda: torch._assert_async(torch.tensor({values}, device=DEVICE)))", device)

    assert said in ended.text(), ended.text()[-2000:]
    assert "nothing" not in ended.out.splitlines()
    if device.type == "cuda":
        assert ended.lines()[-1] == "works 6.0"


@pytest.mark.requires(device="cuda", torch=">=2.12")
@pytest.mark.covers("test_cuda::TestCuda::test_embedding_renorm_negative_indices")
def test_embedding_max_norm_at_a_negative_index_is_an_error(device: torch.device) -> None:
    """`embedding` with `max_norm` and a negative index raises, at the synchronize at the latest.

    Otherwise it would write to memory before the table. The CPU does so, and the case is therefore for CUDA only.
    """
    ended = attempt(
        """
table = torch.full((4, 2), 10.0, device=DEVICE)
tell(lambda: torch.embedding_renorm_(table, torch.tensor([-1, 1], device=DEVICE), 1.0, 2.0))
""",
        device,
    )

    assert "nothing" not in ended.out.splitlines()
    assert TOLD.search(ended.text()) or re.search(r"(?i)index|range|bound|negative", ended.text()), ended.text()[-2000:]

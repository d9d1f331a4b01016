"""Reproducibility: fifty repetitions, or another device of the same model, give bitwise equal results.

No tolerance is needed, because accuracy is not under test. Other work of other sizes runs between the repetitions, so
that memory and timing differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

REPEATS = 50

Work = Callable[[torch.Tensor], torch.Tensor]


def backward(x: torch.Tensor, function: Work) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_(requires_grad=True)
    function(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def kernel(x: torch.Tensor) -> torch.Tensor:
    """Return weights for a convolution, the same at each call."""
    return x[:8, :27].reshape(8, 3, 3, 3)


def images(x: torch.Tensor) -> torch.Tensor:
    return x[:, : 3 * 20].reshape(-1, 3, 4, 5)


#: Operations that are reproducible by default, on one device and stream.
STEADY: dict[str, Work] = {
    "matmul": lambda x: x @ x.t(),
    "matvec": lambda x: x @ x[0],
    "batched": lambda x: torch.bmm(x.view(4, -1, x.shape[1]), x.view(4, -1, x.shape[1]).mT),
    "half_matmul": lambda x: x.half() @ x.half().t(),
    "sum": lambda x: x.sum(),
    "sum_rows": lambda x: x.sum(1),
    "sum_columns": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "var": lambda x: x.var(0),
    "cumprod": lambda x: x.cumprod(1),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "sort": lambda x: x.sort(dim=1).values,
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "matmul_backward": lambda x: backward(x, lambda leaf: (leaf @ leaf.t()).tanh()),
}
#: Operations that are reproducible with deterministic algorithms.
ASKED: dict[str, Work] = {
    "convolution": lambda x: F.conv2d(images(x), kernel(x), padding=1),
    "convolution_backward": lambda x: backward(x, lambda leaf: F.conv2d(images(leaf), kernel(leaf), padding=1).tanh()),
    "index_add": lambda x: x.new_zeros(7).index_add_(0, torch.arange(x.numel(), device=x.device) % 7, x.flatten()),
    "index_put": lambda x: x.new_zeros(7).index_put_(
        (torch.arange(x.numel(), device=x.device) % 7,), x.flatten(), accumulate=True
    ),
    "scatter_add": lambda x: x.new_zeros(7).scatter_add_(0, torch.arange(x.numel(), device=x.device) % 7, x.flatten()),
    "embedding_backward": lambda x: backward(
        x, lambda leaf: F.embedding(torch.arange(5000, device=x.device) % 11, leaf).tanh()
    ),
    "cumsum": lambda x: x.cumsum(0),
}


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable deterministic algorithms, with the workspace that cuBLAS needs for them."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before > 0, warn_only=before == 1)  # also sets the compiler's state


def again(device: torch.device, work: Work) -> None:
    """Repeat the work with other work in between, and compare every result with the first."""
    x = torch.randn(64, 100).to(device)
    first = work(x)
    for repeat in range(REPEATS):
        between = torch.randn(17 + 5 * repeat, device=device)
        between.sum()
        found = work(x)
        assert torch.equal(found, first), f"repetition {repeat + 1} differs"


def test_fft_that_is_repeated_is_the_transform(device: torch.device) -> None:
    """The transform whose bits are compared equals NumPy's within 24*u*log2(4n) of its norm (`suites/libraries`)."""
    x = torch.randn(64, 100)

    found = torch.view_as_complex(STEADY["fft"](x.to(device)).cpu()).numpy()

    expected = np.fft.fft(x.double().numpy())
    assert np.linalg.norm(found - expected) <= 24 * 8.7 * 2.0**-24 * np.linalg.norm(expected)


@pytest.mark.parametrize("work", STEADY.values(), ids=STEADY.keys())
def test_repeated_fifty_times_gives_the_same_bits(device: torch.device, work: Work) -> None:
    """Fifty repetitions of an operation without atomic additions, on one device and stream, are bitwise equal."""
    again(device, work)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("work", [*STEADY.values(), *ASKED.values()], ids=[*STEADY, *ASKED])
def test_use_deterministic_algorithms_repeated_gives_the_same_bits(device: torch.device, work: Work) -> None:
    """With deterministic algorithms, operations that add in any order by default are bitwise equal too."""
    again(device, work)


@pytest.mark.requires(accelerator=True, devices=2)
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("work", [*STEADY.values(), *ASKED.values()], ids=[*STEADY, *ASKED])
def test_use_deterministic_algorithms_devices_of_one_model_agree(device: torch.device, work: Work) -> None:
    """Two devices of one model give bitwise equal results with deterministic algorithms."""
    there = torch.device(device.type, 1)
    module = torch.get_device_module(device)
    if module.get_device_name(device) != module.get_device_name(there):
        pytest.skip("the two devices are of different models")
    x = torch.randn(64, 100)

    assert torch.equal(work(x.to(device)).cpu(), work(x.to(there)).cpu())


def test_sum_in_another_order_differs(device: torch.device) -> None:
    """Control: sums of these numbers in ten orders are not all equal."""
    x = torch.randn(1000)
    sums = set()
    for _ in range(10):
        total = torch.zeros(())
        for value in x[torch.randperm(1000)]:
            total = total + value
        sums.add(total.item())

    assert len(sums) > 1
    assert x.to(device).sum().item() == pytest.approx(sums.pop(), rel=1e-3, abs=1e-3)

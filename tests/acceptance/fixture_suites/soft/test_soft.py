"""Cases on the software device: good ones, and those that break it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

EXPECTED = {
    "test_is_given_its_own_device": "passed",
    "test_starts_from_its_seed[1]": "passed",
    "test_starts_from_its_seed[2]": "passed",
    "test_streams_and_their_threads": "passed",
    "test_two": "passed",
    "test_uses_one_after_the_other": "passed",
    "test_pins": "passed",
    "test_meets_no_promise_of_a_gpu": "gated: cuda_graphs: wanted True, found False (the device is a software device)",
    "test_needs_a_gpu": "gated: device: wanted cuda, found soft",
    "test_fails": "failed: assert 3.0 == 4",
    "test_bad_index": "poisoned: left its device unusable",
    "test_after_a_bad_index": "passed",
    "test_leaves_a_tensor": "leaked",
    "test_leaves_another_device_chosen": "contaminated",
}

LEFT: list[Any] = []
SEEN: list[float] = []


@pytest.mark.requires(accelerator=True)
def test_is_given_its_own_device(device: torch.device) -> None:
    """The case sees the device leased to it, and no GPU."""
    soft: Any = getattr(torch, "soft")  # noqa: B009
    assert device == torch.device("soft", 0)
    assert soft.device_count() == 1
    assert soft.uuid(0) == os.environ["SOFT_VISIBLE_DEVICES"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    print("sees", soft.uuid(0), "injected", os.environ.get("SOFT_INJECT"))


@pytest.mark.parametrize("_", [1, 2])
def test_starts_from_its_seed(_: int, device: torch.device, case_seed: int) -> None:
    drawn = torch.rand(4, device=device).cpu()
    torch.manual_seed(case_seed)
    assert torch.equal(torch.rand(4, device=device).cpu(), drawn)


def test_streams_and_their_threads(device: torch.device) -> None:
    """The device's threads and caches are not attributed to the first case that uses it."""
    for _ in range(3):
        stream = torch.Stream(device)
        with stream:
            product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
        stream.synchronize()
    assert product.sum().item() == 64**3


@pytest.mark.requires(accelerator=True, devices=2)
def test_two(device: torch.device) -> None:
    other = torch.device("soft", 1)
    assert torch.ones(3, device=device).to(other).sum().item() == 3
    print("sees", os.environ["SOFT_VISIBLE_DEVICES"])


def test_uses_one_after_the_other(device: torch.device) -> None:
    kept = torch.zeros(1 << 20, device=device)
    for _ in range(10):
        kept = kept + 1
    assert kept.sum().item() == 10 * (1 << 20)


def test_pins(device: torch.device) -> None:
    pinned = torch.ones(1 << 16).pin_memory()
    assert pinned.is_pinned()
    assert pinned.to(device, non_blocking=True).sum().item() == 1 << 16


@pytest.mark.requires(cuda_graphs=True)
def test_meets_no_promise_of_a_gpu() -> None:
    raise AssertionError("this must not run")


@pytest.mark.requires(device="cuda")
def test_needs_a_gpu() -> None:
    raise AssertionError("this must not run")


def test_fails(device: torch.device) -> None:
    assert torch.ones(3, device=device).sum().item() == 4


def test_bad_index(device: torch.device) -> None:
    """The case does not wait, so the error arrives after it."""
    torch.ones(4, device=device).index_select(0, torch.tensor([7]).to(device))


def test_after_a_bad_index(device: torch.device) -> None:
    assert torch.ones(3, device=device).sum().item() == 3


def test_leaves_a_tensor(device: torch.device) -> None:
    LEFT.append(torch.ones(1000, device=device))


@pytest.mark.requires(accelerator=True, devices=2)
def test_leaves_another_device_chosen() -> None:
    torch.accelerator.set_device_index(1)

"""A suspicion makes a case run again. State that this run changes is restored, so the next case is not blamed."""

import torch

EXPECTED = {"test_lazy": "passed", "test_next": "passed"}

KEPT: list[torch.Tensor] = []


def test_lazy() -> None:
    if KEPT:
        torch.set_default_dtype(torch.float64)
    else:
        KEPT.append(torch.zeros(1 << 20))


def test_next() -> None:
    assert torch.get_default_dtype() == torch.float32

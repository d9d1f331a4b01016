"""CPU storages cannot be placed at an address."""

from __future__ import annotations

import pytest
import torch

from ._torch_private import resize_at


@pytest.mark.requires(torch=">=2.13")
def test_resize_with_addr_is_refused_on_the_cpu() -> None:
    """A CPU storage raises and is not changed."""
    x = torch.full((16,), 3, dtype=torch.uint8)

    with pytest.raises(RuntimeError, match="only supported on CUDA"):
        resize_at(x.untyped_storage(), 32, x.data_ptr())

    assert x.tolist() == [3] * 16

"""A kernel of Triton's in its interpreter (TRITON_INTERPRET=1) works on tensors of a device."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Add two vectors."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(out + places, tl.load(x + places, mask=mask) + tl.load(y + places, mask=mask), mask=mask)


def main() -> None:
    """Run the kernel over 1000 elements."""
    x, y = torch.randn(2, 1000, device="cuda")
    out = torch.empty_like(x)
    add[(triton.cdiv(1000, 256),)](x, y, out, 1000, BLOCK=256)
    torch.testing.assert_close(out, x + y)
    print("done")


if __name__ == "__main__":
    main()

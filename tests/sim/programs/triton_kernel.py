"""A kernel of Triton, tuned, on a stream, in a CUDA graph, and in a compiled function."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, unused-ignore"
# Triton's compiler takes no annotations but its own.

from __future__ import annotations

import torch
import triton
import triton.language as tl

N = 1000


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (256, 512)], key=["n"])
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    """Add two vectors."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(out + places, tl.load(x + places, mask=mask) + tl.load(y + places, mask=mask), mask=mask)


def total(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the sum of two vectors."""
    out = torch.empty_like(x)
    add[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](x, y, out, N)
    return out


def main() -> None:
    """Run the kernel over 1000 elements in each way."""
    x, y = torch.randn(2, N, device="cuda")
    torch.testing.assert_close(total(x, y), x + y)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        there = total(x, y)
    side.synchronize()
    torch.testing.assert_close(there, x + y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = total(x, y)
    x.fill_(3)
    graph.replay()
    torch.testing.assert_close(captured, x + y)
    torch.testing.assert_close(torch.compile(lambda: total(x.sin(), y).cos())(), (x.sin() + y).cos())
    print("done")


if __name__ == "__main__":
    main()

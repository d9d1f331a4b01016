"""Kernels that are compiled at run time: torch.cuda.jiterator, and CUDA C++ in a string, in a graph and on a stream."""

from __future__ import annotations

from typing import Any

import torch

cuda: Any = torch.cuda  # partly untyped

SMOOTH = """
extern "C" __global__ void smooth(const float* x, float* out, int n) {
  extern __shared__ float part[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x + 1] = i < n ? x[i] : 0;
  if (threadIdx.x == 0) part[0] = i > 0 ? x[i - 1] : 0;
  if (threadIdx.x == blockDim.x - 1) part[blockDim.x + 1] = i + 1 < n ? x[i + 1] : 0;
  __syncthreads();
  if (i < n) out[i] = (part[threadIdx.x] + part[threadIdx.x + 1] + part[threadIdx.x + 2]) / 3;
}"""

gelu = cuda.jiterator._create_jit_fn(
    "template <typename T> T gelu(T x, T scale) { return scale * x * T(0.5) * (T(1) + erf(x * T(0.70710678))); }",
    scale=1,
)


def main() -> None:
    """Compare each kernel with torch's operators."""
    torch.manual_seed(0)
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(gelu(x, scale=2), torch.nn.functional.gelu(x) * 2)
    half = x.half()
    torch.testing.assert_close(gelu(half), torch.nn.functional.gelu(half), rtol=5e-3, atol=5e-3)

    smooth, out = cuda._compile_kernel(SMOOTH, "smooth"), torch.empty_like(x)

    def run() -> None:
        smooth((8, 1, 1), (128, 1, 1), (x, out, 1000), shared_mem=4 * 130)

    wanted = torch.nn.functional.avg_pool1d(x[None], 3, 1, 1)[0]
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        run()
    side.synchronize()
    torch.testing.assert_close(out, wanted)

    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        run()
        out.mul_(2)
    x.fill_(3)
    graph.replay()
    assert out[1:-1].eq(6).all()
    print("done", flush=True)


if __name__ == "__main__":
    main()

"""An extension with kernels of its own, which torch.utils.cpp_extension compiles by nvcc: forward and backward."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

template <typename T, int THREADS>
__global__ void row_sums(const T* __restrict__ x, T* sums, int columns) {
  __shared__ T part[THREADS];
  T sum = 0;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += x[blockIdx.x * columns + i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

template <typename T>
__global__ void spread(const T* sums, T* x, int columns) {
  x[blockIdx.x * columns + threadIdx.x] = sums[blockIdx.x];
}

torch::Tensor sum_rows(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.dim() == 2, "expected a contiguous matrix on a GPU");
  const at::cuda::CUDAGuard guard(x.device());
  auto sums = torch::empty({x.size(0)}, x.options());
  constexpr int threads = 64;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "sum_rows", [&] {
    row_sums<scalar_t, threads><<<x.size(0), threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), sums.data_ptr<scalar_t>(), x.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return sums;
}

torch::Tensor spread_rows(torch::Tensor sums, int64_t columns) {
  const at::cuda::CUDAGuard guard(sums.device());
  auto x = torch::empty({sums.size(0), columns}, sums.options());
  AT_DISPATCH_FLOATING_TYPES(sums.scalar_type(), "spread_rows", [&] {
    spread<<<sums.size(0), columns, 0, at::cuda::getCurrentCUDAStream()>>>(
        sums.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), static_cast<int>(columns));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return x;
}
"""
DECLARATIONS = (
    "torch::Tensor sum_rows(torch::Tensor x); torch::Tensor spread_rows(torch::Tensor sums, int64_t columns);"
)


def main() -> None:
    """Compile the extension, and compare its operators with torch's."""
    with tempfile.TemporaryDirectory() as folder:
        extension: Any = load_inline(
            "rows", DECLARATIONS, SOURCE, functions=["sum_rows", "spread_rows"], build_directory=folder
        )

        class SumRows(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> Any:
                ctx.columns = x.size(1)
                return extension.sum_rows(x)

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> Any:
                return extension.spread_rows(grads[0].contiguous(), ctx.columns)

        for dtype in (torch.float32, torch.float64):
            x = torch.randn(7, 100, device="cuda", dtype=dtype, requires_grad=True)
            sums: Any = SumRows.apply(x)
            torch.testing.assert_close(sums, x.sum(1))
            sums.square().sum().backward()
            torch.testing.assert_close(x.grad, (2 * x.sum(1, keepdim=True)).expand_as(x))
    print("done", flush=True)


if __name__ == "__main__":
    main()

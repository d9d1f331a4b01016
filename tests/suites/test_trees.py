"""What the normaliser of profiler trees folds: names that differ between runs, machines and releases become one."""

from __future__ import annotations

import pytest

from suites.profiler.trees import fold_activity, fold_name


@pytest.mark.parametrize(
    ("raw", "folded"),
    [
        ("torch/_tensor.py(1508): __torch_function__", "torch/_tensor.py: __torch_function__"),
        ("/a/lib/python3.11/site-packages/torch/_ops.py(874): __call__", "torch/_ops.py: __call__"),
        ("/home/x/t.py(3): f", "t.py: f"),
        ("t.py(3): <genexpr>", "t.py: <genexpr>"),
        ("<frozen importlib._bootstrap>(1207): _h", "<frozen importlib._bootstrap>: _h"),
        ("<built-in method add of type object at 0x7fe3514cea40>", "<built-in method add of type>"),
        ("<built-in method  of PyCapsule object at 0x7f>", "<built-in method  of pybind11>"),
        ("autograd::engine::evaluate_function: PowBackward0", "autograd::engine::evaluate_function: PowBackward0"),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
    ],
)
def test_fold_name(raw: str, folded: str) -> None:
    assert fold_name(raw) == folded


@pytest.mark.parametrize(
    ("raw", "folded"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, f(X&)::{lambda()#2}::operator()()>(int, A<B, 2ul>)",
            "void at::native::vectorized_elementwise_kernel",
        ),
        (
            "void at::native::(anonymous namespace)::foo_kernel<float>(int*)",
            "void at::native::(anonymous namespace)::foo_kernel",
        ),
        ("spin_kernel(long)", "spin_kernel"),
        ("sm80_xmma<a<b>, c>", "sm80_xmma"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("cudaLaunchKernel", "cudaLaunchKernel"),
    ],
)
def test_fold_activity(raw: str, folded: str) -> None:
    assert fold_activity(raw) == folded

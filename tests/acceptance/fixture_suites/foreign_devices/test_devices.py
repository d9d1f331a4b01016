"""A file like torch's own tests: classes instantiated per device, and a main guard that runs them."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# ruff: noqa: PT009

from __future__ import annotations

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests

EXPECTED = {
    "TestCaptured::test_captures_times_1": "failed",
    "TestCaptured::test_captures_times_2": "failed",
    "TestGradientsCPU::test_dtype_cpu_float32": "passed",
    "TestGradientsCPU::test_dtype_cpu_float64": "passed",
    "TestGradientsCPU::test_square_cpu": "passed",
    "TestGradientsCPU::test_wrong_cpu": "failed: Tensor-likes are not close",
}


class TestGradients(TestCase):
    def test_square(self, device: str) -> None:
        x = torch.arange(3.0, device=device, requires_grad=True)
        (x * x).sum().backward()
        self.assertEqual(x.grad, 2 * x.detach())

    @dtypes(torch.float32, torch.float64)
    def test_dtype(self, device: str, dtype: torch.dtype) -> None:
        self.assertEqual(torch.ones(2, device=device, dtype=dtype).sum().item(), 2)

    def test_wrong(self, device: str) -> None:
        self.assertEqual(torch.ones(2, device=device), torch.zeros(2, device=device))


class TestCaptured(TestCase):
    @parametrize("times", [1, 2])
    def test_captures(self, times: int) -> None:
        """Pass if each backward pass is captured, and fail if not."""
        from torch._dynamo.utils import counters

        before = counters["compiled_autograd"]["captures"]
        for number in range(1, times + 1):
            x = torch.ones(number, number, requires_grad=True)
            x.sin().sum().backward()
        self.assertGreater(counters["compiled_autograd"]["captures"], before)


instantiate_device_type_tests(TestGradients, globals())
instantiate_parametrized_tests(TestCaptured)

if __name__ == "__main__":
    run_tests()

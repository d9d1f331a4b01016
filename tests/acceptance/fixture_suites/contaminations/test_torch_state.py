"""Cases that change the state of torch. Each report has the old and the new value."""

from __future__ import annotations

import importlib
import unittest.mock
from typing import Any

import torch

EXPECTED = {
    "test_default_dtype": "contaminated: did not restore the default dtype (now torch.float64, was torch.float32)",
    "test_after_dtype": "passed",
    "test_default_device": "contaminated: did not restore the default device (now device(type='meta'), was None)",
    "test_after_device": "passed",
    "test_grad_mode": "contaminated: did not restore grad mode (now False, was True)",
    "test_inference_mode": "contaminated: did not restore grad mode (now False, was True)",
    "test_after_modes": "passed",
    "test_autocast": "contaminated: did not restore autocast on cpu (now True, was False)",
    "test_autocast_dtype": "contaminated: did not restore the dtype of autocast on cpu (now torch.float16, was torch.",
    "test_deterministic": "contaminated: did not restore deterministic algorithms (now True, was False)",
    "test_matmul_precision": "contaminated: did not restore fp32_precision of ",
    "test_cudnn_benchmark": "contaminated: did not restore torch.backends.cudnn.benchmark (now True, was False)",
    "test_threads": "contaminated: did not restore the number of intra-op threads (now ",
    "test_anomaly": "contaminated: did not restore anomaly mode (now True, was False)",
    "test_print_options": "contaminated: did not restore the print options of torch (now {'precision': 2",
    "test_saved_tensor_hooks": "contaminated: did not restore the default saved-tensor hooks (added ",
    "test_profiler": "contaminated: did not restore the active profiler (now ",
    "test_dynamo_config": "contaminated: did not restore torch._dynamo.config.verbose (now True, was False)",
    "test_function_patched": "contaminated: did not restore torch.add (now a unittest.mock.MagicMock, was ",
    "test_method_patched": "contaminated: did not restore torch.Tensor.relu (now ",
    "test_hook_of_every_module": "contaminated: did not restore the hooks of torch.nn.modules.module._global_forward_",
    "test_tensor_kept_as_well": "contaminated: did not restore the default dtype (now torch.float16, was torch.float",
    "test_that_fails_as_well": "failed: on purpose",
    "test_after_all": "passed",
}
NOTES = {
    "test_inference_mode": "also contaminated: did not restore inference mode (now True, was False)",
    "test_that_fails_as_well": "also contaminated: did not restore the default dtype (now torch.bfloat16, was torch.",
}

KEPT: list[object] = []


def test_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def test_after_dtype() -> None:
    assert torch.zeros(1).dtype == torch.float32


def test_default_device() -> None:
    torch.set_default_device("meta")


def test_after_device() -> None:
    assert torch.zeros(1).sum().item() == 0


def test_grad_mode() -> None:
    torch.set_grad_enabled(False)


def test_inference_mode() -> None:
    mode = torch.inference_mode()
    mode.__enter__()
    KEPT.append(mode)


def test_after_modes() -> None:
    torch.ones(2, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


def test_autocast() -> None:
    torch.set_autocast_enabled("cpu", True)


def test_autocast_dtype() -> None:
    torch.set_autocast_dtype("cpu", torch.float16)


def test_deterministic() -> None:
    torch.use_deterministic_algorithms(True)


def test_matmul_precision() -> None:
    torch.set_float32_matmul_precision("high")


def test_cudnn_benchmark() -> None:
    torch.backends.cudnn.benchmark = True


def test_threads() -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


def test_anomaly() -> None:
    torch.autograd.set_detect_anomaly(True)


def test_print_options() -> None:
    torch.set_printoptions(precision=2)  # type: ignore[no-untyped-call]


def test_saved_tensor_hooks() -> None:
    torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()


def test_profiler() -> None:
    profile = torch.autograd.profiler.profile(use_kineto=True)
    profile.__enter__()  # type: ignore[no-untyped-call]
    KEPT.append(profile)


def test_dynamo_config() -> None:
    config: Any = importlib.import_module("torch._dynamo.config")
    config.verbose = True


def test_function_patched() -> None:
    unittest.mock.patch("torch.add").start()


def test_method_patched() -> None:
    tensor: Any = torch.Tensor
    tensor.relu = lambda self: self


def test_hook_of_every_module() -> None:
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)


def test_tensor_kept_as_well() -> None:
    KEPT.append(torch.zeros(10))
    torch.set_default_dtype(torch.float16)


def test_that_fails_as_well() -> None:
    torch.set_default_dtype(torch.bfloat16)
    raise AssertionError("on purpose")


def test_after_all() -> None:
    assert KEPT == []
    assert torch.add(torch.ones(1), -2).relu().item() == 0

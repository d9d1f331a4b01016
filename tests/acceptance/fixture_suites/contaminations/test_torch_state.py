"""Cases that leave torch other than they found it. Each is told with the new and the old value."""

from __future__ import annotations

import importlib
import unittest.mock
from typing import Any

import torch

EXPECTED = {
    "test_default_dtype": "contaminated: left the default dtype at torch.float64 (was torch.float32)",
    "test_after_dtype": "passed",
    "test_default_device": "contaminated: left the default device at device(type='meta') (was None)",
    "test_after_device": "passed",
    "test_grad_mode": "contaminated: left grad mode at False (was True)",
    "test_inference_mode": "contaminated: left grad mode at False (was True)",
    "test_after_modes": "passed",
    "test_autocast": "contaminated: left autocast on cpu at True (was False)",
    "test_autocast_dtype": "contaminated: left the dtype of autocast on cpu at torch.float16 (was torch.bfloat16)",
    "test_deterministic": "contaminated: left deterministic algorithms at True (was False)",
    "test_matmul_precision": "contaminated: left the precision of float32 for ",
    "test_cudnn_benchmark": "contaminated: left cuDNN's benchmark mode at True (was False)",
    "test_threads": "contaminated: left the number of threads at ",
    "test_anomaly": "contaminated: left anomaly mode at True (was False)",
    "test_print_options": "contaminated: left the print options of torch at {'precision': 2",
    "test_saved_tensor_hooks": "contaminated: left the default saved-tensor hooks with ",
    "test_profiler": "contaminated: left the running profiler at ",
    "test_dynamo_config": "contaminated: left torch._dynamo.config.verbose at True (was False)",
    "test_function_patched": "contaminated: left torch.add at a unittest.mock.MagicMock (was ",
    "test_method_patched": "contaminated: left torch.Tensor.relu at ",
    "test_hook_of_every_module": "contaminated: left the hooks of torch.nn.modules.module._global_forward_hooks with ",
    "test_tensor_kept_as_well": "contaminated: left the default dtype at torch.float16 (was torch.float32)",
    "test_that_fails_as_well": "failed: on purpose",
    "test_after_all": "passed",
}
NOTES = {
    "test_inference_mode": "also contaminated: left inference mode at True (was False)",
    "test_that_fails_as_well": "also contaminated: left the default dtype at torch.bfloat16 (was torch.float32)",
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

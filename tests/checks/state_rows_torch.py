"""Changes to the state of torch that a case must restore. Each row makes a real change."""

from __future__ import annotations

import importlib
import unittest.mock
import warnings
from typing import Any

from tests.checks.state_table import KEPT, OF_INDUCTOR, contaminates, passing_modes


def enter_rows() -> None:
    """Fill the table. It is a function, since pytest must not import torch."""
    # Untyped, since torch's types do not allow much of what the rows do.
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    dispatch, function = passing_modes()

    @contaminates("did not restore grad mode (now False, was True)")
    def grad_mode() -> None:
        torch.set_grad_enabled(False)

    @contaminates(
        "did not restore inference mode (now True, was False)",
        "did not restore grad mode (now False, was True)",
        "did not restore forward-mode differentiation (now False, was True)",
        "did not restore multithreading in autograd (now False, was True)",
        once=True,
    )
    def inference_mode() -> None:
        mode = torch.inference_mode()
        mode.__enter__()
        KEPT.append(mode)

    @contaminates("did not restore autocast on cpu (now True, was False)")
    def autocast() -> None:
        torch.set_autocast_enabled("cpu", True)

    @contaminates("did not restore the dtype of autocast on cpu (now torch.float16, was torch.bfloat16)")
    def autocast_dtype() -> None:
        torch.set_autocast_dtype("cpu", torch.float16)

    @contaminates("did not restore the autocast cache (now False, was True)")
    def autocast_cache() -> None:
        torch.set_autocast_cache_enabled(False)

    @contaminates("did not restore the nesting depth of autocast (now 2, was 0)")
    def autocast_depth() -> None:
        torch.autocast_increment_nesting()
        torch.autocast_increment_nesting()

    @contaminates("did not restore the default dtype (now torch.float64, was torch.float32)")
    def default_dtype() -> None:
        torch.set_default_dtype(torch.float64)

    @contaminates("did not restore the default device (now device(type='meta'), was None)")
    def default_device() -> None:
        torch.set_default_device("meta")

    @contaminates("did not restore deterministic algorithms (now True, was False)", OF_INDUCTOR)
    def deterministic() -> None:
        torch.use_deterministic_algorithms(True)

    @contaminates(
        "did not restore deterministic algorithms (now True, was False)",
        "did not restore warn_only of deterministic algorithms (now True, was False)",
        OF_INDUCTOR,
    )
    def deterministic_with_warnings() -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)

    @contaminates("did not restore deterministic filling of uninitialised memory (now False, was True)")
    def fill_uninitialised() -> None:
        torch.utils.deterministic.fill_uninitialized_memory = False

    @contaminates("did not restore fp32_precision of matmul in the cuda backend (now 'tf32', was 'none')")
    def tf32_of_matmul() -> None:
        torch.backends.cuda.matmul.fp32_precision = "tf32"

    @contaminates("did not restore fp32_precision of conv in the cuda backend (now 'ieee', was 'tf32')")
    def tf32_of_convolutions() -> None:
        torch.backends.cudnn.conv.fp32_precision = "ieee"

    @contaminates("did not restore fp32_precision of …", "…", once=True)
    def matmul_precision() -> None:
        torch.set_float32_matmul_precision("high")

    @contaminates("did not restore torch.backends.cudnn.benchmark (now True, was False)")
    def cudnn_benchmark() -> None:
        torch.backends.cudnn.benchmark = True

    @contaminates("did not restore torch.backends.cudnn.deterministic (now True, was False)")
    def cudnn_deterministic() -> None:
        torch.backends.cudnn.deterministic = True

    @contaminates("did not restore torch.backends.cudnn.enabled (now False, was True)")
    def cudnn_enabled() -> None:
        torch.backends.cudnn.enabled = False

    @contaminates(
        "did not restore reduced-precision reductions of cuBLAS in float16 (now (False, True), was (True, True))",
        once=True,
    )
    def cublas_reductions() -> None:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    @contaminates("did not restore torch.backends.mkldnn.enabled (now False, was True)")
    def mkldnn() -> None:
        torch._C._set_mkldnn_enabled(False)

    @contaminates("did not restore flash attention (now False, was True)")
    def flash_attention() -> None:
        torch.backends.cuda.enable_flash_sdp(False)

    @contaminates("did not restore the number of intra-op threads (now 3, was 2)")
    def threads() -> None:
        torch.set_num_threads(3)

    @contaminates("did not restore anomaly mode (now True, was False)")
    def anomaly() -> None:
        torch.autograd.set_detect_anomaly(True)

    @contaminates("did not restore the modes of __torch_dispatch__ (added a …", once=True)
    def dispatch_mode() -> None:
        dispatch().__enter__()

    @contaminates("did not restore the modes of __torch_function__ (added a …", once=True)
    def function_mode() -> None:
        function().__enter__()

    @contaminates("did not restore the default saved-tensor hooks (added …", once=True)
    def saved_tensor_hooks() -> None:
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()

    @contaminates(
        "did not restore the active profiler (now <ActiveProfilerType.KINETO: 2>, was <ActiveProfilerType.NONE: 0>)",
        once=True,
    )
    def profiler() -> None:
        profile = torch.autograd.profiler.profile(use_kineto=True)
        profile.__enter__()
        KEPT.append(profile)

    @contaminates("did not restore torch._dynamo.config.verbose (now True, was False)", once=True)
    def configuration_of_a_module_first_imported() -> None:
        importlib.import_module("torch._dynamo")

        torch._dynamo.config.verbose = True

    @contaminates("did not restore torch._functorch.config.debug_assert (now True, was False)", once=True)
    def configuration_of_functorch() -> None:
        importlib.import_module("torch._functorch.config")

        torch._functorch.config.debug_assert = True

    @contaminates("did not restore torch._inductor.config.aot_inductor.package (now True, was False)", once=True)
    def configuration_below_a_heading() -> None:
        importlib.import_module("torch._inductor.config")

        torch._inductor.config.aot_inductor.package = True

    @contaminates("did not restore the stance of torch.compile (now …", once=True)
    def compiler_stance() -> None:
        torch.compiler.set_stance("force_eager")

    @contaminates("did not restore the operator state_test::twice (now 'registered', was absent)", once=True)
    def custom_operator() -> None:
        def twice(x):  # type: ignore[no-untyped-def]
            return 2 * x

        twice.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
        KEPT.append(torch.library.custom_op("state_test::twice", twice, mutates_args=()))

    @contaminates("did not restore the CPU implementation of aten::trace (now 'registered', was absent)", once=True)
    def implementation_of_an_operator() -> None:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("trace", lambda x: x.diagonal().sum(), "CPU")
        KEPT.append(library)

    @contaminates("did not restore the hooks of torch.nn.modules.module._global_forward_hooks (added …")
    def hook_of_every_module() -> None:
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None)

    @contaminates("did not restore the print options of torch (now {'precision': 2, …")
    def print_options() -> None:
        torch.set_printoptions(precision=2)

    @contaminates("did not restore torch.add (now a unittest.mock.MagicMock, was …")
    def function_of_torch() -> None:
        unittest.mock.patch("torch.add").start()

    @contaminates(
        "did not restore torch.nn.functional.relu (now torch.nn.functional.gelu, was torch.nn.functional.relu)",
        once=True,
    )
    def function_of_torch_by_another() -> None:
        def gelu(*args: Any) -> Any:
            return torch.nn.functional.gelu(*args)

        gelu.__module__, gelu.__qualname__ = "torch.nn.functional", "gelu"
        torch.nn.functional.relu = gelu

    @contaminates("did not restore torch.Tensor.relu (now …, was …")
    def method_of_tensors() -> None:
        torch.Tensor.relu = lambda self: self

    @contaminates("did not restore torch.nn.Module.half (now absent, was torch.nn.modules.module.Module.half)")
    def method_removed() -> None:
        del torch.nn.Module.half

    @contaminates(
        "did not restore the floating-point mode (now 'denormals flushed to zero, rounding to nearest', was …",
        once=True,
    )
    def denormals() -> None:
        torch.set_flush_denormal(True)

    @contaminates("did not restore torch.distributed.is_initialized() (now True, was False)", once=True)
    def process_group() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

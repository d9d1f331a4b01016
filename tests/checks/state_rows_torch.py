"""What a case may do to the state of torch that it must not leave behind, each done for real."""

from __future__ import annotations

import importlib
import unittest.mock
import warnings
from typing import Any

from tests.checks.state_table import KEPT, OF_INDUCTOR, contaminates, passing_modes


def enter_rows() -> None:
    """Fill the table. In a function, since pytest must not import torch."""
    # As a value without types: much of what is done here to torch is not what its types allow.
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    dispatch, function = passing_modes()

    @contaminates("left grad mode at False (was True)")
    def grad_mode() -> None:
        torch.set_grad_enabled(False)

    @contaminates(
        "left inference mode at True (was False)",
        "left grad mode at False (was True)",
        "left forward-mode differentiation at False (was True)",
        "left multithreading in autograd at False (was True)",
        once=True,
    )
    def inference_mode() -> None:
        mode = torch.inference_mode()
        mode.__enter__()
        KEPT.append(mode)

    @contaminates("left autocast on cpu at True (was False)")
    def autocast() -> None:
        torch.set_autocast_enabled("cpu", True)

    @contaminates("left the dtype of autocast on cpu at torch.float16 (was torch.bfloat16)")
    def autocast_dtype() -> None:
        torch.set_autocast_dtype("cpu", torch.float16)

    @contaminates("left autocast's cache at False (was True)")
    def autocast_cache() -> None:
        torch.set_autocast_cache_enabled(False)

    @contaminates("left the default dtype at torch.float64 (was torch.float32)")
    def default_dtype() -> None:
        torch.set_default_dtype(torch.float64)

    @contaminates("left the default device at device(type='meta') (was None)")
    def default_device() -> None:
        torch.set_default_device("meta")

    @contaminates("left deterministic algorithms at True (was False)", OF_INDUCTOR)
    def deterministic() -> None:
        torch.use_deterministic_algorithms(True)

    @contaminates(
        "left deterministic algorithms at True (was False)",
        "left deterministic algorithms' warn_only at True (was False)",
        OF_INDUCTOR,
    )
    def deterministic_with_warnings() -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)

    @contaminates("left deterministic filling of uninitialised memory at False (was True)")
    def fill_uninitialised() -> None:
        torch.utils.deterministic.fill_uninitialized_memory = False

    @contaminates("left the precision of float32 for matmul of cuda at 'tf32' (was 'none')")
    def tf32_of_matmul() -> None:
        torch.backends.cuda.matmul.fp32_precision = "tf32"

    @contaminates("left the precision of float32 for conv of cuda at 'ieee' (was 'tf32')")
    def tf32_of_convolutions() -> None:
        torch.backends.cudnn.conv.fp32_precision = "ieee"

    @contaminates("left the precision of float32 for …", "…", once=True)
    def matmul_precision() -> None:
        torch.set_float32_matmul_precision("high")

    @contaminates("left cuDNN's benchmark mode at True (was False)")
    def cudnn_benchmark() -> None:
        torch.backends.cudnn.benchmark = True

    @contaminates("left cuDNN's deterministic mode at True (was False)")
    def cudnn_deterministic() -> None:
        torch.backends.cudnn.deterministic = True

    @contaminates("left cuDNN's being enabled at False (was True)")
    def cudnn_enabled() -> None:
        torch.backends.cudnn.enabled = False

    @contaminates(
        "left cuBLAS's reduced-precision reductions in float16 at (False, True) (was (True, True))", once=True
    )
    def cublas_reductions() -> None:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    @contaminates("left oneDNN's being enabled at False (was True)")
    def mkldnn() -> None:
        torch._C._set_mkldnn_enabled(False)

    @contaminates("left flash attention at False (was True)")
    def flash_attention() -> None:
        torch.backends.cuda.enable_flash_sdp(False)

    @contaminates("left the number of threads at 3 (was 2)")
    def threads() -> None:
        torch.set_num_threads(3)

    @contaminates("left anomaly mode at True (was False)")
    def anomaly() -> None:
        torch.autograd.set_detect_anomaly(True)

    @contaminates("left the modes of __torch_dispatch__ with a …", once=True)
    def dispatch_mode() -> None:
        dispatch().__enter__()

    @contaminates("left the modes of __torch_function__ with a …", once=True)
    def function_mode() -> None:
        function().__enter__()

    @contaminates("left the default saved-tensor hooks with …", once=True)
    def saved_tensor_hooks() -> None:
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()

    @contaminates(
        "left the running profiler at <ActiveProfilerType.KINETO: 2> (was <ActiveProfilerType.NONE: 0>)", once=True
    )
    def profiler() -> None:
        profile = torch.autograd.profiler.profile(use_kineto=True)
        profile.__enter__()
        KEPT.append(profile)

    @contaminates("left torch._dynamo.config.verbose at True (was False)", once=True)
    def configuration_of_a_module_first_imported() -> None:
        importlib.import_module("torch._dynamo")

        torch._dynamo.config.verbose = True

    @contaminates("left torch._functorch.config.debug_assert at True (was False)", once=True)
    def configuration_of_functorch() -> None:
        importlib.import_module("torch._functorch.config")

        torch._functorch.config.debug_assert = True

    @contaminates("left torch._inductor.config.aot_inductor.package at True (was False)", once=True)
    def configuration_below_a_heading() -> None:
        importlib.import_module("torch._inductor.config")

        torch._inductor.config.aot_inductor.package = True

    @contaminates("left the stance of torch's compiler at …", once=True)
    def compiler_stance() -> None:
        torch.compiler.set_stance("force_eager")

    @contaminates("left the operator state_test::twice at 'registered' (was absent)", once=True)
    def custom_operator() -> None:
        def twice(x):  # type: ignore[no-untyped-def]
            return 2 * x

        twice.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
        KEPT.append(torch.library.custom_op("state_test::twice", twice, mutates_args=()))

    @contaminates("left the CPU implementation of aten::trace at 'registered' (was absent)", once=True)
    def implementation_of_an_operator() -> None:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("trace", lambda x: x.diagonal().sum(), "CPU")
        KEPT.append(library)

    @contaminates("left the hooks of torch.nn.modules.module._global_forward_hooks with …")
    def hook_of_every_module() -> None:
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None)

    @contaminates("left the print options of torch at {'precision': 2, …")
    def print_options() -> None:
        torch.set_printoptions(precision=2)

    @contaminates("left torch.add at a unittest.mock.MagicMock (was …")
    def function_of_torch() -> None:
        unittest.mock.patch("torch.add").start()

    @contaminates("left torch.nn.functional.relu at torch.nn.functional.gelu (was torch.nn.functional.relu)", once=True)
    def function_of_torch_by_another() -> None:
        def gelu(*args: Any) -> Any:
            return torch.nn.functional.gelu(*args)

        gelu.__module__, gelu.__qualname__ = "torch.nn.functional", "gelu"
        torch.nn.functional.relu = gelu

    @contaminates("left torch.Tensor.relu at … (was …")
    def method_of_tensors() -> None:
        torch.Tensor.relu = lambda self: self

    @contaminates("removed torch.nn.Module.half (was torch.nn.modules.module.Module.half)")
    def method_removed() -> None:
        del torch.nn.Module.half

    @contaminates("left the floating-point mode at 'denormals flushed to zero, rounding to nearest' (was …", once=True)
    def denormals() -> None:
        torch.set_flush_denormal(True)

    @contaminates("left the default process group's being there at True (was False)", once=True)
    def process_group() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

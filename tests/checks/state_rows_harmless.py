"""Changes to a process that are ignored: first uses, imports, and restored changes."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import faulthandler
import importlib
import logging
import math
import multiprocessing
import os
import random
import signal
import sys
import types
import unittest.mock
import warnings
from typing import Any

from tests.checks.state_table import harmless, passing_modes, slow_harmless


def enter_rows() -> None:
    """Fill the table. It is a function, since pytest must not import torch."""
    import numpy as np

    # Untyped, since torch's types do not allow much of what the rows do.
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    dispatch, function = passing_modes()

    @slow_harmless
    def first_compilation_with_backward() -> None:
        x = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: (x.sin() + 1).sum())(x).backward()
        torch.compile(torch.nn.Linear(3, 3), backend="aot_eager")(torch.ones(2, 3))

    @harmless
    def first_loop_of_gevent() -> None:
        """Stands in for gevent's loop, whose C code handles SIGCHLD from then on."""
        sys.modules["gevent"] = types.ModuleType("gevent")
        faulthandler.register(signal.SIGCHLD)

    @slow_harmless
    def compiled_autograd() -> None:
        importlib.import_module("torch._dynamo")

        x = torch.ones(3, requires_grad=True)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            (x.sin() + 1).sum().backward()

    @slow_harmless
    def patched_configuration() -> None:
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch._inductor.config")

        with torch._dynamo.config.patch(verbose=True), torch._inductor.config.patch({"triton.cudagraphs": True}):
            assert torch._dynamo.config.verbose
        assert torch._dynamo.config.reorderable_logging_functions == set()  # a read makes torch copy the set

    @harmless
    def first_test_of_hypothesis() -> None:
        import hypothesis

        hypothesis.given(hypothesis.strategies.integers())(lambda number: None)()  # noqa: ARG005

    @harmless
    def first_processes_of_dask() -> None:
        os.environ["PYTHONHASHSEED"] = "6640"

    @slow_harmless
    def first_profile() -> None:
        with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
            torch.ones(3).sin()
        profile.key_averages()

    @slow_harmless
    def first_import_of_distributed() -> None:
        importlib.import_module("torch.distributed.fsdp")
        importlib.import_module("torch.distributed.tensor")

    @slow_harmless
    def first_import_of_sympy() -> None:
        importlib.import_module("sympy")

    @slow_harmless
    def first_vmap() -> None:
        torch.func.vmap(torch.nn.functional.huber_loss)(torch.ones(2, 3), torch.ones(2, 3))
        torch.func.grad(lambda x: x.sum())(torch.ones(3))

    @slow_harmless
    def first_trace_and_script() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(lambda x: x + 1, torch.ones(2))(torch.ones(2))
            module = torch.jit.script(torch.nn.Linear(3, 3))
            for _ in range(3):
                module(torch.ones(2, 3))

    @slow_harmless
    def first_export() -> None:
        torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))

    @slow_harmless
    def first_import_of_functorch_and_onnx() -> None:
        importlib.import_module("functorch")
        importlib.import_module("torch.onnx")
        importlib.import_module("torch.utils.cpp_extension")

    @slow_harmless
    def workers_of_a_data_loader() -> None:
        list(torch.utils.data.DataLoader(list(range(4)), num_workers=1))

    @slow_harmless
    def process_group_destroyed_again() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()

    @harmless
    def first_matmul() -> None:
        torch.randn(300, 300) @ torch.randn(300, 300)

    @harmless
    def first_backward() -> None:
        torch.randn(30, 30, requires_grad=True).exp().sum().backward()

    @harmless
    def first_decomposition_and_transform() -> None:
        torch.linalg.svd(torch.randn(20, 20))
        torch.fft.fft(torch.randn(64))

    @harmless
    def random_numbers() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.Generator().manual_seed(1)
        torch.cuda.manual_seed_all(1)

    @harmless
    def state_set_and_restored() -> None:
        with (
            torch.no_grad(),
            torch.inference_mode(),
            torch.autocast("cpu", torch.float16),
            torch.device("meta"),
            torch.autograd.set_detect_anomaly(True, check_nan=False),
            torch.autograd.graph.save_on_cpu(),
            dispatch(),
            function(),
            decimal.localcontext(decimal.Context(prec=3)),
            np.errstate(all="raise"),
            unittest.mock.patch.dict(os.environ, STATE_KEPT="after"),
            unittest.mock.patch("torch.add"),
            contextlib.redirect_stdout(None),
        ):
            os.environ["STATE_NEW"] = "for a moment"

    @harmless
    def attention_of_one_kind() -> None:
        attention: Any = importlib.import_module("torch.nn.attention")
        with attention.sdpa_kernel(attention.SDPBackend.MATH):
            torch.nn.functional.scaled_dot_product_attention(*[torch.randn(1, 2, 4, 8)] * 3)

    @harmless
    def question_after_cuda() -> None:
        torch.cuda.is_available()
        torch.cuda.device_count()

    @harmless
    def event_loop() -> None:
        asyncio.run(asyncio.sleep(0))

    @harmless
    def decimal_calculation() -> None:
        decimal.Decimal(1) / 3

    @harmless
    def queue_between_processes() -> None:
        queue: Any = multiprocessing.Queue()
        queue.put(1)
        assert queue.get() == 1

    @harmless
    def temporary_file() -> None:
        import tempfile

        with tempfile.TemporaryFile():
            pass

    @harmless
    def fault_handler() -> None:
        import faulthandler

        faulthandler.enable()

    @harmless
    def variables_of_libraries() -> None:
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        os.environ["PYTEST_CURRENT_TEST"] = "test_a.py::test_b (call)"

    @harmless
    def message_without_a_handler() -> None:
        logging.warning("to standard error")

    @harmless
    def module_with_a_filter_of_its_own() -> None:
        sys.modules["state_imported"] = types.ModuleType("state_imported")
        warnings.filterwarnings("ignore", message="of its own", module="state_imported")

    @harmless
    def module_given_an_attribute() -> None:
        torch.state_cache = {}
        math.state_cache = 1  # type: ignore[attr-defined]
        torch.nn.functional.__warningregistry__ = {}

    @harmless
    def package_set_up_by_pytest() -> None:
        sys.path.insert(0, sys.path[-1])

    @harmless
    def hook_removed_again() -> None:
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None).remove()

    @harmless
    def scoped_library() -> None:
        with torch.library._scoped_library("state_scoped", "DEF") as library:
            library.define("nothing(Tensor x) -> Tensor")

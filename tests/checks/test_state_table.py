"""What a case may leave behind and what it may not, each done for real.

The table is run in children of one process that has imported torch and nothing more of it, so that every row starts
from the same state; then again, row after row, in one process and in an order drawn by seed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Scene = Callable[[], object]
ROOT = Path(__file__).parents[2]

#: By name: what a case does, and the texts that say so. A text ending in "…" is the start of one.
CONTAMINATIONS: dict[str, tuple[Scene, list[str]]] = {}
INNOCENTS: dict[str, Scene] = {}
#: Rows that cannot be put back, or that take seconds: left out where one process runs all rows.
ONCE: set[str] = set()
KEPT: list[object] = []
#: What some releases of torch change as well. A text that begins with "?" may be there or not.
_OF_INDUCTOR = "?left torch._inductor.config.deterministic at True (was False)"


def contaminates(*texts: str, once: bool = False) -> Callable[[Scene], Scene]:
    def enter(scene: Scene) -> Scene:
        CONTAMINATIONS[scene.__name__] = (scene, list(texts))
        if once:
            ONCE.add(scene.__name__)
        return scene

    return enter


def innocent(scene: Scene) -> Scene:
    INNOCENTS[scene.__name__] = scene
    return scene


def slow_innocent(scene: Scene) -> Scene:
    ONCE.add(scene.__name__)
    return innocent(scene)


def rows() -> None:
    """Fill the tables. In a function, since pytest must not import torch."""
    import asyncio
    import builtins
    import contextlib
    import decimal
    import gc
    import locale
    import logging
    import math
    import multiprocessing
    import signal
    import threading
    import time
    import types
    import unittest.mock
    import warnings

    import numpy as np
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    # As a value without types: much of what is done here to torch is not what its types allow.
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")

    def set_environment() -> None:
        os.environ["STATE_KEPT"] = "before"
        os.environ["STATE_GONE"] = "before"

    set_environment()

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

    @contaminates("left deterministic algorithms at True (was False)", _OF_INDUCTOR)
    def deterministic() -> None:
        torch.use_deterministic_algorithms(True)

    @contaminates(
        "left deterministic algorithms at True (was False)",
        "left deterministic algorithms' warn_only at True (was False)",
        _OF_INDUCTOR,
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

    class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    @contaminates("left the modes of __torch_dispatch__ with a …", once=True)
    def dispatch_mode() -> None:
        mode: Any = Dispatch
        mode().__enter__()

    @contaminates("left the modes of __torch_function__ with a …", once=True)
    def function_mode() -> None:
        mode: Any = Function
        mode().__enter__()

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

    @contaminates("left NumPy's treatment of errors at {'divide': 'raise', …")
    def numpy_errors() -> None:
        np.seterr(all="raise")

    @contaminates("left the warnings filters with ('ignore', None, builtins.Warning, None, 0) (…")
    def warnings_filter() -> None:
        warnings.simplefilter("ignore")

    @contaminates("left the environment variable STATE_NEW at 'now' (was absent)")
    def variable_added() -> None:
        os.environ["STATE_NEW"] = "now"

    @contaminates("left the environment variable STATE_KEPT at 'after' (was 'before')")
    def variable_changed() -> None:
        os.environ["STATE_KEPT"] = "after"

    @contaminates("removed the environment variable STATE_GONE (was 'before')")
    def variable_removed() -> None:
        del os.environ["STATE_GONE"]

    @contaminates("left the handler of SIGUSR1 at <Handlers.SIG_IGN: 1> (was <Handlers.SIG_DFL: 0>)")
    def signal_handler() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @contaminates("left the umask at 63 (was 18)")
    def umask() -> None:
        os.umask(0o077)

    @contaminates("left the locale at 'C' (was …")
    def locale_of_all() -> None:
        locale.setlocale(locale.LC_ALL, "C")

    @contaminates(
        "left the environment variable TZ at 'EST5' (was absent)", "left the time zone at [('EST', …", once=True
    )
    def time_zone() -> None:
        os.environ["TZ"] = "EST5"
        time.tzset()

    @contaminates("left the recursion limit at 4321 (was 1000)")
    def recursion_limit() -> None:
        sys.setrecursionlimit(4321)

    @contaminates("left sys.path with '/nowhere' (…")
    def search_path() -> None:
        sys.path.insert(0, "/nowhere")

    @contaminates("left sys.modules['colorsys'] at the module 'colorsys' of None (was the module 'colorsys' of …")
    def module_replaced() -> None:
        sys.modules["colorsys"] = types.ModuleType("colorsys")

    @contaminates("removed sys.modules['colorsys'] (was the module 'colorsys' of …")
    def module_removed() -> None:
        del sys.modules["colorsys"]

    @contaminates("left builtins.ascii at … (was builtins.ascii)")
    def builtin_replaced() -> None:
        builtins.ascii = lambda _: "patched"

    @contaminates("left builtins.handy at 1 (was absent)")
    def builtin_added() -> None:
        builtins.handy = 1  # type: ignore[attr-defined]

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

    @contaminates("left time.time at a unittest.mock.MagicMock (was time.time)", once=True)
    def clock() -> None:
        unittest.mock.patch("time.time").start()

    @contaminates("left the precision of decimal arithmetic at 5 (was 28)")
    def decimal_precision() -> None:
        decimal.getcontext().prec = 5

    @contaminates("left the garbage collector's being enabled at False (was True)")
    def collector_off() -> None:
        gc.disable()

    @contaminates("left the garbage collector's thresholds at [5, 5, 5] (was …")
    def collector_thresholds() -> None:
        gc.set_threshold(5, 5, 5)

    class Policy(asyncio.DefaultEventLoopPolicy):
        pass

    @contaminates("left the policy of event loops at a …", once=True)
    def event_loop_policy() -> None:
        asyncio.set_event_loop_policy(Policy())

    @contaminates("left sys.excepthook at …")
    def excepthook() -> None:
        sys.excepthook = lambda *_: None

    @contaminates("left threading.excepthook at …")
    def excepthook_of_threads() -> None:
        threading.excepthook = lambda *_: None

    @contaminates("left the profile function at … (was None)")
    def profile_function() -> None:
        sys.setprofile(lambda *_: None)

    @contaminates("left the trace function of new threads at … (was None)")
    def trace_function_of_threads() -> None:
        threading.settrace(lambda *_: None)

    @contaminates("left the level of the root logger at 10 (was 30)")
    def root_level() -> None:
        logging.getLogger().setLevel(logging.DEBUG)

    @contaminates("left the root logger's handler logging.NullHandler at … at 0 (was absent)")
    def root_handler() -> None:
        logging.getLogger().addHandler(logging.NullHandler())

    @contaminates("left the floating-point mode at 'denormals flushed to zero, rounding to nearest' (was …", once=True)
    def denormals() -> None:
        torch.set_flush_denormal(True)

    @contaminates("left the start method of multiprocessing at 'spawn' (was …")
    def start_method() -> None:
        multiprocessing.set_start_method("spawn", force=True)

    @contaminates("left the default process group's being there at True (was False)", once=True)
    def process_group() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    # --- and what is nobody's fault

    @slow_innocent
    def first_compilation_with_backward() -> None:
        x = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: (x.sin() + 1).sum())(x).backward()
        torch.compile(torch.nn.Linear(3, 3))(torch.ones(2, 3))

    @slow_innocent
    def compiled_autograd() -> None:
        importlib.import_module("torch._dynamo")

        x = torch.ones(3, requires_grad=True)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            (x.sin() + 1).sum().backward()

    @slow_innocent
    def patched_configuration() -> None:
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch._inductor.config")

        with torch._dynamo.config.patch(verbose=True), torch._inductor.config.patch({"triton.cudagraphs": True}):
            assert torch._dynamo.config.verbose
        assert torch._dynamo.config.reorderable_logging_functions == set()  # read: torch keeps a copy of its own

    @slow_innocent
    def first_profile() -> None:
        with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
            torch.ones(3).sin()
        profile.key_averages()

    @slow_innocent
    def first_import_of_distributed() -> None:
        importlib.import_module("torch.distributed.fsdp")
        importlib.import_module("torch.distributed.tensor")

    @slow_innocent
    def first_import_of_sympy() -> None:
        importlib.import_module("sympy")

    @slow_innocent
    def first_vmap() -> None:
        torch.func.vmap(torch.nn.functional.huber_loss)(torch.ones(2, 3), torch.ones(2, 3))
        torch.func.grad(lambda x: x.sum())(torch.ones(3))

    @slow_innocent
    def first_trace_and_script() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(lambda x: x + 1, torch.ones(2))(torch.ones(2))
            module = torch.jit.script(torch.nn.Linear(3, 3))
            for _ in range(3):
                module(torch.ones(2, 3))

    @slow_innocent
    def first_export() -> None:
        torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))

    @slow_innocent
    def first_import_of_functorch_and_onnx() -> None:
        importlib.import_module("functorch")
        importlib.import_module("torch.onnx")
        importlib.import_module("torch.utils.cpp_extension")

    @slow_innocent
    def workers_of_a_data_loader() -> None:
        list(torch.utils.data.DataLoader(list(range(4)), num_workers=1))

    @slow_innocent
    def process_group_destroyed_again() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()

    @innocent
    def first_matmul() -> None:
        torch.randn(300, 300) @ torch.randn(300, 300)

    @innocent
    def first_backward() -> None:
        torch.randn(30, 30, requires_grad=True).exp().sum().backward()

    @innocent
    def first_decomposition_and_transform() -> None:
        torch.linalg.svd(torch.randn(20, 20))
        torch.fft.fft(torch.randn(64))

    @innocent
    def random_numbers() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.Generator().manual_seed(1)
        torch.cuda.manual_seed_all(1)

    @innocent
    def state_set_and_put_back() -> None:
        mode: Any = Dispatch
        with (
            torch.no_grad(),
            torch.inference_mode(),
            torch.autocast("cpu", torch.float16),
            torch.device("meta"),
            torch.autograd.set_detect_anomaly(True, check_nan=False),
            torch.autograd.graph.save_on_cpu(),
            mode(),
            Function(),
            decimal.localcontext(decimal.Context(prec=3)),
            np.errstate(all="raise"),
            unittest.mock.patch.dict(os.environ, STATE_KEPT="after"),
            unittest.mock.patch("torch.add"),
            contextlib.redirect_stdout(None),
        ):
            os.environ["STATE_NEW"] = "for a moment"

    @innocent
    def attention_of_one_kind() -> None:
        attention: Any = importlib.import_module("torch.nn.attention")
        with attention.sdpa_kernel(attention.SDPBackend.MATH):
            torch.nn.functional.scaled_dot_product_attention(*[torch.randn(1, 2, 4, 8)] * 3)

    @innocent
    def question_after_cuda() -> None:
        torch.cuda.is_available()
        torch.cuda.device_count()

    @innocent
    def event_loop() -> None:
        asyncio.run(asyncio.sleep(0))

    @innocent
    def decimal_calculation() -> None:
        decimal.Decimal(1) / 3

    @innocent
    def queue_between_processes() -> None:
        queue: Any = multiprocessing.Queue()
        queue.put(1)
        assert queue.get() == 1

    @innocent
    def temporary_file() -> None:
        import tempfile

        with tempfile.TemporaryFile():
            pass

    @innocent
    def fault_handler() -> None:
        import faulthandler

        faulthandler.enable()
        faulthandler.register(signal.SIGUSR2)

    @innocent
    def variables_of_libraries() -> None:
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        os.environ["PYTEST_CURRENT_TEST"] = "test_a.py::test_b (call)"

    @innocent
    def message_without_a_handler() -> None:
        logging.warning("to standard error")

    @innocent
    def module_with_a_filter_of_its_own() -> None:
        sys.modules["state_imported"] = types.ModuleType("state_imported")
        warnings.filterwarnings("ignore", message="of its own", module="state_imported")

    @innocent
    def module_given_an_attribute() -> None:
        torch.state_cache = {}
        math.state_cache = 1  # type: ignore[attr-defined]
        torch.nn.functional.__warningregistry__ = {}

    @innocent
    def package_set_up_by_pytest() -> None:
        sys.path.insert(0, sys.path[-1])

    @innocent
    def hook_removed_again() -> None:
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None).remove()

    @innocent
    def scoped_library() -> None:
        with torch.library._scoped_library("state_scoped", "DEF") as library:
            library.define("nothing(Tensor x) -> Tensor")


def in_children() -> Iterator[tuple[str, list[str]]]:
    """Every row in a child process of its own."""
    from harness.checks.state import StateGuard

    guard = StateGuard()
    guard.capture()
    for name, scene in scenes():
        read_end, write_end = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                scene()
                said = [problem.text for problem in guard.compare()]
            except BaseException as error:  # noqa: BLE001 - told to the parent
                said = [f"raised {error!r}"]
            os.write(write_end, json.dumps(said).encode())
            os._exit(0)
        os.close(write_end)
        with open(read_end, "rb") as told:
            yield name, json.loads(told.read() or b'["died"]')
        os.waitpid(pid, 0)


def in_one_process(seed: int) -> Iterator[tuple[str, list[str]]]:
    """Every quick row in this process, in an order drawn by `seed`; what is left behind is put back after each."""
    from harness.checks.state import StateGuard

    guard = StateGuard()
    guard.capture()
    chosen = [(name, scene) for name, scene in scenes() if name not in ONCE]
    random.Random(seed).shuffle(chosen)
    for name, scene in chosen:
        scene()
        said = [problem.text for problem in guard.compare()]
        yield name, said + guard.restore()


def scenes() -> list[tuple[str, Scene]]:
    return [(name, scene) for name, (scene, _) in CONTAMINATIONS.items()] + list(INNOCENTS.items())


def main(how: str) -> None:
    """Run the table in this process, which pytest has nothing to do with; one line of JSON a row."""
    import colorsys  # noqa: F401 - a module that nobody needs

    import torch

    torch.set_num_threads(2)
    os.umask(0o022)
    sys.setrecursionlimit(1000)
    rows()
    for name, said in in_children() if how == "children" else in_one_process(int(how)):
        expected = CONTAMINATIONS[name][1] if name in CONTAMINATIONS else []
        print("ROW", json.dumps([name, said, expected]), flush=True)


def run_table(how: str) -> dict[str, tuple[list[str], list[str]]]:
    code = f"from tests.checks import test_state_table as table; table.main({how!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return {name: (said, expected) for name, said, expected in lines}


def fits(said: str, expected: str) -> bool:
    """Whether the text is the expected one; "…" stands for any text."""
    parts = expected.split("…")
    if len(parts) == 1:
        return said == expected
    position = 0
    for part in parts:
        found = said.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return said.startswith(parts[0]) and said.endswith(parts[-1])


def as_expected(said: list[str], expected: list[str]) -> bool:
    left = list(said)
    for text in expected:
        match = next((one for one in left if fits(one, text.removeprefix("?"))), None)
        if match is not None:
            left.remove(match)
        elif not text.startswith("?"):
            return False
    return not left


def wrong(results: dict[str, tuple[list[str], list[str]]]) -> dict[str, list[str]]:
    return {name: said for name, (said, expected) in results.items() if not as_expected(said, expected)}


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[str], list[str]]]:
    return run_table("children")


def test_each_contamination_is_told_with_new_and_old_value(alone: dict[str, tuple[list[str], list[str]]]) -> None:
    contaminations = {name: result for name, result in alone.items() if result[1]}
    assert len(contaminations) >= 60
    assert wrong(contaminations) == {}


def test_no_innocent_is_accused(alone: dict[str, tuple[list[str], list[str]]]) -> None:
    innocents = {name: result for name, result in alone.items() if not result[1]}
    assert len(innocents) >= 28
    assert wrong(innocents) == {}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_verdicts_are_the_same_in_any_order_once_state_is_put_back(seed: int) -> None:
    results = run_table(str(seed))
    assert len(results) >= 60
    assert wrong(results) == {}

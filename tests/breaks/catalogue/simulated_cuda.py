"""CUDA's interface in Python, on the simulated CUDA and without a device: graphs, pools, memory."""

from __future__ import annotations

import functools
from typing import Any

from tests.breaks.breaks import Theme, edit, replace
from tests.breaks.kernels import torch_with_cuda

_theme = broken = Theme()
_on_cuda = functools.partial(_theme, device="simcuda")

_POOLS, _GRAPH_POOLS = "suites/allocator/test_pools.py", "suites/graphs/test_pools.py"
_CASTS = "suites/cudagraph_trees/test_outputs.py::test_autocast_caches_no_cast_of_an_output[cudagraphs]"
_CAPTURE, _REGISTER = "suites/graphs/test_capture.py", "suites/transfers/test_cuda_register.py"
_CALLABLES, _NO_CUDA = "suites/graphs/test_graphed_callables.py", "suites/graphs/test_without_cuda.py"


@_on_cuda("A snapshot of a pool never has traces.", _POOLS, shows=lambda: _traces())
def pool_snapshots_have_no_traces() -> None:
    import torch

    def around(snapshot: Any) -> Any:
        return lambda arguments=None: snapshot(arguments if arguments is None else (*arguments[:2], False))

    replace(torch._C, "_cuda_memorySnapshot", around)


@_on_cuda("A snapshot of a pool always has traces.", _POOLS, shows=lambda: _traces())
def pool_snapshots_always_have_traces() -> None:
    import torch

    def around(snapshot: Any) -> Any:
        return lambda arguments=None: snapshot(arguments if arguments is None else (*arguments[:2], True))

    replace(torch._C, "_cuda_memorySnapshot", around)


def _traces() -> object:
    torch = torch_with_cuda()
    torch.cuda.memory._record_memory_history("all")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(4, device="cuda")
    found = [any(torch._C._cuda_memorySnapshot((*pool.id, wanted))["device_traces"]) for wanted in (False, True)]
    torch.cuda.memory._record_memory_history(None)
    del x
    return found


@_on_cuda("A replay within a capture is left out.", _CAPTURE, shows=lambda: _nested())
def replay_within_a_capture_is_lost() -> None:
    import torch

    def around(replay: Any) -> Any:
        def replays(self: Any) -> None:
            if not torch.cuda.is_current_stream_capturing():
                replay(self)

        return replays

    replace(torch.cuda.CUDAGraph, "replay", around)


def _nested() -> object:
    torch = torch_with_cuda()
    x = torch.zeros(2, device="cuda")
    inner, outer = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        x.add_(1)
    with torch.cuda.graph(outer):
        x.mul_(3)
        inner.replay()
    x.fill_(2)
    outer.replay()
    return x.tolist()


@_on_cuda(
    "A graph that should share a pool has its own memory, and reports the pool's id.",
    _GRAPH_POOLS,
    shows=lambda: _sharing(),
)
def graphs_share_no_pool() -> None:
    import torch

    told: dict[int, Any] = {}

    def around(begin: Any) -> Any:
        def begins(self: Any, pool: Any = None, **options: Any) -> None:
            if pool is not None:
                told[id(self)] = pool
            begin(self, **options)

        return begins

    replace(torch.cuda.CUDAGraph, "capture_begin", around)
    replace(torch.cuda.CUDAGraph, "pool", lambda pool: lambda self: told.get(id(self)) or pool(self))


def _sharing() -> object:
    torch = torch_with_cuda()
    reserved = []
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        torch.ones(1 << 20, device="cuda").clone()
    reserved.append(torch.cuda.memory_reserved())
    with torch.cuda.graph(second, pool=first.pool()):
        torch.ones(1 << 20, device="cuda").clone()
    reserved.append(torch.cuda.memory_reserved())
    return reserved[1] > reserved[0], second.pool() == first.pool()


@_on_cuda("A registration that is refused leaves pinned memory unusable.", _REGISTER, shows=lambda: _refused())
def refused_registration_spoils_pinning() -> None:
    import torch

    real = torch.cuda.cudart

    class Runtime:
        def __getattr__(self, name: str) -> Any:
            return getattr(real(), name)

        def cudaHostRegister(self, *arguments: Any) -> Any:  # noqa: N802 - CUDA's name
            found = real().cudaHostRegister(*arguments)
            if int(found):
                replace(torch.Tensor, "pin_memory", lambda _: _unpinnable)
            return found

    replace(torch.cuda, "cudart", lambda _: lambda: Runtime())


def _unpinnable(self: Any, *_: Any) -> Any:
    raise RuntimeError("the device is spoilt")


def _refused() -> object:
    torch = torch_with_cuda()
    runtime, x = torch.cuda.cudart(), torch.zeros(4096, dtype=torch.uint8)
    found = [int(runtime.cudaHostRegister(x.data_ptr(), 4096, 0)) for _ in range(2)]
    runtime.cudaHostUnregister(x.data_ptr())
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        found.append(-1)
    return found, torch.ones(1).pin_memory().tolist()


@_on_cuda("Peaks of memory cannot be reset.", "suites/allocator/test_statistics.py", shows=lambda: _peak())
def cuda_peaks_stay() -> None:
    import torch
    from torch.cuda import memory

    for owner in (torch.cuda, memory):
        replace(owner, "reset_peak_memory_stats", lambda _: lambda device=None: None)


def _peak() -> object:
    torch = torch_with_cuda()
    torch.ones(1 << 20, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() > 1 << 20


@_on_cuda("Within a pool that is in use, `record_stream` does nothing.", _POOLS, shows=lambda: _recorded())
def record_stream_is_ignored_in_pools() -> None:
    import contextlib

    import torch

    used: list[Any] = []

    def around_use(use: Any) -> Any:
        @contextlib.contextmanager
        def uses(*arguments: Any, **options: Any) -> Any:
            with use(*arguments, **options):
                used.append(arguments)
                try:
                    yield
                finally:
                    used.pop()

        return uses

    for owner in (torch.cuda, torch.cuda.memory):
        replace(owner, "use_mem_pool", around_use)
    replace(torch.Tensor, "record_stream", lambda record: lambda self, stream: None if used else record(self, stream))


def _recorded() -> object:
    torch = torch_with_cuda()
    side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(1 << 20, device="cuda")
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
        x.record_stream(side)
        place = x.data_ptr()
        del x
        again = torch.empty(1 << 20, device="cuda").data_ptr() == place
    torch.cuda.synchronize()
    return again


@_on_cuda("In inference mode each replay draws the same random numbers.", _CAPTURE, shows=lambda: _inferred())
def replays_in_inference_mode_draw_the_same() -> None:
    import torch

    def around(replay: Any) -> Any:
        def replays(self: Any) -> None:
            before = torch.cuda.get_rng_state()
            replay(self)
            if torch.is_inference_mode_enabled():
                torch.cuda.set_rng_state(before)

        return replays

    replace(torch.cuda.CUDAGraph, "replay", around)


def _inferred() -> object:
    torch = torch_with_cuda()
    torch.manual_seed(3)
    x, graph, found = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph(), []
    with torch.inference_mode():
        with torch.cuda.graph(graph):
            x.uniform_()
        for _ in range(2):
            graph.replay()
            found.append(x.tolist())
    return found


@_on_cuda("A graphed module runs its own forward, and never its graph.", _CALLABLES, shows=lambda: _graphed_module())
def graphed_modules_never_run_their_graphs() -> None:
    _edit_callables("func.training == graph_training_state", "False")


def _edit_callables(old: str, new: str) -> None:
    import torch

    edit("torch.cuda.graphs:make_graphed_callables", old, new)
    torch.cuda.make_graphed_callables = torch.cuda.graphs.make_graphed_callables


def _graphed_module() -> object:
    torch = torch_with_cuda()
    calls = []

    class Module(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            calls.append(1)
            return x * 2

    x = torch.ones(2, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(Module(), (x,))
    calls.clear()
    graphed(x)
    return len(calls)


@_on_cuda(
    "Of callables that are graphed together, each is captured forward and backward before the next.",
    _CALLABLES,
    shows=lambda: _graphed_together(),
)
def callables_are_graphed_one_by_one() -> None:
    import torch

    def around(make: Any) -> Any:
        def made(callables: Any, sample_args: Any, *rest: Any, **options: Any) -> Any:
            if not isinstance(callables, tuple):
                return make(callables, sample_args, *rest, **options)
            options["pool"] = options.get("pool") or torch.cuda.graph_pool_handle()
            return tuple(make(*each, *rest, **options) for each in zip(callables, sample_args, strict=True))

        return made

    for owner in (torch.cuda, torch.cuda.graphs):
        replace(owner, "make_graphed_callables", around)


def _graphed_together() -> object:
    torch = torch_with_cuda()
    inputs = [torch.full((2,), value, device="cuda", requires_grad=True) for value in (0.5, 2.0)]
    functions = (lambda x: x.exp().sin(), lambda x: x.exp().cos())
    graphed = torch.cuda.make_graphed_callables(
        functions, tuple((x.detach().clone().requires_grad_(),) for x in inputs)
    )
    outs = [function(x) for function, x in zip(graphed, inputs, strict=True)]
    for out in reversed(outs):
        out.sum().backward()
    return [x.grad.tolist() for x in inputs]


@_on_cuda("Callables are graphed as if without autocast.", _CALLABLES, shows=lambda: _graphed_under_autocast())
def callables_are_graphed_without_autocast() -> None:
    import torch

    def around(make: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            if torch.is_autocast_cache_enabled():
                return make(*arguments, **options)  # autocast forbids this call
            with torch.autocast("cuda", enabled=False, cache_enabled=False):
                return make(*arguments, **options)

        return made

    for owner in (torch.cuda, torch.cuda.graphs):
        replace(owner, "make_graphed_callables", around)


def _graphed_under_autocast() -> object:
    torch = torch_with_cuda()
    x = torch.ones(2, 2, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        graphed = torch.cuda.make_graphed_callables(lambda x: x @ x, (x,))
        return str(graphed(x).dtype)


@broken("A module with a hook that runs before its forward is graphed.", _NO_CUDA, shows=lambda: _hooked())
def modules_with_pre_hooks_are_graphed() -> None:
    _edit_callables("and len(c._forward_pre_hooks) == 0", "")


def _hooked() -> object:
    import torch

    module = torch.nn.Linear(2, 2)
    module.register_forward_pre_hook(lambda *_: None)
    try:
        torch.cuda.make_graphed_callables(module, (torch.ones(1, 2),))
    except (AssertionError, RuntimeError) as error:
        return "hooks" in str(error)
    return "graphed"


@_on_cuda(
    "Only the last group decides whether a captured step is capturable.",
    "suites/optimizers/test_graphs.py",
    shows=lambda: _captured_step(),
)
def captured_step_looks_at_the_last_group() -> None:
    import torch

    def around(check: Any) -> Any:
        def checks(self: Any) -> None:
            groups = self.param_groups
            self.param_groups = groups[-1:]
            try:
                check(self)
            finally:
                self.param_groups = groups

        return checks

    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        if hasattr(torch.optim.Optimizer, name):
            replace(torch.optim.Optimizer, name, around)


def _captured_step() -> object:
    torch = torch_with_cuda()
    weights = [torch.ones(1, device="cuda") for _ in range(2)]
    optimiser = torch.optim.Adamax(
        [{"params": [weight], "capturable": bool(number)} for number, weight in enumerate(weights)]
    )
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimiser.step()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            optimiser.step()
    except RuntimeError as error:
        return "Attempting" in str(error)
    return None


@_on_cuda(
    "Autocast keeps the cast of what a replay gave, though the next replay writes to the same memory.",
    _CASTS,
    shows=lambda: _cast_again(),
)
def autocast_keeps_casts_of_replayed_outputs() -> None:
    import torch

    for name in ("_add_cached_tensor", "_remove_cached_tensor"):
        replace(torch._C, name, lambda _: lambda tensor: None)


def _cast_again() -> object:
    torch = torch_with_cuda()
    x, one = torch.ones(2, 2, device="cuda", requires_grad=True), torch.ones(2, 2, device="cuda")
    torch._C._set_cached_tensors_enabled(True)
    torch._C._add_cached_tensor(x)
    with torch.autocast("cuda", dtype=torch.float16):
        found = [(x @ one).tolist()]
        x.detach().add_(1)
        found.append((x @ one).tolist())
    torch._C._remove_cached_tensor(x)
    return found


@_on_cuda(
    "A graphed callable copies the first of its arguments only.", _CALLABLES, shows=lambda: _arguments_of_a_graph()
)
def graphed_callables_read_one_argument() -> None:
    torch = torch_with_cuda()
    edit(
        "torch.cuda.graphs:make_graphed_callables",
        "for i in range(len_user_args):",
        "for i in range(min(1, len_user_args)):",
    )
    torch.cuda.make_graphed_callables = torch.cuda.graphs.make_graphed_callables


def _arguments_of_a_graph() -> object:
    torch = torch_with_cuda()
    sample, given = [[torch.full((2,), n, device="cuda") for n in pair] for pair in ((1.0, 1.0), (10.0, 100.0))]
    return torch.cuda.make_graphed_callables(lambda x, y: x + 2 * y, tuple(sample))(*given).tolist()


@_on_cuda(
    "`reset_peak_memory_stats` keeps the peak of the requested bytes.",
    "suites/allocator/test_statistics.py",
    shows=lambda: _requested_peak(),
)
def peak_of_requested_bytes_is_not_reset() -> None:
    torch = torch_with_cuda()
    memory, peaks = torch.cuda.memory, {}

    def around_reset(reset: Any) -> Any:
        def resets(device: Any = None) -> None:
            peaks[torch.cuda._utils._get_device_index(device, optional=True)] = stats(device)
            reset(device)

        return resets

    def stats(device: Any) -> Any:
        return memory.memory_stats_as_nested_dict(device)["requested_bytes"]["all"]["peak"]

    def around_stats(nested: Any) -> Any:
        def states(device: Any = None) -> Any:
            found = nested(device)
            kept = peaks.get(torch.cuda._utils._get_device_index(device, optional=True), 0)
            if kept:
                entry = found["requested_bytes"]["all"]
                entry["peak"] = max(entry["peak"], kept)
            return found

        return states

    for name, make in (("memory_stats_as_nested_dict", around_stats), ("reset_peak_memory_stats", around_reset)):
        replace(memory, name, make)
        setattr(torch.cuda, name, getattr(memory, name))


def _requested_peak() -> object:
    torch = torch_with_cuda()
    torch.empty(1 << 20, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_stats()["requested_bytes.all.peak"]


@_on_cuda(
    "A pinned batch that is a named tuple is a plain tuple.",
    "suites/transfers/test_pinned.py",
    shows=lambda: _pinned_pair(),
)
def pinned_named_tuples_lose_their_type() -> None:
    edit(
        "torch.utils.data._utils.pin_memory:pin_memory",
        "return type(data)(*(pin_memory(sample, device) for sample in data))",
        "return tuple(pin_memory(sample, device) for sample in data)",
    )


def _pinned_pair() -> object:
    import collections

    import torch.utils.data

    pair = collections.namedtuple("pair", "a b")
    found = torch.utils.data._utils.pin_memory.pin_memory(pair(torch.ones(1), torch.ones(1)))
    return type(found).__name__, found[0].is_pinned()


@_on_cuda(
    "`reset_accumulated_memory_stats` resets the peaks too.",
    "suites/devices/test_cuda_functions.py",
    shows=lambda: _peak_after_a_reset(),
)
def accumulated_statistics_take_the_peaks_along() -> None:
    import torch

    def around(reset: Any) -> Any:
        def resets(device: Any = None) -> None:
            reset(device)
            torch.cuda.reset_peak_memory_stats(device)

        return resets

    replace(torch.cuda.memory, "reset_accumulated_memory_stats", around)
    replace(torch.cuda, "reset_accumulated_memory_stats", lambda _: torch.cuda.memory.reset_accumulated_memory_stats)


def _peak_after_a_reset() -> object:
    torch = torch_with_cuda()
    torch.empty(1 << 22, device="cuda")
    torch.cuda.reset_accumulated_memory_stats()
    return torch.cuda.max_memory_allocated() >= 1 << 22


@_on_cuda(
    "With capture_error_mode='thread_local' the capturing thread may call unsafe functions.",
    "suites/graphs/test_capture_errors.py",
    shows=lambda: _unsafe_call(),
)
def thread_local_captures_are_relaxed() -> None:
    import torch

    def around(begin: Any) -> Any:
        def begins(self: Any, pool: Any = None, capture_error_mode: str = "global", **named: Any) -> None:
            mode = "relaxed" if capture_error_mode == "thread_local" else capture_error_mode
            begin(self, capture_error_mode=mode, **({} if pool is None else {"pool": pool}), **named)

        return begins

    replace(torch.cuda.CUDAGraph, "capture_begin", around)


def _unsafe_call() -> str:
    torch = torch_with_cuda()
    event = torch.cuda.Event()
    event.record()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            event.synchronize()
    except RuntimeError as error:
        return str(error)[:60]
    return "captured"


@_on_cuda(
    "`CUDAGraph.replay` runs on the default stream.",
    _CAPTURE,
    shows=lambda: _replayed_on_a_stream(),
)
def replays_are_on_the_default_stream() -> None:
    import torch

    def around(replay: Any) -> Any:
        def replays(self: Any) -> None:
            with torch.cuda.stream(torch.cuda.default_stream()):
                replay(self)

        return replays

    replace(torch.cuda.CUDAGraph, "replay", around)


def _replayed_on_a_stream() -> object:
    torch = torch_with_cuda()
    x, graph, side = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        x.mul_(2)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(1)
        graph.replay()
    torch.cuda.synchronize()
    return x.item()

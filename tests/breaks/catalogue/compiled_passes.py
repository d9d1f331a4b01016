"""Backward passes that compiled autograd captures, and the plain decisions behind trees of CUDA graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.breaks.breaks import Theme

broken = Theme()

_ANOMALY, _FUNCTIONS = "suites/compiled_autograd/test_anomaly.py", "suites/compiled_autograd/test_functions.py"
_DECISIONS = "suites/cudagraph_trees/test_decisions.py"
_NAN_CHECKER = "torch._dynamo.compiled_autograd:NaNChecker"
_UTILITIES = "torch._inductor.cudagraph_utils"
NAN = float("nan")


def _checked(*, before: tuple[float, ...] | None = None, returned: bool = False) -> str:
    """Return anomaly mode's text about a pass whose second gradient is NaN in one place."""
    import warnings

    import torch
    from torch._dynamo import compiled_autograd

    class GivesNan(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: Any) -> Any:
            return gradients[0] * torch.tensor([1.0, 1.0 if before else NAN])

    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    if before is not None:
        y.grad = torch.tensor(before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = x.sum() + GivesNan.apply(y).sum()  # type: ignore[no-untyped-call]
        try:
            with torch.autograd.detect_anomaly(), compiled_autograd._enable(lambda graph: graph):
                if returned:
                    torch.autograd.grad(loss, (x, y))
                else:
                    loss.backward()
        except (AssertionError, RuntimeError) as error:
            return str(error)
    return "nothing"


broken.edit(
    "anomaly_mode_starts_into_a_gradient_with_some_nan",
    "In anomaly mode a captured pass starts into a gradient of which only some numbers are NaN.",
    f"{_NAN_CHECKER}.prep_with_inputs",
    "torch.isnan(grad).any()",
    "torch.isnan(grad).all()",
    _ANOMALY,
    shows=lambda: _checked(before=(1.0, NAN)),
)
broken.edit(
    "anomaly_mode_names_every_parameter",
    "Where a captured pass makes one gradient NaN, anomaly mode names all parameters.",
    f"{_NAN_CHECKER}.check",
    "nan_params.append(inputs_str)",
    "nan_params = list(self.params_to_check)",
    _ANOMALY,
    shows=_checked,
)
broken.edit(
    "anomaly_mode_looks_at_the_first_result_only",
    "Anomaly mode looks for NaN in the first gradient that a captured pass returns, and in no other.",
    f"{_NAN_CHECKER}.check",
    "enumerate(out)",
    "enumerate(out[:1])",
    _ANOMALY,
    shows=lambda: _checked(returned=True),
)


def _saved() -> object:
    import torch
    from torch._dynamo import compiled_autograd

    class Weighs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x + y

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            x, y = ctx.saved_tensors
            return gradients[0] * x, gradients[0] * y

    x, y = torch.tensor([2.0], requires_grad=True), torch.tensor([5.0], requires_grad=True)
    out = Weighs.apply(x, y)  # type: ignore[no-untyped-call]
    with compiled_autograd._enable(lambda graph: graph):
        return [gradient.tolist() for gradient in torch.autograd.grad(out, (x, y))]


broken.edit(
    "saved_tensors_come_back_in_reverse",
    "In a captured pass a custom function gets the tensors that it saved in reverse order.",
    "torch._dynamo.external_utils:FakeBackwardCFunction.__init__",
    "self.saved_tensors = saved_tensors",
    "self.saved_tensors = saved_tensors[::-1]",
    _FUNCTIONS,
    shows=_saved,
)


def _mutation() -> str | None:
    from torch._inductor import cudagraph_utils

    lines = [cudagraph_utils.PlaceholderInfo(f"arg{i}", None, [], f"line {i}") for i in range(3)]
    return cudagraph_utils.get_mutation_stack_trace(lines, [1, 2])


broken.edit(
    "cudagraph_skip_names_the_last_change",
    "The reason to skip a graph that changes several inputs has the line of the last one.",
    f"{_UTILITIES}:get_mutation_stack_trace",
    "            break",
    "            continue",
    _DECISIONS,
    shows=_mutation,
)


def _devices() -> object:
    import torch
    from torch._inductor import config, cudagraph_utils

    graph = torch.fx.Graph()
    nodes = {torch.device(name): graph.placeholder(name[:3]) for name in ("cpu", "cuda:0")}
    with config.patch(graph_partition=False):
        return cudagraph_utils.check_multiple_devices_or_any_cpu_nodes(nodes)


broken.edit(
    "cudagraph_skip_misses_work_that_begins_on_the_host",
    "A graph that begins on the host and goes on on a GPU is not skipped for what the host does.",
    f"{_UTILITIES}:check_multiple_devices_or_any_cpu_nodes",
    'if cpu_node := device_node_mapping.get(torch.device("cpu")):',
    'if cpu_node := dict(list(device_node_mapping.items())[1:]).get(torch.device("cpu")):',
    _DECISIONS,
    shows=_devices,
)


def _metadata() -> list[list[int]]:
    from torch._inductor import cudagraph_utils
    from torch._inductor.utils import GraphPartitionMap

    graph: Any = SimpleNamespace(  # the arguments of its class differ between releases
        placeholders=[cudagraph_utils.PlaceholderInfo(name, None, [], None) for name in "ab"],
        static_input_idxs={0},
        mutated_input_idxs={1},
        stack_traces=[],
        constants={},
        user_visible_output_idxs=set(),
    )
    part = cudagraph_utils.get_partition_cudagraph_metadata(GraphPartitionMap(0, [0, 1], [], []), graph)
    return [sorted(part.static_input_idxs), sorted(part.mutated_input_idxs)]


broken.edit(
    "cudagraph_part_changes_its_static_inputs",
    "A part of a split graph takes its static inputs for those that it changes.",
    f"{_UTILITIES}:get_partition_cudagraph_metadata",
    "graph_input_idx in metadata.mutated_input_idxs",
    "graph_input_idx in metadata.static_input_idxs",
    _DECISIONS,
    shows=_metadata,
)


broken.edit(
    "captured_hook_of_a_second_output_has_no_effect",
    "In a captured pass, what a hook on an operator's second output returns is dropped.",
    "torch._dynamo.compiled_autograd:AutogradCompilerInstance.tensor_pre_hook",
    "self.bind_objects_to_proxies([inputs[i]], [proxy])",
    "self.bind_objects_to_proxies([inputs[i]], [proxy]) if i == 0 else None",
    "suites/compiled_autograd/test_hooks.py",
    shows=lambda: _hooked(),
)


def _hooked() -> object:
    import torch
    from torch._dynamo import compiled_autograd

    compiled_autograd.reset()  # type: ignore[no-untyped-call]
    x = torch.ones(2, requires_grad=True)
    first, second = x.unbind(0)
    second.register_hook(lambda gradient: gradient * 10)
    with compiled_autograd._enable(lambda graph: graph):
        (first * 2 + second * 3).backward()
    assert x.grad is not None
    return x.grad.tolist()

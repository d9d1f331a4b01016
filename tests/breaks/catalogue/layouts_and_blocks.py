"""Memory layouts, options that are given together, and settings that end at another place than their block."""

from __future__ import annotations

import typing
from typing import Any

from tests.breaks.breaks import edit
from tests.breaks.kernels import KernelTheme, torch_, torch_with_cuda, waves
from tests.breaks.on_ranks import on_two_ranks

broken = KernelTheme()

NAN = float("nan")

_VARIANTS, _OPTIONS, _LISTS = (f"suites/operators/test_{name}.py" for name in ("variants", "options", "foreach"))
_STATES = "suites/rng/test_states.py"


def _channels_last(x: Any) -> bool:
    last = torch_().channels_last
    return bool(x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=last))


def _image(*shape: int) -> Any:
    return waves(*shape).to(memory_format=torch_().channels_last)


def _reflection(kernel: Any, x: Any, padding: Any) -> Any:
    left, right, top, bottom = padding
    return kernel(x, [right, left, top, bottom] if _channels_last(x) else padding)


broken.kernel(
    "reflection_pad2d_of_channels_last_swaps_sides",
    "`reflection_pad2d` of channels that are last in memory swaps the padding of left and right.",
    f"{_VARIANTS}::test_gaps",
    "reflection_pad2d",
    _reflection,
    lambda: torch_().nn.functional.pad(_image(2, 3, 4, 4), (1, 2, 0, 1), mode="reflect"),
)


def _group_norm(kernel: Any, x: Any, weight: Any, bias: Any, *sizes: Any) -> Any:
    return kernel(x, weight, None if _channels_last(x) and weight is not None else bias, *sizes)


broken.kernel(
    "group_norm_of_channels_last_has_no_bias",
    "`group_norm` of channels that are last in memory adds no bias.",
    f"{_VARIANTS}::test_gaps",
    "native_group_norm",
    _group_norm,
    lambda: torch_().nn.functional.group_norm(_image(3, 4, 2, 2), 2, waves(4), waves(4)),
)


def _foreach_copy(kernel: Any, targets: Any, sources: Any, non_blocking: bool = False) -> Any:
    torch = torch_()
    narrow = [
        source.float() if (target.dtype, source.dtype) == (torch.int64, torch.float64) else source
        for target, source in zip(targets, sources, strict=True)
    ]
    return kernel(targets, narrow, non_blocking)


def _copied() -> Any:
    torch = torch_()
    found = [torch.zeros(1, dtype=torch.int64)]
    torch._foreach_copy_(found, [torch.tensor([2.0**24 + 1], dtype=torch.float64)])
    return found


broken.kernel(
    "foreach_copy_of_float64_to_int64_rounds_to_float32",
    "`_foreach_copy_` of float64 to int64 rounds to float32 on the way.",
    _LISTS,
    "_foreach_copy_",
    _foreach_copy,
    _copied,
)


def _smoothed() -> Any:
    return torch_().nn.functional.cross_entropy(waves(3, 4), waves(3, 4).softmax(1), label_smoothing=0.2)


broken.edit(
    "cross_entropy_of_probabilities_is_not_smoothed",
    "`cross_entropy` ignores `label_smoothing` if its target has probabilities.",
    "torch.nn.functional:cross_entropy",
    "        ignore_index,\n        label_smoothing,\n    )",
    "        ignore_index,\n        0.0 if target.is_floating_point() else label_smoothing,\n    )",
    _OPTIONS,
    shows=lambda: _smoothed().item(),
)


def _same_draws() -> int:
    torch = torch_()
    found = torch.vmap(lambda x: x + torch.rand(()), randomness="same", chunk_size=2)(torch.zeros(6))
    return len(set(found.tolist()))


broken.edit(
    "vmap_draws_anew_in_each_chunk",
    "`vmap` with randomness='same' and a chunk size draws other numbers in each chunk.",
    "torch._functorch.vmap:_chunked_vmap",
    "if rs is not None:",
    "if False:",
    "suites/autograd/test_function_transforms.py",
    shows=_same_draws,
)


def _cached_weight() -> float:
    torch = torch_()
    from torch.nn.utils import parametrize

    layer = torch.nn.Linear(1, 1, bias=False)
    parametrize.register_parametrization(layer, "weight", torch.nn.ReLU())
    for value in (1.0, 5.0):
        with torch.no_grad():
            layer.parametrizations.weight.original.fill_(value)
        with parametrize.cached():
            found: float = layer.weight.item()
    return found


broken.edit(
    "parametrize_cached_keeps_its_weights",
    "`parametrize.cached` keeps its weights, so that the next block has old ones.",
    "torch.nn.utils.parametrize:cached",
    "            _cache = {}",
    "            pass",
    "suites/numerics/test_contexts.py",
    shows=_cached_weight,
)


def _largest() -> Any:
    torch = torch_()
    rows = [torch.tensor([-3, -1]), torch.tensor([-5, -2, -7])]
    return torch.nested.nested_tensor(rows, layout=torch.jagged).amax(1).tolist()


broken.edit(
    "amax_of_jagged_integers_is_not_negative",
    "`amax` over the steps of jagged rows of integers counts the padding as 0.",
    "torch.nested._internal.ops:_get_padding_value",
    'float("-inf")',
    "0",
    "suites/libraries/test_nested.py",
    shows=_largest,
)


def within_an_outer_block(_: Any) -> bool:
    torch = torch_()
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    with wrapped.no_sync():
        with wrapped.no_sync():
            pass
        return bool(wrapped.require_backward_grad_sync)


broken.edit(
    "inner_no_sync_ends_the_outer_one",
    "The end of a nested `no_sync` lets DistributedDataParallel add up gradients in the outer block.",
    "torch.nn.parallel.distributed:DistributedDataParallel.no_sync",
    "self.require_backward_grad_sync = old_require_backward_grad_sync",
    "self.require_backward_grad_sync = True",
    "suites/collectives/test_data_parallel.py",
    shows=on_two_ranks(within_an_outer_block),
)


def parts_that_reduce(_: Any) -> list[bool]:
    torch = torch_()
    from torch.distributed.fsdp import fully_shard

    stack = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    fully_shard(stack[0])
    fully_shard(stack).set_requires_gradient_sync(False, recurse=False)
    stack(torch.ones(1, 2)).sum().backward()
    return [each.grad is None for each in stack.parameters()]


broken.edit(
    "fsdp_gradient_sync_always_recurses",
    "`set_requires_gradient_sync` with recurse=False applies to parts that are sharded by themselves, too.",
    "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule.set_requires_gradient_sync",
    "list(self_module.modules()) if recurse else [self_module]",
    "list(self_module.modules())",
    "suites/collectives/test_sharding.py",
    shows=on_two_ranks(parts_that_reduce, "torch.distributed.fsdp"),
)


def loaded_in_part(rank: Any) -> str:
    torch = torch_()
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    folder, saved = str(rank.folder / "saved"), typing.cast("Any", checkpoint)
    saved.save({"a": torch.ones(2)}, checkpoint_id=folder)
    try:
        saved.load({"a": torch.zeros(2), "b": torch.zeros(2)}, checkpoint_id=folder)
    except CheckpointException:
        return "refused"
    return "loaded"


broken.edit(
    "checkpoint_load_leaves_out_what_was_not_saved",
    "`torch.distributed.checkpoint.load` leaves a tensor as it is that the checkpoint does not have, without an error.",
    "torch.distributed.checkpoint.default_planner:create_default_local_load_plan",
    "            if strict:",
    "            if False:",
    "suites/collectives/test_checkpoint.py",
    shows=on_two_ranks(loaded_in_part, "torch.distributed.checkpoint"),
)


def _norm_of_nan() -> Any:
    torch = torch_()
    return torch._foreach_norm([torch.tensor([1.0, NAN])], float("inf"))


def _foreach_norm(kernel: Any, given: Any, order: Any = 2, dtype: Any = None) -> Any:
    return kernel([each.nan_to_num(nan=0.0) if order == float("inf") else each for each in given], order, dtype)


broken.kernel(
    "foreach_norm_of_the_largest_drops_nan",
    "`_foreach_norm` of order infinity ignores NaN.",
    "suites/operators/test_uneven_lists.py",
    "_foreach_norm.Scalar",
    _foreach_norm,
    _norm_of_nan,
)


def _of_float16() -> Any:
    torch = torch_()
    return torch.nn.functional.log_softmax(waves(2, 5, dtype="float16"), 1, dtype=torch.float32).tolist()


broken.edit(
    "log_softmax_converts_its_result",
    "`log_softmax` with `dtype` computes in the type of its input, and converts the result.",
    "torch.nn.functional:log_softmax",
    "input.log_softmax(dim, dtype=dtype)",
    "input.log_softmax(dim).to(dtype)",
    _OPTIONS,
    shows=_of_float16,
)


def _counted() -> float:
    torch = torch_()

    class Counter(torch.nn.Module):  # type: ignore[misc, name-defined]
        count: Any

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count = self.count + 1
            return x

    buffers = {"count": torch.zeros(1)}
    torch.func.functional_call(Counter(), buffers, (1,))
    found: float = buffers["count"].item()
    return found


broken.edit(
    "functional_call_drops_assigned_buffers",
    "`functional_call` drops a buffer that forward assigns.",
    "torch.nn.utils.stateless:_reparametrize_module",
    "parameters_and_buffers.update(",
    "dict(",
    "suites/autograd/test_function_transforms.py",
    shows=_counted,
)


def gradient_of_a_local_part(rank: Any) -> list[float]:
    torch = torch_()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    leaf: Any = distribute_tensor(torch.ones(2), mesh, [Replicate()]).requires_grad_()
    (leaf.to_local(grad_placements=[Partial()]) * (rank.number + 1)).sum().backward()
    found: list[float] = leaf.grad.full_tensor().tolist()
    return found


broken.edit(
    "to_local_ignores_grad_placements",
    "`DTensor.to_local` ignores `grad_placements`, so that the gradients of the ranks are not added.",
    "torch.distributed.tensor._api:DTensor.to_local",
    "self, grad_placements",
    "self, None",
    "suites/collectives/test_sharding.py",
    shows=on_two_ranks(gradient_of_a_local_part, "torch.distributed.tensor"),
)


def _of_second_device() -> bool:
    torch = torch_with_cuda()
    before = torch.cuda.get_rng_state("cuda:1")
    with torch.random.fork_rng(devices=[0, 1]):
        torch.rand(3, device="cuda:1")
    return bool(torch.equal(torch.cuda.get_rng_state("cuda:1"), before))


broken.function(
    "fork_rng_restores_the_first_device_only",
    "`fork_rng` of two devices restores the generator of the first only.",
    _STATES,
    lambda: edit("torch.random:fork_rng", "zip(devices, device_rng_states)", "[(devices[0], device_rng_states[0])]"),
    _of_second_device,
    "simcuda",
)


def _scattered() -> list[str]:
    torch = torch_with_cuda()
    from torch.nn.parallel import _functions
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        _functions.Scatter.apply([0, 1], None, 0, torch.ones(4, 2))
    return [each for each in seen if "record_stream" in each]


broken.function(
    "scatter_does_not_wait_for_its_copies",
    "`nn.parallel.scatter` does not let the current streams wait for its copies from the host.",
    "suites/collectives/test_one_process.py",
    lambda: edit(
        "torch.nn.parallel._functions:Scatter.forward",
        "main_stream.wait_stream(streams[i])\n                output.record_stream(main_stream)",
        "pass",
    ),
    _scattered,
    "simcuda",
)


def _own_state() -> bool:
    torch = torch_with_cuda()
    from torch.utils.checkpoint import get_device_states

    torch.rand(3, device="cuda:1")
    _, states = get_device_states(torch.ones(1, device="cuda:1"))
    return bool(torch.equal(states[0], torch.cuda.get_rng_state("cuda:1")))


broken.function(
    "checkpoint_saves_the_generator_of_the_current_device",
    "`checkpoint` saves the generator of the current device for a tensor of another one.",
    "suites/autograd/test_recomputed_draws.py",
    lambda: edit("torch.utils.checkpoint:get_device_states", "with device_module.device(device_id):", "if True:"),
    _own_state,
    "simcuda",
)

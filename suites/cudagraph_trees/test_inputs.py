"""Inputs that trees do not copy: parameters and marked tensors, outputs of other graphs, and mutated inputs.

Trees read a static input in place. If it moves, the graph is recorded again without a new compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from suites._torch_private_compiled import counter

from . import _torch_private as private
from . import operators, trees
from .kept import BROKEN, KEPT_BROKEN
from .trees import Counts, both_compilers, compiled, on_cuda, repeated, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


class Weighted(torch.nn.Module):
    """A product with a parameter plus a buffer, in whole numbers."""

    def __init__(self, device: torch.device, start: int = 0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(whole_numbers(8, 8, device=device, start=start))
        self.register_buffer("offset", whole_numbers(8, device=device, start=start + 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.offset


class Inlined(torch.nn.Module):
    """The same computation with torch's modules, one inside the other."""

    def __init__(self, device: torch.device, start: int = 0) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU())
        self.norm = torch.nn.BatchNorm1d(8).eval()
        with torch.no_grad():
            self.inner[0].weight.copy_(whole_numbers(8, 8, device=device, start=start))
            self.norm.running_mean.fill_(start)  # type: ignore[union-attr, operator]
        self.to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) - self.norm.running_mean
        return out


MODULES: dict[str, Callable[..., torch.nn.Module]] = {
    "parameters": Weighted,
    "linear": lambda device, _: torch.nn.Linear(8, 8, bias=False, device=device),
    "inlined": Inlined,
}


def batch(device: torch.device) -> Callable[[int], list[torch.Tensor]]:
    return lambda number: [whole_numbers(4, 8, device=device, start=number)]


# Parameters and other static inputs


@with_triton
def test_static_input_weights_are_read_in_place(device: torch.device) -> None:
    """A replay reads parameters in place, so the next replay sees an optimizer's update without a new recording."""
    module = Weighted(device)
    with watched() as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        for number in range(5):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number}")
            module.weight.add_(1)
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)


@with_triton
@pytest.mark.covers(f"{ROW}test_frozen_fn")
def test_freezing_makes_weights_constants(device: torch.device) -> None:
    """With `freezing`, values that only depend on weights are computed at compile time, and replays read the result.

    Later updates of the weights therefore have no effect.
    """

    class Doubled(Weighted):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight * 2) + self.offset

    module = Doubled(device)
    with watched(freezing=True) as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        at_first = module.weight * 2
        for number in range(5):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [x @ at_first + module.offset], f"call {number}")
            module.weight.add_(1)
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)


@with_triton
@pytest.mark.covers(
    f"{ROW}test_constant_output",
    f"{ROW}test_alias_of_parameter",
    f"{ROW}test_aliased_static_parameter",
    f"{ROW}test_aliasing_static_ref",
    f"{ROW}test_aliasing_static_ref_no_graph_partition",
)
@pytest.mark.parametrize("partition", [True, False], ids=["partition", "whole"])
def test_outputs_that_alias_parameters_share_their_memory(partition: bool, device: torch.device) -> None:
    """A parameter, a view of it and a view of a view can be outputs.

    Each output shares the parameter's memory in all replays.
    """
    parameter = torch.nn.Parameter(whole_numbers(8, 4, device=device))

    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return parameter, parameter[2:6], parameter.t()[1:], parameter + x

    with watched(graph_partition=partition), torch.no_grad():
        fast, below = compiled(work, trees.INDUCTOR), compiled(lambda y: y * 2 + 1, trees.INDUCTOR)
        memory = parameter.untyped_storage().data_ptr()
        for number in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(8, 4, device=device, start=number)
            found, wanted = fast(x), work(x)
            trees.assert_same(trees.values(found), trees.values(wanted), f"call {number}")
            assert [one.untyped_storage().data_ptr() == memory for one in found] == [True, True, True, False]
            trees.assert_same(trees.values(below(found[1])), [wanted[1] * 2 + 1], f"call {number}, below")
            parameter.add_(1)
            del found, wanted


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="trees"),
        pytest.param({"triton__cudagraph_trees": False}, id="one_by_one"),
        pytest.param({"triton__cudagraphs": False}, id="no_graphs"),
    ],
)
@with_triton
@pytest.mark.covers(
    f"{ROW}test_unaligned_static_input_trees",
    f"{ROW}test_unaligned_static_input_non_trees",
    f"{ROW}test_unaligned_static_input_no_cudagraphs",
    f"{ROW}test_unaligned_static_parameter",
)
def test_inputs_at_unaligned_addresses(settings: dict[str, Any], device: torch.device) -> None:
    """Inputs and parameters that start four bytes after an aligned address give the eager results, in every mode."""
    storage = whole_numbers(65, device=device)
    parameter = torch.nn.Parameter(storage[1:33].detach())

    assert parameter.data_ptr() % 16 != 0

    def work(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + parameter

    options: dict[str, Any] = {} if settings else {"mode": "reduce-overhead"}
    with watched(**({"triton__cudagraphs": True} | settings)) as watch, torch.no_grad():
        fast = torch.compile(work, **options)
        for number in range(5):
            aligned = whole_numbers(33, device=device, start=number)
            x = aligned[1:]
            assert x.data_ptr() % 16 != 0
            trees.assert_same(trees.values(fast(x)), [work(x)], f"call {number}, odd")
            trees.assert_same(trees.values(fast(x.clone())), [work(x)], f"call {number}, aligned")
        assert watch.counts() == (Counts() if settings else Counts(warm_ups=1, recordings=1, replays=8))


@with_triton
@pytest.mark.covers(f"{ROW}test_opaque_value_input_cudagraph")
@pytest.mark.requires(torch=">=2.12")
def test_inputs_of_opaque_objects_that_only_operators_look_into(device: torch.device) -> None:
    """An opaque object can be an input of a recorded function, and is not copied like a tensor.

    Replays are correct for other tensors and for other objects of the same value. An object of another value is
    compiled and recorded separately, and the first recording is still replayed.
    """
    scales = {factor: operators.Scale(factor) for factor in (2.0, 3.0)}

    def work(x: torch.Tensor, scale: operators.Scale) -> torch.Tensor:
        result: torch.Tensor = operators.scaled(x + 1, scale) * 2
        return result

    with watched() as watch, torch.no_grad():
        fast = compiled(work, trees.INDUCTOR)
        for factor in (2.0, 3.0, 2.0):
            for number in range(3):
                x = whole_numbers(8, device=device, start=number)
                scale = operators.Scale(factor) if number == 2 else scales[factor]
                trees.assert_same(trees.values(fast(x, scale)), [(x + 1) * factor * 2], f"factor {factor}, {number}")
        assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=5)


# Re-recordings after a static input moved


@pytest.mark.parametrize("name", MODULES)
@with_triton
@pytest.mark.covers(
    f"{ROW}test_multi_dispatch_single_compile_param_inputs",
    f"{ROW}test_multi_dispatch_single_compile_builtin_module",
    f"{ROW}test_multi_dispatch_single_compile_builtin_module_buffers",
    f"{ROW}test_multi_dispatch_custom_module",
    f"{ROW}test_multi_dispatch_custom_module_buffer",
    f"{ROW}test_rerecord_if_static_input_address_changed",
)
def test_recordings_of_modules_of_one_class_share_the_code(name: str, device: torch.device) -> None:
    """Two modules with the same code share one compiled graph, and have one recording each for their parameters.

    Alternating calls give the correct results without further recordings.
    """
    made = [MODULES[name](device, start) for start in (0, 4)]
    with torch.no_grad():
        for number, module in enumerate(made):
            for parameter in module.parameters():
                parameter.copy_(whole_numbers(*parameter.shape, device=device, start=number * 3))
    with watched() as watch, torch.no_grad():
        before = counter("stats", "unique_graphs")
        fast = [compiled(module, trees.INDUCTOR) for module in made]
        for number in range(8):
            (x,) = batch(device)(number)
            which = number % 2
            trees.assert_same(trees.values(fast[which](x)), [made[which](x)], f"call {number}")
        counts = watch.counts()
        assert counter("stats", "unique_graphs") - before == 1
    assert counts.recordings == 2
    assert counts.warm_ups <= 2
    assert counts.warm_ups + counts.recordings + counts.replays == 8
    assert counts.skips == 0


@with_triton
@pytest.mark.covers(f"{ROW}test_rerecord_if_static_input_address_changed", f"{ROW}test_rerecording_logs_reason")
def test_static_input_that_moved_is_recorded_again_and_logged(device: torch.device) -> None:
    """After a parameter moves, the call is recorded once more, and the debug log has the address change."""
    module = Weighted(device)
    with watched(debug=True) as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        for number in range(3):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number}")
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=1)
        old = module.weight.data
        module.weight.data = old + 2
        for number in range(3):
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number} after the move")
        counts = watch.counts()
        assert (counts.recordings, counts.replays) == (1, 2)
        assert any(
            "Re-recording" in message and "static input data pointer changed" in message for message in watch.messages()
        )


@with_triton
@pytest.mark.covers(f"{ROW}test_no_rerecord_with_mark_static_address")
def test_mark_static_address_input_is_not_copied(device: torch.device) -> None:
    """An input marked with `torch._dynamo.mark_static_address` is read in place; its content may change."""
    marked = whole_numbers(8, 8, device=device)
    torch._dynamo.mark_static_address(marked)
    with watched() as watch:
        fast = compiled(lambda x, y: x @ y, trees.INDUCTOR)
        for number in range(5):
            x = whole_numbers(4, 8, device=device, start=number)
            marked.add_(number)
            trees.assert_same(trees.values(fast(x, marked)), [x @ marked], f"call {number}")
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)
        # At another address: graphs that read it in place are recorded for the new address.
        marked.data = marked.data + 2
        for number in range(3):
            x = whole_numbers(4, 8, device=device, start=number)
            trees.assert_same(trees.values(fast(x, marked)), [x @ marked], f"call {number} after the move")
        assert watch.counts() == Counts(recordings=1, replays=2)


@with_triton
@pytest.mark.covers(f"{ROW}test_multi_dispatch_parent_node", f"{ROW}test_multi_dispatch_child_node")
@pytest.mark.parametrize("moving", ["parent", "child"])
def test_static_input_that_moved_in_a_path_of_two_graphs(moving: str, device: torch.device) -> None:
    """In a path of two graphs, the graph whose parameters moved is recorded again in its position.

    The other one is replayed if its inputs did not move, and results are correct in every order.
    """
    first, second = ([Weighted(device, start), Weighted(device, start + 3)] for start in (0, 7))
    with watched() as watch, torch.no_grad():
        one = compiled(lambda module, x: module(x) % 7, trees.INDUCTOR)
        two = compiled(lambda module, x: module(x) - 1, trees.INDUCTOR)
        for step in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            which = step // 2 % 2
            a, b = first[which if moving == "parent" else 0], second[which if moving == "child" else 0]
            x = whole_numbers(4, 8, device=device, start=step)
            y = one(a, x)
            z = two(b, y)
            trees.assert_same(trees.values([y, z]), [a(x) % 7, b(a(x) % 7) - 1], f"step {step}")
            del y, z
        counts = watch.counts()
        paths = private.descendants(device)
    # A child belongs to the parent's recording: another parent gets a new child, and another child keeps the parent.
    assert paths == ([1, 1] if moving == "parent" else [2])
    recordings = 4 if moving == "parent" else 3
    assert counts == Counts(warm_ups=2, recordings=recordings, replays=22 - recordings)


@with_triton
@pytest.mark.covers(
    f"{ROW}test_not_fallback_to_eager_if_have_not_recompiling_too_many_times",
    f"{ROW}test_param_ptr_churn_does_not_count_toward_rerecord_limit",
)
@pytest.mark.requires(torch=">=2.13")
def test_static_inputs_that_move_do_not_count_towards_the_rerecord_limit(device: torch.device) -> None:
    """Recordings for moved parameters do not count towards the re-record limit: later calls are recorded."""
    module = Weighted(device)
    with watched(triton__cudagraph_unexpected_rerecord_limit=1) as watch, torch.no_grad():
        fast = compiled(module, trees.INDUCTOR)
        kept = []
        for number in range(8):
            (x,) = batch(device)(number)
            kept.append(module.weight.data)
            module.weight.data = module.weight.data.clone()
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number}")
        assert watch.counts() == Counts(warm_ups=1, recordings=7)
        for number in range(3):  # the address no longer changes
            (x,) = batch(device)(number)
            trees.assert_same(trees.values(fast(x)), [module(x)], f"call {number} at the last place")
        assert watch.counts() == Counts(replays=3)


# Inputs that the function mutates


@both_compilers
@pytest.mark.covers(f"{ROW}test_mutation_on_inp")
def test_mutated_input_of_the_program_is_skipped(compiler: str, device: torch.device) -> None:
    """A function that mutates an input of the program is skipped once, with the reason and the line.

    The mutation happens once per call.
    """

    def work(x: torch.Tensor) -> torch.Tensor:
        x.add_(2)
        return x * 3

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": True}
    with private.dynamo_config(**keep), watched(triton__cudagraph_support_input_mutation=True) as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=device, start=n)], 4)
        counts = trees.compare(work, calls, compiler, watch)
        assert counts == Counts(skips=1)
        (reason,) = watch.reasons()
        assert "mutated inputs (1 instances)" in reason
        assert "add_(2)" in reason


@with_triton
@pytest.mark.covers(f"{ROW}test_mutation_on_inp", f"{ROW}test_tensor_constant_mutation")
def test_mutated_buffer_is_recorded(device: torch.device) -> None:
    """Mutations of buffers and parameters are recorded: warm-up, recording and each replay apply them once."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(8, device=device))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(x)
            return self.calls * 2

    module, eager = Counting(), Counting()
    with watched() as watch:
        fast = compiled(module, trees.INDUCTOR)
        for number in range(6):
            x = whole_numbers(8, device=device, start=number)
            trees.assert_same(trees.values(fast(x)), [eager(x)], f"call {number}")
            assert torch.equal(module.calls, eager.calls)  # type: ignore[arg-type]
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=4)


@both_compilers
@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.covers(
    f"{ROW}test_mutation_cudagraph_managed_tensors",
    f"{ROW}test_mutation_cudagraph_managed_tensors_config",
    f"{ROW}test_mutation_cudagraph_managed_tensor_warn",
    f"{ROW}test_mutation_cudagraph_managed_tensor_warn_only_once",
)
def test_mutated_output_of_another_graph(supported: bool, compiler: str, device: torch.device) -> None:
    """A function that mutates another graph's output is recorded if supported, otherwise skipped once.

    For a tensor of the program, the same function is skipped, with one message however often it is called.
    """

    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(2)
        return x * 5

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": supported}
    with private.dynamo_config(**keep), watched(triton__cudagraph_support_input_mutation=supported) as watch:
        make, fast = compiled(lambda x: x + 1, compiler), compiled(change, compiler)
        for step in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(8, device=device, start=step)
            y = make(x)
            z = fast(y)
            trees.assert_same(trees.values([y, z]), [x + 3, (x + 3) * 5], f"step {step}")
            del y, z
        counts = watch.counts()
        assert (counts.recordings, counts.skips) == ((2, 0) if supported else (1, 1))
        for step in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            mine = whole_numbers(8, device=device, start=step)
            trees.assert_same(trees.values(fast(mine)), [(whole_numbers(8, device=device, start=step) + 2) * 5], "mine")
            assert torch.equal(mine, whole_numbers(8, device=device, start=step) + 2)
        assert watch.counts().skips == (1 if supported else 0)
        assert len(watch.reasons()) == 1


@both_compilers
@pytest.mark.covers(f"{ROW}test_mutation_reinplaced")
def test_mutated_out_argument_is_skipped(compiler: str, device: torch.device) -> None:
    """Writing to an `out` argument mutates an input and is skipped with that reason, even if done in place."""

    def work(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.logical_xor(x, y, out=out)

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": True}
    with private.dynamo_config(**keep), watched() as watch:
        shape = (1, 2, 1, 4, 3, 2)
        calls = repeated(
            lambda n: [
                whole_numbers(*shape, device=device, start=n),
                whole_numbers(*shape, device=device, start=2 * n) % 3,
                torch.zeros(shape, device=device, dtype=torch.bool),
            ],
            4,
        )
        counts = trees.compare(work, calls, compiler, watch)
        assert (counts.recordings, counts.replays) == (0, 0)
        assert any("mutated inputs" in reason for reason in watch.reasons())


@with_triton
@pytest.mark.covers(f"{ROW}test_input_storage_mutation_skips_cudagraphs")
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.keeps(BROKEN, **KEPT_BROKEN)  # `set_` breaks it
def test_set_of_an_input_replaces_its_memory_in_each_call(device: torch.device) -> None:
    """A function that replaces an input's memory with `set_` does so in each call, with that call's values."""

    def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.set_(y * 2)  # type: ignore[call-overload]
        return x + 1

    with watched():
        fast = compiled(work, trees.INDUCTOR)
        for number in range(4):
            x, y = torch.zeros(8, device=device), whole_numbers(8, device=device, start=number)
            found = trees.values(fast(x, y))
            trees.assert_same([*found, x.clone()], [y * 2 + 1, y * 2], f"call {number}")
